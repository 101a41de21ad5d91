/* control_methods.c: the methods of methods.def, but for kernels.explain and trace.*. */
#include "daemon/control_methods.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/stats.h"

/* ---- The table --------------------------------------------------------------------------------
 */

typedef enum method_id {
#define METHOD(id, name, command, ask, summary) METHOD_##id,
#define PARAM(id, name, type, presence, summary)
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
    N_METHODS,
} method_id;

typedef enum presence { OPTIONAL, REQUIRED } presence;

typedef struct param {
    method_id method;
    const char *name;
    srv_param_type type;
    presence presence;
    const char *summary;
} param;

static const param params[] = {
#define METHOD(id, name, command, ask, summary)
#define PARAM(id, name, type, presence, summary)                                                   \
    {METHOD_##id, #name, SRV_PARAM_##type, presence, summary},
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
};

enum { N_PARAMS = sizeof params / sizeof *params };

#define METHOD(id, name, command, ask, summary)                                                    \
    static attnd_status run_##id(srv_call *call, attnd_err *err);
#define PARAM(id, name, type, presence, summary)
#include "daemon/methods.def"
#undef METHOD
#undef PARAM

static bool ask_never(const srv_call *call, srv_snapshot *snapshot)
{
    return false;
}

static bool ask_lists(const srv_call *call, srv_snapshot *snapshot)
{
    return true;
}

static bool ask_layer(const srv_call *call, srv_snapshot *snapshot)
{
    return srv_explain_ask(call, snapshot);
}

static bool ask_trace_start(const srv_call *call, srv_snapshot *snapshot)
{
    return srv_trace_ask_start(call, snapshot);
}

static bool ask_trace_stop(const srv_call *call, srv_snapshot *snapshot)
{
    return srv_trace_ask_stop(call, snapshot);
}

static bool ask_trace_page(const srv_call *call, srv_snapshot *snapshot)
{
    return srv_trace_ask_page(call, snapshot);
}

static const srv_method methods[N_METHODS] = {
#define METHOD(id, name, command, ask, summary) {name, summary, ask_##ask, run_##id},
#define PARAM(id, name, type, presence, summary)
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
};

static const char *type_name(srv_param_type type)
{
    static const char *const names[] = {[SRV_PARAM_HANDLE] = "handle",
                                        [SRV_PARAM_INT] = "int",
                                        [SRV_PARAM_INTS] = "ints",
                                        [SRV_PARAM_TEXT] = "text"};
    return names[type];
}

/* ---- Names ------------------------------------------------------------------------------------
 */

enum { LONGEST_NAME = 32 };

/* Insertions, deletions and replacements from a to b; names longer than LONGEST_NAME are cut. */
static size_t name_distance(const char *a, const char *b)
{
    size_t n = strnlen(b, LONGEST_NAME), row[LONGEST_NAME + 1];
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; i <= LONGEST_NAME && a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[n];
}

/* Keeps the nearer of two names to wanted. */
static void keep_nearest(const char *wanted, const char *name, const char **nearest)
{
    if (!*nearest || name_distance(wanted, name) < name_distance(wanted, *nearest))
        *nearest = name;
}

const srv_method *srv_method_find(const char *name, const char **nearest)
{
    *nearest = NULL;
    for (size_t i = 0; i < N_METHODS; i++) {
        if (strcmp(methods[i].name, name) == 0)
            return &methods[i];
        keep_nearest(name, methods[i].name, nearest);
    }
    return NULL;
}

/* ---- Parameters -------------------------------------------------------------------------------
 */

static const param *find_param(method_id method, const char *name, const char **nearest)
{
    *nearest = NULL;
    for (size_t i = 0; i < N_PARAMS; i++) {
        if (params[i].method != method)
            continue;
        if (strcmp(params[i].name, name) == 0)
            return &params[i];
        keep_nearest(name, params[i].name, nearest);
    }
    return NULL;
}

static attnd_status check_type(const param *p, const cJSON *item, attnd_err *err)
{
    static const char *const wanted[] = {
        [SRV_PARAM_HANDLE] = "a 64-bit number as a string of digits",
        [SRV_PARAM_INT] = "a whole number, 0 .. 2147483647",
        [SRV_PARAM_INTS] = "an array of whole numbers, 0 .. 2147483647",
        [SRV_PARAM_TEXT] = "a string",
    };
    int64_t whole;
    uint64_t handle;
    bool right = false;
    char brief[64];
    if (p->type == SRV_PARAM_INTS && cJSON_IsArray(item)) {
        size_t i = 0;
        const cJSON *element;
        cJSON_ArrayForEach(element, item)
        {
            if (!srv_json_whole(element, 0, INT32_MAX, &whole)) {
                srv_json_brief(element, brief, sizeof brief);
                return attnd_fail(err, ATTND_BAD_MESSAGE,
                                  "params.%s[%zu] = %s: a whole number, 0 .. 2147483647", p->name,
                                  i, brief);
            }
            i++;
        }
        return ATTND_OK;
    }
    if (p->type == SRV_PARAM_HANDLE)
        right = srv_json_handle(item, &handle);
    else if (p->type == SRV_PARAM_INT)
        right = srv_json_whole(item, 0, INT32_MAX, &whole);
    else if (p->type == SRV_PARAM_TEXT)
        right = cJSON_IsString(item);
    if (right)
        return ATTND_OK;
    srv_json_brief(item, brief, sizeof brief);
    return attnd_fail(err, ATTND_BAD_MESSAGE, "params.%s = %s: %s", p->name, brief,
                      wanted[p->type]);
}

static attnd_status check_name(const srv_method *method, const cJSON *all, const cJSON *item,
                               attnd_err *err)
{
    const char *nearest;
    if (!find_param((method_id)(method - methods), item->string, &nearest)) {
        if (!nearest)
            return attnd_fail(err, ATTND_BAD_MESSAGE,
                              "params.%.48s = given: %s takes no parameters", item->string,
                              method->name);
        return attnd_fail(err, ATTND_BAD_MESSAGE,
                          "params.%.48s = given: %s takes none of this name; the nearest is %s",
                          item->string, method->name, nearest);
    }
    /* cJSON keeps both and finds the first. */
    if (cJSON_GetObjectItemCaseSensitive(all, item->string) != item)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "params.%s = given twice: once is right",
                          item->string);
    return ATTND_OK;
}

attnd_status srv_method_check(const srv_method *method, const cJSON *all, attnd_err *err)
{
    const cJSON *item;
    const char *nearest;
    method_id id = (method_id)(method - methods);
    cJSON_ArrayForEach(item, all)
    {
        TRY(check_name(method, all, item, err));
        TRY(check_type(find_param(id, item->string, &nearest), item, err));
    }
    for (size_t i = 0; i < N_PARAMS; i++)
        if (params[i].method == id && params[i].presence == REQUIRED &&
            !cJSON_GetObjectItemCaseSensitive(all, params[i].name))
            return attnd_fail(err, ATTND_BAD_MESSAGE, "params.%s = absent: %s needs it",
                              params[i].name, method->name);
    return ATTND_OK;
}

bool srv_call_has(const srv_call *call, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(call->params, name) != NULL;
}

int64_t srv_call_int(const srv_call *call, const char *name, int64_t absent)
{
    int64_t value = absent;
    srv_json_whole(cJSON_GetObjectItemCaseSensitive(call->params, name), 0, INT32_MAX, &value);
    return value;
}

const char *srv_call_text(const srv_call *call, const char *name, const char *absent)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(call->params, name));
    return text ? text : absent;
}

uint64_t srv_call_handle(const srv_call *call, const char *name, uint64_t absent)
{
    uint64_t value = absent;
    srv_json_handle(cJSON_GetObjectItemCaseSensitive(call->params, name), &value);
    return value;
}

const cJSON *srv_call_ints(const srv_call *call, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(call->params, name);
}

/* ---- rpc, server ------------------------------------------------------------------------------
 */

static attnd_status run_rpc_discover(srv_call *call, attnd_err *err)
{
    srv_json_text(call->result, "numbers",
                  "handles, instance, bytes and flops are strings of digits (they may pass 2^53); "
                  "every other number is a number");
    cJSON *list = srv_json_array(call->result, "methods");
    for (size_t i = 0; i < N_METHODS; i++) {
        cJSON *method = srv_json_object(list, NULL);
        srv_json_text(method, "name", methods[i].name);
        srv_json_text(method, "summary", methods[i].summary);
        cJSON *its = srv_json_array(method, "params");
        for (size_t j = 0; j < N_PARAMS; j++) {
            if (params[j].method != (method_id)i)
                continue;
            cJSON *p = srv_json_object(its, NULL);
            srv_json_text(p, "name", params[j].name);
            srv_json_text(p, "type", type_name(params[j].type));
            srv_json_flag(p, "required", params[j].presence == REQUIRED);
            srv_json_text(p, "summary", params[j].summary);
        }
    }
    return ATTND_OK;
}

static attnd_status run_server_ping(srv_call *call, attnd_err *err)
{
    srv_json_wide(call->result, "instance", call->deps->instance);
    return ATTND_OK;
}

static attnd_status run_server_ready(srv_call *call, attnd_err *err)
{
    char why[128] = "";
    bool ready = call->deps->is_ready(call->deps->server, why);
    srv_json_flag(call->result, "ready", ready);
    srv_json_text(call->result, "why", ready ? "" : why);
    return ATTND_OK;
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static attnd_status run_server_info(srv_call *call, attnd_err *err)
{
    ker_device_info info;
    ker_device_describe(call->deps->device, &info);
    cJSON *at = call->result;
    srv_json_text(at, "version", ATTND_VERSION);
    srv_json_text(at, "commit", ATTND_COMMIT);
    srv_json_count(at, "protocol", 1);
    srv_json_wide(at, "instance", call->deps->instance);
    srv_json_count(at, "pid", getpid());
    srv_json_count(at, "uptime_ms", (int64_t)(now_ms() - call->opened_ms));
    srv_json_text(at, "runtime_dir", call->deps->runtime_dir);
    TRY(run_server_ready(call, err));
    cJSON *device = srv_json_object(at, "device");
    srv_json_text(device, "backend", info.backend);
    srv_json_text(device, "name", info.name);
    srv_json_text(device, "isa", info.isa);
    srv_json_count(device, "n_threads", info.n_threads);
    srv_json_count(device, "n_slots", info.n_slots);
    srv_json_wide(device, "workspace_bytes", info.workspace_bytes);
    cJSON *ops = srv_json_array(at, "ops");
#define SERVED(op, needs) srv_json_text(ops, NULL, #op);
#define MAKES(op, needs) SERVED(op, needs)
#define UNSERVED(op)
#include "daemon/ops.def"
#undef SERVED
#undef MAKES
#undef UNSERVED
    return ATTND_OK;
}

static attnd_status run_server_drain(srv_call *call, attnd_err *err)
{
    srv_log(SRV_INFO, "control  method=server.drain");
    call->after_reply = call->deps->drain;
    srv_json_flag(call->result, "draining", true);
    return ATTND_OK;
}

static attnd_status run_server_shutdown(srv_call *call, attnd_err *err)
{
    srv_log(SRV_INFO, "control  method=server.shutdown");
    call->after_reply = call->deps->shutdown;
    srv_json_flag(call->result, "leaving", true);
    return ATTND_OK;
}

/* ---- stats ------------------------------------------------------------------------------------
 */

static bool ends_in_bytes(const char *name)
{
    size_t n = strlen(name), suffix = strlen("bytes");
    return n >= suffix && strcmp(name + n - suffix, "bytes") == 0;
}

static void add_number(cJSON *at, const char *name, int64_t number)
{
    if (ends_in_bytes(name))
        srv_json_wide(at, name, (uint64_t)number);
    else
        srv_json_count(at, name, number);
}

static void add_quantiles(cJSON *at, const char *name, srv_quantiles q)
{
    cJSON *o = srv_json_object(at, name);
    srv_json_count(o, "count", (int64_t)q.count);
    srv_json_real(o, "sum", q.sum_us);
    srv_json_real(o, "p50", q.p50_us);
    srv_json_real(o, "p90", q.p90_us);
    srv_json_real(o, "p99", q.p99_us);
    srv_json_real(o, "max", q.max_us);
}

static const attnd_status statuses[] = {
#define X(name, number, mender, text) ATTND_##name,
    ATTND_STATUS_MAP(X)
#undef X
};

static void add_op(cJSON *list, msg_op op, const char *name)
{
    uint64_t n = 0;
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        n += srv_stats_op_status(op, statuses[i]);
    if (n == 0)
        return;
    cJSON *at = srv_json_object(list, NULL);
    srv_json_text(at, "op", name);
    srv_json_count(at, "count", (int64_t)n);
    cJSON *codes = srv_json_object(at, "codes");
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        uint64_t m = srv_stats_op_status(op, statuses[i]);
        if (m)
            srv_json_count(codes, attnd_status_name(statuses[i]), (int64_t)m);
    }
    for (int stage = 0; stage < SRV_N_STAGES; stage++) {
        srv_quantiles q = srv_stats_op(op, (srv_stage)stage);
        char key[32];
        snprintf(key, sizeof key, "%s_us", srv_stage_name((srv_stage)stage));
        if (q.count)
            add_quantiles(at, key, q);
    }
}

static attnd_status run_stats_get(srv_call *call, attnd_err *err)
{
    cJSON *at = srv_json_object(call->result, "counters");
#define X(name, help) add_number(at, #name, (int64_t)srv_stats_counter(SRV_COUNT_##name));
    SRV_COUNTER_MAP(X)
#undef X
    at = srv_json_object(call->result, "gauges");
#define X(name, help) add_number(at, #name, srv_stats_gauge_value(SRV_GAUGE_##name));
    SRV_GAUGE_MAP(X)
#undef X
    at = srv_json_array(call->result, "ops");
    add_op(at, MSG_OP_NONE, "none");
#define X(name, number, Name) add_op(at, MSG_OP_##name, #name);
    MSG_OP_MAP(X)
#undef X
    at = srv_json_array(call->result, "kernels");
    for (size_t i = 0; i < ker_n_kernels(); i++) {
        srv_kernel_stats stats = srv_stats_kernel(i);
        if (!stats.launches)
            continue;
        cJSON *o = srv_json_object(at, NULL);
        srv_json_text(o, "kernel", ker_kernel_name(ker_kernel_at(i)));
        srv_json_count(o, "launches", (int64_t)stats.launches);
        srv_json_wide_real(o, "bytes", stats.bytes);
        srv_json_wide_real(o, "flops", stats.flops);
        add_quantiles(o, "device_us", stats.device);
    }
    return ATTND_OK;
}

static attnd_status run_stats_reset(srv_call *call, attnd_err *err)
{
    srv_log(SRV_INFO, "control  method=stats.reset");
    srv_stats_reset();
    srv_json_flag(call->result, "reset", true);
    return ATTND_OK;
}

/* ---- Lists of what the engine thread owns -----------------------------------------------------
 */

static attnd_status run_models_list(srv_call *call, attnd_err *err)
{
    cJSON *list = srv_json_array(call->result, "models");
    for (size_t i = 0; i < call->snapshot->n_models; i++) {
        const srv_model_view *view = &call->snapshot->models[i];
        cJSON *at = srv_json_object(list, NULL);
        srv_json_wide(at, "model", view->handle);
        srv_json_text(at, "name", view->name);
        srv_json_count(at, "session", view->session);
        srv_json_count(at, "n_layers", view->n_layers);
        srv_json_count(at, "n_pools", view->n_pools);
    }
    return ATTND_OK;
}

static attnd_status run_pools_list(srv_call *call, attnd_err *err)
{
    cJSON *list = srv_json_array(call->result, "pools");
    for (size_t i = 0; i < call->snapshot->n_pools; i++) {
        const srv_pool_view *view = &call->snapshot->pools[i];
        cJSON *at = srv_json_object(list, NULL);
        srv_json_wide(at, "model", view->model);
        srv_json_text(at, "name", view->name);
        srv_json_count(at, "session", view->session);
        srv_json_text(at, "owner", view->owner == KV_OWNER_SERVER ? "server" : "client");
        srv_json_text(at, "dtype", attnd_dtype_name(view->dtype));
        srv_json_text(at, "layout", view->layout == ATTND_LAYOUT_NHD ? "nhd" : "hnd");
        srv_json_count(at, "n_layers", view->n_layers);
        srv_json_count(at, "block_size", view->block_size);
        srv_json_count(at, "n_blocks", view->n_blocks);
        srv_json_count(at, "n_free", view->n_free);
        srv_json_count(at, "max_kv_len", view->max_kv_len);
        srv_json_wide(at, "block_bytes", view->block_bytes);
        srv_json_wide(at, "bytes", view->bytes);
    }
    return ATTND_OK;
}

static attnd_status run_sessions_list(srv_call *call, attnd_err *err)
{
    cJSON *list = srv_json_array(call->result, "sessions");
    for (size_t i = 0; i < call->snapshot->n_sessions; i++) {
        const srv_session_view *view = &call->snapshot->sessions[i];
        cJSON *at = srv_json_object(list, NULL);
        srv_json_count(at, "session", view->ordinal);
        srv_json_text(at, "client", view->client);
        srv_json_count(at, "age_ms", (int64_t)view->age_ms);
        srv_json_flag(at, "leased", view->leased);
        srv_json_count(at, "n_requests", (int64_t)view->n_requests);
        srv_json_count(at, "n_in_flight", view->n_in_flight);
        srv_json_count(at, "n_models", view->n_models);
        srv_json_count(at, "n_buffers", view->n_buffers);
        srv_json_wide(at, "buffer_bytes", view->buffer_bytes);
        srv_json_wide(at, "pool_bytes", view->pool_bytes);
    }
    return ATTND_OK;
}

static attnd_status run_buffers_list(srv_call *call, attnd_err *err)
{
    cJSON *list = srv_json_array(call->result, "buffers");
    for (size_t i = 0; i < call->snapshot->n_buffers; i++) {
        const srv_buffer_view *view = &call->snapshot->buffers[i];
        cJSON *at = srv_json_object(list, NULL);
        srv_json_wide(at, "buffer", view->handle);
        srv_json_count(at, "session", view->session);
        srv_json_wide(at, "bytes", view->bytes);
        srv_json_count(at, "n_in_use", view->n_in_use);
        srv_json_flag(at, "freed", view->freed);
    }
    return ATTND_OK;
}

static attnd_status run_plans_list(srv_call *call, attnd_err *err)
{
    cJSON *list = srv_json_array(call->result, "plans");
    for (size_t i = 0; i < call->snapshot->n_plans; i++) {
        const srv_plan_view *view = &call->snapshot->plans[i];
        cJSON *at = srv_json_object(list, NULL);
        srv_json_wide(at, "plan", view->handle);
        srv_json_wide(at, "model", view->model);
        srv_json_count(at, "session", view->session);
        srv_json_count(at, "version", (int64_t)view->version);
        srv_json_count(at, "n_seqs", view->n_seqs);
        srv_json_count(at, "n_versions", view->n_versions);
    }
    return ATTND_OK;
}

/* ---- kernels, config, log ---------------------------------------------------------------------
 */

static attnd_status run_kernels_list(srv_call *call, attnd_err *err)
{
    cJSON *list = srv_json_array(call->result, "kernels");
    for (size_t i = 0; i < ker_n_kernels(); i++) {
        const ker_kernel *kernel = ker_kernel_at(i);
        const char *keys[16], *values[16];
        size_t n = ker_kernel_describe(kernel, keys, values, 16);
        cJSON *at = srv_json_object(list, NULL);
        srv_json_text(at, "kernel", ker_kernel_name(kernel));
        for (size_t j = 0; j < n; j++)
            srv_json_text(at, keys[j], values[j]);
    }
    return ATTND_OK;
}

static attnd_status run_kernels_explain(srv_call *call, attnd_err *err)
{
    return srv_explain_run(call, err);
}

static void add_key(const srv_call *call, cJSON *at, const char *key)
{
    char value[CFG_TEXT];
    /* The one key that a method changes: the config file's word no longer counts. */
    if (strcmp(key, "log.level") == 0)
        srv_json_text(at, key, srv_log_level_name(srv_log_level()));
    else if (cfg_get(call->deps->config, key, value, sizeof value))
        srv_json_text(at, key, value);
}

static attnd_status run_config_get(srv_call *call, attnd_err *err)
{
    const char *wanted = srv_call_text(call, "key", NULL), *nearest = NULL;
    bool found = false;
    cJSON *at = srv_json_object(call->result, "config");
    for (size_t i = 0; cfg_key_at(i); i++) {
        const char *key = cfg_key_at(i);
        if (wanted && strcmp(wanted, key) != 0) {
            keep_nearest(wanted, key, &nearest);
            continue;
        }
        found = true;
        add_key(call, at, key);
    }
    if (!found)
        return attnd_fail(err, ATTND_BAD_MESSAGE,
                          "params.key = %.48s: no such key; the nearest is %s", wanted, nearest);
    return ATTND_OK;
}

/* The lists of an answer, by whether a change is in force. */
typedef struct reload_lists {
    cJSON *applied, *waits;
} reload_lists;

static void add_change(void *arg, const char *key, bool is_applied, const char *was,
                       const char *now)
{
    const reload_lists *lists = arg;
    cJSON *at = srv_json_object(is_applied ? lists->applied : lists->waits, NULL);
    srv_json_text(at, "key", key);
    srv_json_text(at, "was", was);
    srv_json_text(at, "now", now);
}

static attnd_status run_config_reload(srv_call *call, attnd_err *err)
{
    reload_lists lists = {.applied = srv_json_array(call->result, "applied"),
                          .waits = srv_json_array(call->result, "needs_restart")};
    return call->deps->reload(call->deps->server, add_change, &lists, err);
}

static attnd_status run_log_level(srv_call *call, attnd_err *err)
{
    const char *level = srv_call_text(call, "level", NULL);
    const char *was = srv_log_level_name(srv_log_level());
    if (level && !srv_log_set_level(level))
        return attnd_fail(err, ATTND_BAD_MESSAGE,
                          "params.level = %.48s: error, warn, info or debug", level);
    if (level)
        srv_log(SRV_INFO, "control  method=log.level level=%s was=%s", level, was);
    srv_json_text(call->result, "level", srv_log_level_name(srv_log_level()));
    srv_json_text(call->result, "was", was);
    return ATTND_OK;
}

static attnd_status run_trace_start(srv_call *call, attnd_err *err)
{
    return srv_trace_run_start(call, err);
}

static attnd_status run_trace_stop(srv_call *call, attnd_err *err)
{
    return srv_trace_run_stop(call, err);
}

static attnd_status run_trace_page(srv_call *call, attnd_err *err)
{
    return srv_trace_run_page(call, err);
}

static attnd_status need_capture(const srv_call *call, attnd_err *err)
{
    if (!call->deps->capture)
        return attnd_fail(err, ATTND_UNSUPPORTED, "capture: this server records nothing");
    return ATTND_OK;
}

static attnd_status run_capture_start(srv_call *call, attnd_err *err)
{
    const char *tensors = srv_call_text(call, "tensors", "data");
    srv_capture_order order = {.n = (uint32_t)srv_call_int(call, "n", 0),
                               .session = (uint32_t)srv_call_int(call, "session", 0),
                               .with_data = strcmp(tensors, "data") == 0,
                               .dir = srv_call_text(call, "into", NULL)};
    srv_capture_counts counts;
    TRY(need_capture(call, err));
    if (!order.with_data && strcmp(tensors, "hash") != 0)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "params.tensors = %.48s: data or hash", tensors);
    TRY(srv_capture_start(call->deps->capture, &order, &counts, err));
    srv_log(SRV_INFO, "control  method=capture.start n=%u tensors=%s session=%u dir=%s", order.n,
            tensors, order.session, counts.dir);
    srv_json_count(call->result, "requests", order.n);
    srv_json_text(call->result, "tensors", tensors);
    srv_json_text(call->result, "dir", counts.dir);
    return ATTND_OK;
}

static attnd_status run_capture_stop(srv_call *call, attnd_err *err)
{
    srv_capture_counts counts;
    TRY(need_capture(call, err));
    srv_capture_stop(call->deps->capture, &counts);
    srv_json_count(call->result, "written", counts.written);
    srv_json_count(call->result, "pending", counts.pending);
    srv_json_count(call->result, "dropped", counts.dropped);
    srv_json_count(call->result, "failed", counts.failed);
    srv_json_count(call->result, "left", counts.left);
    srv_json_text(call->result, "dir", counts.dir);
    return ATTND_OK;
}
