/* op_buffer.c: CreateBuffer, FreeBuffer: memory both processes map. */
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/op.h"
#include "daemon/session.h"

enum { BUFFER_MEMORY = 0, BUFFER_EVENT = 1 };

attnd_status srv_check_create_buffer(srv_engine *engine, srv_request *request, attnd_err *err)
{
    const msg_create_buffer *msg = &request->msg.create_buffer;
    srv_session *session = request->session;
    uint64_t most = (uint64_t)engine->config->session_max_buffer;
    if (msg->kind != BUFFER_MEMORY)
        return attnd_fail(err, ATTND_UNSUPPORTED, "kind = %u: this backend has no events",
                          msg->kind);
    if (!msg->bytes)
        return attnd_fail(err, ATTND_BAD_LENGTH, "bytes = 0: a buffer has at least one");
    if (msg->bytes > most)
        return attnd_fail(err, ATTND_TOO_LARGE,
                          "bytes = %" PRIu64 ": session.max_buffer allows %" PRIu64
                          " for all buffers of a session",
                          msg->bytes, most);
    if (msg->bytes > most - session->buffer_bytes)
        return attnd_fail(err, ATTND_NO_ROOM,
                          "bytes = %" PRIu64 ": %" PRIu64 " of %" PRIu64
                          " bytes of buffers are taken by this session",
                          msg->bytes, session->buffer_bytes, most);
    unsigned n = HASH_COUNT(session->buffers);
    if (n >= (uint64_t)engine->config->session_max_buffers)
        return attnd_fail(err, ATTND_NO_ROOM, "buffers = %u: the most a session may have", n);
    return ATTND_OK;
}

/* A named one does not outlive the engine: the keeper does not get it. */
static attnd_status make_memory(srv_engine *engine, const msg_create_buffer *msg,
                                srv_buffer *buffer, attnd_err *err)
{
    if (!msg->named)
        return srv_memory_make(engine, "buffer", buffer->handle, 0, msg->bytes, &buffer->memory,
                               err);
    TRY(srv_shm_name(buffer->shm_name, err));
    return ker_memory_make_named(engine->device, buffer->shm_name, msg->bytes, &buffer->memory,
                                 err);
}

attnd_status srv_make_create_buffer(srv_engine *engine, srv_request *request, attnd_err *err)
{
    const msg_create_buffer *msg = &request->msg.create_buffer;
    srv_buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer)
        return attnd_fail(err, ATTND_NO_ROOM, "bytes = %" PRIu64 ": no memory", msg->bytes);
    buffer->handle = ++engine->last_handle;
    buffer->session = request->session;
    HASH_ADD(hh, request->session->buffers, handle, sizeof buffer->handle, buffer);
    if (!buffer->hh.tbl) {
        free(buffer);
        return attnd_fail(err, ATTND_NO_ROOM, "bytes = %" PRIu64 ": no memory", msg->bytes);
    }
    attnd_status status = make_memory(engine, msg, buffer, err);
    if (status != ATTND_OK) {
        HASH_DEL(request->session->buffers, buffer);
        free(buffer);
        return status;
    }
    request->made = buffer;
    return ATTND_OK;
}

void srv_run_create_buffer(srv_engine *engine, srv_request *request)
{
    srv_session *session = request->session;
    srv_buffer *buffer = request->made;
    session->buffer_bytes += buffer->memory.bytes;
    srv_stats_gauge(SRV_GAUGE_buffers, 1);
    srv_stats_gauge(SRV_GAUGE_buffer_bytes, (int64_t)buffer->memory.bytes);
    request->reply.create_buffer =
        (msg_create_buffer_reply){.buffer = buffer->handle,
                                  .bytes = buffer->memory.bytes,
                                  .shm_name = buffer->shm_name[0] ? buffer->shm_name : NULL};
}

attnd_status srv_check_free_buffer(srv_engine *engine, srv_request *request, attnd_err *err)
{
    srv_buffer *buffer;
    return srv_buffer_get(request->session, request->msg.free_buffer, "buffer", &buffer, err);
}

void srv_run_free_buffer(srv_engine *engine, srv_request *request)
{
    srv_buffer *buffer;
    HASH_FIND(hh, request->session->buffers, &request->msg.free_buffer, sizeof(uint64_t), buffer);
    srv_buffer_free(engine, buffer);
}
