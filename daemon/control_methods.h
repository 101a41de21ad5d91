/* control_methods.h: what a method is to control.c: a row of methods.def with its function. Inside
 * control*.c only.
 */
#ifndef ATTND_DAEMON_CONTROL_METHODS_H
#define ATTND_DAEMON_CONTROL_METHODS_H

#include "daemon/control.h"
#include "daemon/control_json.h"

typedef enum srv_param_type {
    SRV_PARAM_HANDLE,
    SRV_PARAM_INT,
    SRV_PARAM_INTS,
    SRV_PARAM_TEXT,
} srv_param_type;

/* One call in work, on the loop thread. */
typedef struct srv_call {
    const srv_control_deps *deps;
    uint64_t opened_ms;                /* when the control socket opened, CLOCK_MONOTONIC */
    const cJSON *params;               /* an object checked against the method's rows, or NULL */
    const srv_snapshot *snapshot;      /* what the engine filled, when ask said so; else NULL */
    cJSON *result;                     /* an object, to be filled by run */
    void (*after_reply)(void *server); /* called once the reply is written; NULL: nothing */
} srv_call;

typedef struct srv_method {
    const char *name;
    const char *summary;
    /* True: run needs the engine's snapshot; sets what it should hold. */
    bool (*ask)(const srv_call *call, srv_snapshot *snapshot);
    attnd_status (*run)(srv_call *call, attnd_err *err);
} srv_method;

/* NULL when there is none of this name; *nearest is then the name that looks most like it. */
const srv_method *srv_method_find(const char *name, const char **nearest);

/* Names known, types right, none missing, none twice: refuses BAD_MESSAGE. */
attnd_status srv_method_check(const srv_method *method, const cJSON *all, attnd_err *err);

/* A parameter's value, or what is said for an absent one. */
int64_t srv_call_int(const srv_call *call, const char *name, int64_t absent);
const char *srv_call_text(const srv_call *call, const char *name, const char *absent);
uint64_t srv_call_handle(const srv_call *call, const char *name, uint64_t absent);
const cJSON *srv_call_ints(const srv_call *call, const char *name); /* NULL: absent */
bool srv_call_has(const srv_call *call, const char *name);

/* control_explain.c: the method kernels.explain. */
bool srv_explain_ask(const srv_call *call, srv_snapshot *snapshot);
attnd_status srv_explain_run(srv_call *call, attnd_err *err);

/* control_trace.c: the methods trace.start, trace.stop, trace.export. */
bool srv_trace_ask_start(const srv_call *call, srv_snapshot *snapshot);
bool srv_trace_ask_stop(const srv_call *call, srv_snapshot *snapshot);
bool srv_trace_ask_page(const srv_call *call, srv_snapshot *snapshot);
attnd_status srv_trace_run_start(srv_call *call, attnd_err *err);
attnd_status srv_trace_run_stop(srv_call *call, attnd_err *err);
attnd_status srv_trace_run_page(srv_call *call, attnd_err *err);

#endif
