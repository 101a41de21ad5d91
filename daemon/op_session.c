/* op_session.c: Ping, Hello, Goodbye. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/op.h"
#include "daemon/session.h"

enum { PROTOCOL = 1 };

attnd_status srv_check_ping(srv_engine *engine, srv_request *request, attnd_err *err)
{
    return ATTND_OK;
}

void srv_run_ping(srv_engine *engine, srv_request *request)
{
}

/* What a client may build on: the served ops and the variants of them. repeats: a request whose id
 * came before gets the first reply and does not run again. */
static const char *const FEATURES[] = {
#define SERVED(op, ops_needs) #op,
#define MAKES(op, ops_needs) #op,
#define UNSERVED(op)
#include "daemon/ops.def"
#undef SERVED
#undef MAKES
#undef UNSERVED
    "buffer.named", "after",       "repeats",    "sync.reply", "mask.causal",
    "mask.full",    "mask.window", "mask.chunk", "softcap",    "rope.neox",
    "rope.gptj",    "kv.f32",      "kv.f16",     "kv.bf16",    "layout.hnd",
    "layout.nhd",   "append",      "slots",      "lse",        "stats",
};

attnd_status srv_check_hello(srv_engine *engine, srv_request *request, attnd_err *err)
{
    const msg_hello *hello = &request->msg.hello;
    if (hello->protocol != PROTOCOL)
        return attnd_fail(err, ATTND_UNSUPPORTED, "protocol = %u: this server speaks %d",
                          hello->protocol, PROTOCOL);
    return srv_name_check("client", hello->client, err);
}

attnd_status srv_make_hello(srv_engine *engine, srv_request *request, attnd_err *err)
{
    srv_session *session;
    TRY(srv_session_make(engine, request->msg.hello.client, &session, err));
    request->made = session;
    return ATTND_OK;
}

void srv_run_hello(srv_engine *engine, srv_request *request)
{
    srv_session *session = request->made;
    srv_session_open(engine, session, request->connection);
    request->session = session;
    request->reply.hello = (msg_hello_reply){
        .session = session->number,
        .version = ATTND_VERSION,
        .backend = engine->device_info.backend,
        .device_name = engine->device_info.name,
        .n_threads = engine->device_info.n_threads,
        .limits = engine->limits,
        .features = FEATURES,
        .n_features = sizeof FEATURES / sizeof *FEATURES,
        .ordinal = session->ordinal,
    };
}

attnd_status srv_check_goodbye(srv_engine *engine, srv_request *request, attnd_err *err)
{
    return ATTND_OK;
}

void srv_run_goodbye(srv_engine *engine, srv_request *request)
{
    srv_session_end(engine, request->session, "goodbye");
}
