/* control_trace.c: the methods trace.*: a ring of spans as Chrome trace events.
 *
 * A span stands on the row of its request, and once more on that of the thread that was busy with
 * it, so that rows of both kinds nest. Times are microseconds since the trace began.
 */
#include <stdio.h>

#include "daemon/control_methods.h"
#include "daemon/log.h"

/* Rows of a viewer: a process for each kind, its threads are the rows. */
enum { ROWS_REQUESTS = 1, ROWS_THREADS, ROWS_DEVICE };
typedef enum thread { THREAD_NONE, THREAD_TRANSPORT, THREAD_ENGINE } thread;

static const struct {
    const char *name;
    thread thread;
} kinds[] = {
#define X(name, thread) {#name, THREAD_##thread},
    SRV_TRACE_MAP(X)
#undef X
};

/* ---- Start and stop ---------------------------------------------------------------------------
 */

static int64_t events_of(const srv_call *call)
{
    return srv_call_int(call, "events", SRV_TRACE_DEFAULT);
}

/* Without a snapshot run refuses what was asked for. */
bool srv_trace_ask_start(const srv_call *call, srv_snapshot *snapshot)
{
    int64_t n = events_of(call);
    if (n < SRV_TRACE_LEAST || n > SRV_TRACE_MOST)
        return false;
    srv_trace_look_init(&snapshot->trace, SRV_TRACE_START, (size_t)n);
    return true;
}

attnd_status srv_trace_run_start(srv_call *call, attnd_err *err)
{
    int64_t n = events_of(call);
    if (!call->snapshot)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "params.events = %lld: %d..%d", (long long)n,
                          SRV_TRACE_LEAST, SRV_TRACE_MOST);
    if (call->snapshot->trace.was_on)
        return attnd_fail(err, ATTND_BAD_COMBINATION, "trace: one is on; stop it first");
    srv_log(SRV_INFO, "control  method=trace.start events=%lld", (long long)n);
    srv_json_count(call->result, "events", n);
    srv_json_wide(call->result, "bytes",
                  sizeof(srv_trace_ring) + (size_t)n * sizeof(srv_trace_event));
    return ATTND_OK;
}

static uint64_t count_dropped(const srv_trace_look *look)
{
    return look->n_recorded > look->room ? look->n_recorded - look->room : 0;
}

bool srv_trace_ask_stop(const srv_call *call, srv_snapshot *snapshot)
{
    return srv_trace_look_init(&snapshot->trace, SRV_TRACE_STOP, 0);
}

attnd_status srv_trace_run_stop(srv_call *call, attnd_err *err)
{
    const srv_trace_look *look = &call->snapshot->trace;
    srv_log(SRV_INFO, "control  method=trace.stop");
    srv_json_flag(call->result, "was_on", look->was_on);
    srv_json_wide(call->result, "recorded", look->n_recorded);
    srv_json_wide(call->result, "dropped", count_dropped(look));
    return ATTND_OK;
}

/* ---- Export -----------------------------------------------------------------------------------
 */

/* {"name": what, "args": {"name": text}}: the name of a process or of a thread. */
static void add_name(cJSON *events, const char *what, uint32_t pid, uint32_t tid, const char *text)
{
    cJSON *at = srv_json_object(events, NULL);
    srv_json_text(at, "name", what);
    srv_json_text(at, "ph", "M");
    srv_json_count(at, "pid", pid);
    srv_json_count(at, "tid", tid);
    srv_json_text(srv_json_object(at, "args"), "name", text);
}

static void add_names(cJSON *events)
{
    add_name(events, "process_name", ROWS_REQUESTS, 0, "requests (a row for each in flight)");
    add_name(events, "process_name", ROWS_THREADS, 0, "threads");
    add_name(events, "process_name", ROWS_DEVICE, 0, "device (a row for each session's stream)");
    add_name(events, "thread_name", ROWS_THREADS, THREAD_TRANSPORT, "transport");
    add_name(events, "thread_name", ROWS_THREADS, THREAD_ENGINE, "engine");
}

/* The kernels of both phases, each once; a merge has a name of its own. */
static size_t kernels_of(const srv_trace_event *event, const char *names[2])
{
    size_t n = 0;
    for (int phase = 0; phase < 2; phase++)
        if (event->kernels[phase] && (!n || event->kernels[phase] != event->kernels[0]))
            names[n++] = ker_kernel_name(event->kernels[phase]);
    if (n == 0)
        names[n++] = "merge";
    return n;
}

static void add_args(cJSON *at, const srv_trace_event *event)
{
    const char *kernels[2];
    srv_json_wide(at, "request", event->request);
    srv_json_count(at, "session", event->session);
    srv_json_text(at, "op", msg_op_name((msg_op)event->op));
    if (event->kind == SRV_TRACE_total) {
        srv_json_count(at, "launches", event->part);
        if (event->reason)
            srv_json_text(at, "refused", attnd_reason_name((attnd_reason)event->reason));
    }
    if (event->kind == SRV_TRACE_kernel) {
        cJSON *list = srv_json_array(at, "kernels");
        for (size_t i = 0, n = kernels_of(event, kernels); i < n; i++)
            srv_json_take(list, NULL, cJSON_CreateString(kernels[i]));
        srv_json_count(at, "launch", event->part);
    }
}

static void name_of(const srv_trace_event *event, char *out, size_t bytes)
{
    const char *kernels[2];
    if (event->kind == SRV_TRACE_kernel) {
        size_t n = kernels_of(event, kernels);
        snprintf(out, bytes, "%s%s%s", kernels[0], n > 1 ? " + " : "", n > 1 ? kernels[1] : "");
    } else {
        snprintf(out, bytes, "%s",
                 event->kind == SRV_TRACE_total ? msg_op_name((msg_op)event->op)
                                                : kinds[event->kind].name);
    }
}

static void add_span(cJSON *events, const srv_trace_look *look, const srv_trace_event *event,
                     uint32_t pid, uint32_t tid)
{
    char name[160];
    cJSON *at = srv_json_object(events, NULL);
    name_of(event, name, sizeof name);
    srv_json_text(at, "name", name);
    srv_json_text(at, "cat", kinds[event->kind].name);
    srv_json_text(at, "ph", "X");
    srv_json_count(at, "pid", pid);
    srv_json_count(at, "tid", tid);
    srv_json_real(at, "ts", (double)(event->begin_ns - look->started_ns) / 1000);
    srv_json_real(at, "dur", (double)event->ns / 1000);
    add_args(srv_json_object(at, "args"), event);
}

bool srv_trace_ask_page(const srv_call *call, srv_snapshot *snapshot)
{
    srv_trace_look_init(&snapshot->trace, SRV_TRACE_PAGE, 0);
    snapshot->trace.from = srv_call_handle(call, "from", 0);
    return true;
}

attnd_status srv_trace_run_page(srv_call *call, attnd_err *err)
{
    const srv_trace_look *look = &call->snapshot->trace;
    cJSON *events = srv_json_array(call->result, "traceEvents");
    if (srv_call_handle(call, "from", 0) == 0)
        add_names(events);
    for (size_t i = 0; i < look->n; i++) {
        const srv_trace_event *event = &look->events[i];
        if (event->kind == SRV_TRACE_kernel) {
            add_span(events, look, event, ROWS_DEVICE, event->session);
            continue;
        }
        add_span(events, look, event, ROWS_REQUESTS, event->lane + 1);
        if (kinds[event->kind].thread)
            add_span(events, look, event, ROWS_THREADS, kinds[event->kind].thread);
    }
    srv_json_text(call->result, "displayTimeUnit", "ns");
    cJSON *other = srv_json_object(call->result, "otherData");
    srv_json_text(other, "clock", "CLOCK_MONOTONIC");
    srv_json_wide(other, "started_ns", look->started_ns);
    srv_json_wide(other, "recorded", look->n_recorded);
    srv_json_wide(other, "dropped", count_dropped(look));
    srv_json_wide(call->result, "next", look->from + look->n);
    return ATTND_OK;
}
