/* control_rpc.h: JSON-RPC 2.0 as text and back: lines, requests, answers. Inside control*.c only.
 */
#ifndef ATTND_DAEMON_CONTROL_RPC_H
#define ATTND_DAEMON_CONTROL_RPC_H

#include "daemon/control_methods.h"

/* The codes of JSON-RPC 2.0, and one for what a method itself refuses. */
enum {
    SRV_RPC_PARSE_ERROR = -32700,
    SRV_RPC_INVALID_REQUEST = -32600,
    SRV_RPC_METHOD_NOT_FOUND = -32601,
    SRV_RPC_INVALID_PARAMS = -32602,
    SRV_RPC_REFUSED = -32000,
};

/* A line without its end as JSON, which the caller deletes; NULL refuses BAD_MESSAGE. */
cJSON *srv_rpc_parse(const char *line, size_t n, attnd_err *err);

/* What a request says; borrows from it. */
typedef struct srv_rpc_request {
    const cJSON *id; /* NULL: a notification, or not known to be one */
    const srv_method *method;
    const cJSON *params; /* an object checked against the method's rows, or NULL */
} srv_rpc_request;

/* 0, or the code of the error; out->id is set as soon as it is known to be one. */
int srv_rpc_read(const cJSON *request, srv_rpc_request *out, attnd_err *err);

/* {jsonrpc, id, name: item} as text for cJSON_free, NULL without memory; takes item. */
char *srv_rpc_answer(const cJSON *id, const char *name, cJSON *item);

/* An error in the words of the data socket, to be answered under "error". */
cJSON *srv_rpc_error(int code, const attnd_err *err);

/* ---- Lines, as they come in pieces ---- */

typedef struct srv_lines {
    char *in; /* received: in[first .. end), searched for a newline up to seen */
    size_t first, seen, end, bytes;
} srv_lines;

/* Room for what is received next, *at[0 .. *n), at least 16 KiB; what was taken goes away. False
 * without memory. Whoever fills it raises end. */
bool srv_lines_make_room(srv_lines *lines, char **at, size_t *n);

/* Takes the next whole line, without its end, readable until the next call of make_room; at the end
 * of file the rest is one. False: there is none yet. */
bool srv_lines_take(srv_lines *lines, bool has_ended, const char **line, size_t *n);

/* Bytes of a line that has not ended. */
size_t srv_lines_held(const srv_lines *lines);
void srv_lines_drop(srv_lines *lines); /* those */

#endif
