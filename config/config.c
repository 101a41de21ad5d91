/* config.c: file, environment and flags into one checked struct. */
#include "config/config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/json.h"
#include "config/keys.h"
#include "config/models_read.h"
#include "config/value.h"

void cfg_defaults(cfg *out)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < cfg_n_keys; i++)
        cfg_value_default(out, &cfg_keys[i]);
}

attnd_status cfg_set(cfg *out, const char *name, const char *text, attnd_err *err)
{
    const cfg_key *key = cfg_key_find(name);
    if (!key)
        return attnd_fail(err, ATTND_BAD_CONFIG, "%.80s = %.80s: no such key, nearest is %s", name,
                          text, cfg_key_nearest(name)->name);
    return cfg_value_set(out, key, name, text, err);
}

bool cfg_get(const cfg *c, const char *name, char *buf, size_t bytes)
{
    const cfg_key *key = cfg_key_find(name);
    if (!key)
        return false;
    char text[CFG_VALUE_TEXT];
    cfg_value_text(c, key, text);
    snprintf(buf, bytes, "%s", text);
    return true;
}

bool cfg_is_live(const char *name)
{
    const cfg_key *key = cfg_key_find(name);
    return key && key->live;
}

void cfg_take_live(cfg *to, const cfg *from)
{
    for (size_t i = 0; i < cfg_n_keys; i++)
        if (cfg_keys[i].live)
            cfg_value_copy(to, from, &cfg_keys[i]);
}

/* ---- The file ---------------------------------------------------------------------------------
 */

/* A file being read: what its members stand in. */
typedef struct reading {
    const cfg_source *source;
    cfg *out;
    cfg_models *models; /* NULL: a file with models is refused */
} reading;

static bool fits(const cfg_key *key, const cJSON *value)
{
    bool text = cJSON_IsString(value), number = cJSON_IsNumber(value);
    switch (key->type) {
    case CFG_TYPE_INT:
        return number;
    case CFG_TYPE_BYTES:
    case CFG_TYPE_TIME_MS:
        return number || text;
    case CFG_TYPE_FLAG:
        return cJSON_IsBool(value);
    case CFG_TYPE_TEXT:
    case CFG_TYPE_CHOICE:
        return text;
    }
    return false;
}

/* Numbers are read from the file's own digits: cJSON keeps a double, good to 2^53. */
static attnd_status read_value(const reading *r, const cfg_key *key, const cJSON *value,
                               cfg_member place, attnd_err *err)
{
    int n = (int)(place.end - place.value);
    if (!fits(key, value)) {
        char expected[CFG_VALUE_TEXT];
        cfg_value_expected(key, expected);
        return cfg_source_fail(r->source, place.value, err, "%s = %.*s: %s", key->name,
                               n < 80 ? n : 80, r->source->text + place.value, expected);
    }
    char digits[64];
    snprintf(digits, sizeof digits, "%.*s", n, r->source->text + place.value);
    attnd_err why;
    const char *text = cJSON_IsString(value) ? value->valuestring : digits;
    if (cfg_value_set(r->out, key, key->name, text, &why) != ATTND_OK)
        return cfg_source_fail(r->source, place.value, err, "%s", why.text);
    return ATTND_OK;
}

static attnd_status read_section(const reading *r, const cJSON *section, size_t open,
                                 attnd_err *err)
{
    size_t i = 0;
    for (const cJSON *value = section->child; value; value = value->next, i++) {
        cfg_member place = cfg_source_member(r->source, open, i);
        TRY(cfg_json_once(r->source, section, open, value, place, err));
        char name[CFG_VALUE_TEXT];
        snprintf(name, sizeof name, "%.80s.%.80s", section->string, value->string);
        const cfg_key *key = cfg_key_find(name);
        if (!key)
            return cfg_source_fail(r->source, place.name, err, "%s: no such key, nearest is %s",
                                   name, cfg_key_nearest(name)->name);
        TRY(read_value(r, key, value, place, err));
    }
    return ATTND_OK;
}

static bool is_section(const cfg_key *key, const char *name)
{
    return strlen(name) == key->n_section && memcmp(key->name, name, key->n_section) == 0;
}

static bool has_section(const char *name)
{
    for (size_t i = 0; i < cfg_n_keys; i++)
        if (is_section(&cfg_keys[i], name))
            return true;
    return false;
}

/* The section whose name is nearest: the part of a key before its dot. */
static void nearest_section(const char *name, cfg_text out)
{
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < cfg_n_keys; i++) {
        cfg_text section;
        snprintf(section, sizeof section, "%.*s", (int)cfg_keys[i].n_section, cfg_keys[i].name);
        size_t distance = cfg_key_distance(name, section);
        if (distance < least) {
            least = distance;
            memcpy(out, section, sizeof section);
        }
    }
}

/* Models of a file have pools whose blocks the server hands out; only clients open models so far.
 */
static attnd_status refuse_models(const reading *r, size_t offset, attnd_err *err)
{
    attnd_err where;
    cfg_source_fail(r->source, offset, &where,
                    "models: this server opens no models from its file, a client opens its own");
    return attnd_fail(err, ATTND_UNSUPPORTED, "%s", where.text);
}

static attnd_status read_root(const reading *r, const cJSON *root, attnd_err *err)
{
    size_t open = cfg_source_begin(r->source), i = 0;
    if (!cJSON_IsObject(root))
        return cfg_source_fail(r->source, open, err,
                               "file = %.20s: an object of sections, {\"data\": {...}}",
                               r->source->text + open);
    for (const cJSON *section = root->child; section; section = section->next, i++) {
        cfg_member place = cfg_source_member(r->source, open, i);
        TRY(cfg_json_once(r->source, root, open, section, place, err));
        if (strcmp(section->string, "models") == 0 && !r->models)
            return refuse_models(r, place.name, err);
        if (strcmp(section->string, "models") == 0) {
            TRY(cfg_models_read(r->models, r->source, section, place.value, err));
            continue;
        }
        if (!has_section(section->string)) {
            cfg_text nearest;
            nearest_section(section->string, nearest);
            return cfg_source_fail(r->source, place.name, err,
                                   "%.80s: no such section, nearest is %s", section->string,
                                   nearest);
        }
        if (!cJSON_IsObject(section))
            return cfg_source_fail(r->source, place.value, err, "%s = %.20s: a section, {...}",
                                   section->string, r->source->text + place.value);
        TRY(read_section(r, section, place.value, err));
    }
    return ATTND_OK;
}

attnd_status cfg_read_models(cfg *out, cfg_models *models, const char *path, attnd_err *err)
{
    cfg next = *out;
    cfg_source source;
    cJSON *root = NULL;
    if (models)
        *models = (cfg_models){0};
    attnd_status status = cfg_source_init(&source, path, err);
    if (status == ATTND_OK)
        status = cfg_json_parse(&source, &root, err);
    if (status == ATTND_OK)
        status = read_root(&(reading){&source, &next, models}, root, err);
    if (status == ATTND_OK)
        *out = next;
    cJSON_Delete(root);
    cfg_source_fini(&source);
    return status;
}

attnd_status cfg_read_file(cfg *out, const char *path, attnd_err *err)
{
    return cfg_read_models(out, NULL, path, err);
}

/* ---- The environment ---------------------------------------------------------------------------
 */

/* "data.max_message" → "ATTND_DATA_MAX_MESSAGE". */
static void variable_of(const cfg_key *key, cfg_text out)
{
    snprintf(out, CFG_TEXT, "ATTND_%s", key->name);
    for (char *c = out; *c; c++)
        *c = *c == '.' ? '_' : (char)toupper((unsigned char)*c);
}

/* The key of a variable; else NULL, and the nearest variable's name. */
static const cfg_key *key_of_variable(const char *name, cfg_text nearest)
{
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < cfg_n_keys; i++) {
        cfg_text variable;
        variable_of(&cfg_keys[i], variable);
        size_t distance = cfg_key_distance(name, variable);
        if (strcmp(name, variable) == 0)
            return &cfg_keys[i];
        if (distance < least) {
            least = distance;
            memcpy(nearest, variable, sizeof variable);
        }
    }
    return NULL;
}

static attnd_status read_variable(cfg *out, const char *entry, attnd_err *err)
{
    static const char *const others[] = {"ATTND_TEST_", "ATTND_BUILD="};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strncmp(entry, others[i], strlen(others[i])) == 0)
            return ATTND_OK;
    const char *equals = strchr(entry, '=');
    if (strncmp(entry, "ATTND_", 6) != 0 || !equals)
        return ATTND_OK;
    cfg_text name, nearest;
    snprintf(name, sizeof name, "%.*s", (int)(equals - entry), entry);
    const cfg_key *key = key_of_variable(name, nearest);
    if (!key)
        return attnd_fail(err, ATTND_BAD_CONFIG, "%.80s = %.80s: no such variable, nearest is %s",
                          name, equals + 1, nearest);
    return cfg_value_set(out, key, name, equals + 1, err);
}

attnd_status cfg_read_env(cfg *out, char *const *environ_, attnd_err *err)
{
    cfg next = *out;
    for (; *environ_; environ_++)
        TRY(read_variable(&next, *environ_, err));
    *out = next;
    return ATTND_OK;
}

/* ---- All of it ---------------------------------------------------------------------------------
 */

attnd_status cfg_check(const cfg *c, attnd_err *err)
{
    int64_t for_work = c->data_contexts * 3 / 4;
    if (c->session_max_in_flight > for_work)
        return attnd_fail(err, ATTND_BAD_CONFIG,
                          "session.max_in_flight = %lld: at most %lld, three quarters of "
                          "data.contexts = %lld; the rest is kept for Ping and Hello",
                          (long long)c->session_max_in_flight, (long long)for_work,
                          (long long)c->data_contexts);
    /* cos and sin, fp32, for each pair of channels. */
    int64_t angles = c->limits_max_tokens * c->limits_max_head_dim * 4;
    if (c->device_workspace < angles)
        return attnd_fail(err, ATTND_BAD_CONFIG,
                          "device.workspace = %lld: the angles of limits.max_tokens = %lld times "
                          "limits.max_head_dim = %lld take %lld bytes",
                          (long long)c->device_workspace, (long long)c->limits_max_tokens,
                          (long long)c->limits_max_head_dim, (long long)angles);
    return ATTND_OK;
}

void cfg_runtime_dir(const cfg *c, cfg_text out)
{
    const char *given = getenv("RUNTIME_DIRECTORY"), *user = getenv("XDG_RUNTIME_DIR");
    if (c->runtime_dir[0])
        snprintf(out, CFG_TEXT, "%s", c->runtime_dir);
    else if (given && given[0])
        snprintf(out, CFG_TEXT, "%.*s", (int)strcspn(given, ":"), given);
    else if (user && user[0])
        snprintf(out, CFG_TEXT, "%s/attnd", user);
    else if (access("/run/attnd", W_OK | X_OK) == 0 || access("/run", W_OK | X_OK) == 0)
        snprintf(out, CFG_TEXT, "/run/attnd");
    else
        snprintf(out, CFG_TEXT, "/tmp/attnd-%u", (unsigned)getuid());
}
