/* control_rpc.c: JSON-RPC 2.0 as text and back. */
#include "daemon/control_rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_CHUNK = 16 << 10 /* bytes */ };

/* ---- Requests ---------------------------------------------------------------------------------
 */

cJSON *srv_rpc_parse(const char *line, size_t n, attnd_err *err)
{
    const char *end = NULL;
    if (!srv_json_is_clean(line, n)) {
        attnd_fail(err, ATTND_BAD_MESSAGE,
                   "line = %zu bytes: not UTF-8, or a zero character stands in it", n);
        return NULL;
    }
    cJSON *message = cJSON_ParseWithLengthOpts(line, n, &end, false);
    while (message && end < line + n && strchr(" \t\r", *end))
        end++;
    if (message && end == line + n)
        return message;
    cJSON_Delete(message);
    attnd_fail(err, ATTND_BAD_MESSAGE, "line = %zu bytes: not JSON from byte %zu on", n,
               end ? (size_t)(end - line) : 0);
    return NULL;
}

/* Members of a request, in the order of their names below; NULL: absent. */
typedef enum member { JSONRPC, ID, METHOD, PARAMS, N_MEMBERS } member;

/* Sorts the members of a request; INVALID_REQUEST for one that is unknown or there twice. */
static int envelope_read(const cJSON *request, const cJSON *found[N_MEMBERS], attnd_err *err)
{
    static const char *const names[N_MEMBERS] = {"jsonrpc", "id", "method", "params"};
    const cJSON *item;
    char brief[64];
    if (!cJSON_IsObject(request)) {
        srv_json_brief(request, brief, sizeof brief);
        attnd_fail(err, ATTND_BAD_MESSAGE, "request = %s: an object", brief);
        return SRV_RPC_INVALID_REQUEST;
    }
    cJSON_ArrayForEach(item, request)
    {
        size_t i = 0;
        while (i < N_MEMBERS && strcmp(names[i], item->string) != 0)
            i++;
        if (i == N_MEMBERS || found[i]) {
            attnd_fail(err, ATTND_BAD_MESSAGE,
                       "%.48s = given%s: a request has jsonrpc, id, method, params", item->string,
                       i == N_MEMBERS ? "" : " twice");
            return SRV_RPC_INVALID_REQUEST;
        }
        found[i] = item;
    }
    return 0;
}

/* Each member has the type it should; *id is set as soon as it is known to be one. */
static int envelope_check(const cJSON *const found[N_MEMBERS], const cJSON **id, attnd_err *err)
{
    const char *version = cJSON_GetStringValue(found[JSONRPC]);
    char brief[64];
    int64_t number;
    if (found[ID] && !cJSON_IsString(found[ID]) && !cJSON_IsNull(found[ID]) &&
        !srv_json_whole(found[ID], INT64_MIN, INT64_MAX, &number)) {
        srv_json_brief(found[ID], brief, sizeof brief);
        attnd_fail(err, ATTND_BAD_MESSAGE,
                   "id = %s: a string, null or a whole number between -2^53 and 2^53", brief);
        return SRV_RPC_INVALID_REQUEST;
    }
    *id = found[ID];
    if (!version || strcmp(version, "2.0") != 0) {
        attnd_fail(err, ATTND_BAD_MESSAGE, "jsonrpc = %s: \"2.0\"",
                   found[JSONRPC] ? "other" : "absent");
        return SRV_RPC_INVALID_REQUEST;
    }
    if (!cJSON_IsString(found[METHOD])) {
        attnd_fail(err, ATTND_BAD_MESSAGE, "method = %s: a string",
                   found[METHOD] ? "other" : "absent");
        return SRV_RPC_INVALID_REQUEST;
    }
    if (found[PARAMS] && !cJSON_IsObject(found[PARAMS]) && !cJSON_IsArray(found[PARAMS])) {
        attnd_fail(err, ATTND_BAD_MESSAGE, "params = other: an object");
        return SRV_RPC_INVALID_REQUEST;
    }
    return 0;
}

int srv_rpc_read(const cJSON *request, srv_rpc_request *out, attnd_err *err)
{
    const cJSON *found[N_MEMBERS] = {NULL};
    const char *nearest;
    *out = (srv_rpc_request){0};
    int code = envelope_read(request, found, err);
    if (code == 0)
        code = envelope_check(found, &out->id, err);
    if (code)
        return code;
    const char *name = cJSON_GetStringValue(found[METHOD]);
    out->method = srv_method_find(name, &nearest);
    if (!out->method) {
        attnd_fail(err, ATTND_UNSUPPORTED,
                   "method = %.48s: there is none of this name; the nearest is %s", name, nearest);
        return SRV_RPC_METHOD_NOT_FOUND;
    }
    if (cJSON_IsArray(found[PARAMS]) && cJSON_GetArraySize(found[PARAMS])) {
        attnd_fail(err, ATTND_BAD_MESSAGE, "params = an array: an object, by name");
        return SRV_RPC_INVALID_PARAMS;
    }
    out->params = cJSON_IsObject(found[PARAMS]) ? found[PARAMS] : NULL;
    return srv_method_check(out->method, out->params, err) == ATTND_OK ? 0 : SRV_RPC_INVALID_PARAMS;
}

/* ---- Answers ----------------------------------------------------------------------------------
 */

char *srv_rpc_answer(const cJSON *id, const char *name, cJSON *item)
{
    cJSON *answer = cJSON_CreateObject();
    const char *word = cJSON_GetStringValue(id);
    int64_t number;
    srv_json_text(answer, "jsonrpc", "2.0");
    if (word)
        srv_json_text(answer, "id", word);
    else if (srv_json_whole(id, INT64_MIN, INT64_MAX, &number))
        srv_json_count(answer, "id", number);
    else
        srv_json_take(answer, "id", cJSON_CreateNull());
    srv_json_take(answer, name, item);
    char *text = srv_json_failed() ? NULL : cJSON_PrintUnformatted(answer);
    cJSON_Delete(answer);
    return text;
}

cJSON *srv_rpc_error(int code, const attnd_err *err)
{
    char field[ATTND_ERR_TEXT];
    const char *hint = strstr(err->text, ": ");
    snprintf(field, sizeof field, "%.*s", (int)attnd_err_field_len(err), err->text);
    srv_json_begin();
    cJSON *error = cJSON_CreateObject();
    srv_json_count(error, "code", code);
    srv_json_text(error, "message", err->text);
    cJSON *data = srv_json_object(error, "data");
    srv_json_text(data, "code", attnd_status_name(err->status));
    srv_json_text(data, "reason", attnd_reason_name(err->reason));
    srv_json_text(data, "field", field);
    srv_json_text(data, "hint", hint ? hint + 2 : "");
    return error;
}

/* ---- Lines ------------------------------------------------------------------------------------
 */

bool srv_lines_make_room(srv_lines *l, char **at, size_t *n)
{
    size_t kept = l->end - l->first;
    if (l->first) {
        l->end = kept;
        memmove(l->in, l->in + l->first, kept);
        l->seen -= l->first;
        l->first = 0;
    }
    if (kept == 0 && l->bytes > 4 * READ_CHUNK) {
        /* A long line has gone by. */
        free(l->in);
        l->in = NULL;
        l->bytes = 0;
    }
    if (l->bytes - kept < READ_CHUNK) {
        size_t bytes = 2 * (kept + READ_CHUNK);
        char *grown = realloc(l->in, bytes);
        if (!grown)
            return false;
        l->in = grown;
        l->bytes = bytes;
    }
    *at = l->in + l->end;
    *n = l->bytes - l->end;
    return true;
}

bool srv_lines_take(srv_lines *l, bool has_ended, const char **line, size_t *n)
{
    char *newline = NULL;
    if (l->seen < l->end)
        newline = memchr(l->in + l->seen, '\n', l->end - l->seen);
    l->seen = l->end;
    if (!newline && !(has_ended && l->first < l->end))
        return false;
    size_t end = newline ? (size_t)(newline - l->in) : l->end;
    *line = l->in + l->first;
    *n = end - l->first;
    l->first = l->seen = newline ? end + 1 : end;
    return true;
}

size_t srv_lines_held(const srv_lines *l)
{
    return l->end - l->first;
}

void srv_lines_drop(srv_lines *l)
{
    l->first = l->seen = l->end = 0;
}
