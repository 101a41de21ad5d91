/* fuzz_packet.c: packets of one connection to the buffer socket: each is answered, with a
 * descriptor or without, and a lease that was taken is given back with the connection.
 *
 * An input is a list of packets, each behind its length in two bytes, little-endian.
 */
#include "tests/fuzz/loop.h"

#include "daemon/fds.c" /* NOLINT: its functions are called one by one */

#include "tests/fuzz/loop_end.h"
#include "tests/fuzz/mutate.h"

enum { MOST_TURNS = 10 };

static srv_fds server;
static uv_loop_t loop;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    fuzz_world_open();
    server.engine = &fuzz_engine;
    server.socket = server.spare = -1;
    server.room = 4;
    server.poll.loop = &loop;
    server.poll.data = server.async.data = &server;
    server.async.async_cb = on_answered;
    fuzz_async = &server.async;
    pthread_mutex_init(&server.lock, NULL);
    return 0;
}

static void turn(void)
{
    for (int i = 0; i < MOST_TURNS; i++) {
        bool happened = fuzz_loop_turn();
        srv_engine_turn(&fuzz_engine, false);
        if (!happened && !fuzz_is_called)
            return;
    }
}

/* What a packet is answered with. */
static void check_answer(void)
{
    Attnd__V1__FdReply *reply = attnd__v1__fd_reply__unpack(NULL, fuzz_heard.n, fuzz_heard.at);
    FUZZ_CHECK(reply && reply->status);
    bool has_fd = reply->kind == ATTND__V1__FD_KIND__FD_MEMFD;
    FUZZ_CHECK(fuzz_heard.n_descriptors == has_fd);
    FUZZ_CHECK(reply->bytes == (has_fd ? FUZZ_BUFFER_BYTES : 0u));
    FUZZ_CHECK(!reply->status->code == !*reply->status->message);
    FUZZ_CHECK(!reply->status->code || (*reply->status->reason && !has_fd));
    attnd__v1__fd_reply__free_unpacked(reply, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    memset(&fuzz_sent, 0, sizeof fuzz_sent);
    on_client(&server.poll, 0, UV_READABLE);
    FUZZ_CHECK(fuzz_is_open && server.n_holders == 1);
    while (n >= 2 && fuzz_is_open) {
        size_t size = data[0] | (size_t)data[1] << 8;
        size = size < n - 2 ? size : n - 2;
        fuzz_sent.at = data + 2;
        fuzz_sent.n = size;
        fuzz_sent.is_packet = true;
        fuzz_heard.n = 0;
        fuzz_heard.n_descriptors = 0;
        fuzz_heard.room = FUZZ_ROOM;
        turn();
        FUZZ_CHECK(!fuzz_sent.is_packet && fuzz_is_open == !!size);
        if (size)
            check_answer();
        data += 2 + size;
        n -= 2 + size;
    }
    fuzz_sent.has_ended = true;
    turn();
    FUZZ_CHECK(!fuzz_is_open && !server.holders && !server.n_holders && !fuzz_n_descriptors);
    FUZZ_CHECK(!fuzz_engine.sessions->n_leases);
    fuzz_engine.sessions->over_ns = fuzz_engine.lingers_ns = 0;
    fuzz_engine.sessions->was_leased = false;
    fuzz_engine.sessions->n_connections = 1;
    fuzz_world_reset();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t room, unsigned seed)
{
    size_t size = n < 2 ? 0 : data[0] | (size_t)data[1] << 8;
    /* The only packet, as a message. */
    if (seed % 2 || n < 2 || size < n - 2)
        return LLVMFuzzerMutate(data, n, room);
    size = fuzz_mutate_message(&attnd__v1__fd_request__descriptor, data + 2, n - 2, room - 2,
                               seed / 2);
    data[0] = (uint8_t)size;
    data[1] = (uint8_t)(size >> 8);
    return size + 2;
}
