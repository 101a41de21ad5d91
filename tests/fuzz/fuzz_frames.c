/* fuzz_frames.c: what a peer of the data socket sends, in pieces: hello, frames, hops, payloads.
 * Whole frames are answered, in frames; what is none ends the connection and nothing else.
 *
 * The first byte of an input says how the rest is cut, and whether the peer reads late.
 */
#include "tests/fuzz/loop.h"

#include "daemon/receive.c" /* NOLINT: its functions are called one by one */

#include "tests/fuzz/loop_end.h"

enum { MOST_TURNS = 1000, MOST_PIECES = 8, LITTLE_ROOM = 64 };

static srv_receive *server;
static cfg receive_config;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    attnd_err err;
    fuzz_world_open();
    receive_config = *fuzz_engine.config;
    receive_config.data_contexts = 4;
    receive_config.data_max_message = 4096;
    fuzz_engine.config = &receive_config;
    FUZZ_CHECK(srv_receive_open(&server, &fuzz_engine, &err) == ATTND_OK);
    server->last_id = FUZZ_CONNECTION;
    server->listener.data = server;
    return 0;
}

/* Whole frames of what was heard are checked and taken; the rest stays. */
static void hear(bool *is_greeted)
{
    const uint8_t *at = fuzz_heard.at;
    size_t from = 0, n = fuzz_heard.n;
    if (!*is_greeted && n >= HELLO_BYTES) {
        FUZZ_CHECK(!memcmp(at, HELLO_REP, HELLO_BYTES));
        *is_greeted = true;
        from = HELLO_BYTES;
    }
    while (*is_greeted && n - from >= HEAD_BYTES) {
        uint64_t size = 0;
        for (int i = 0; i < 8; i++)
            size = size << 8 | at[from + 1 + i];
        FUZZ_CHECK(at[from] == 1 && size <= FUZZ_ROOM - HEAD_BYTES);
        if (n - from - HEAD_BYTES < size)
            break;
        size_t hops = count_hops(at + from + HEAD_BYTES, size);
        FUZZ_CHECK(hops);
        fuzz_check_reply(at + from + HEAD_BYTES + hops, size - hops);
        from += HEAD_BYTES + size;
    }
    memmove(fuzz_heard.at, at + from, n - from);
    fuzz_heard.n = n - from;
}

/* One turn of every thread there would be; whether anything happened. */
static bool turn(void)
{
    bool happened = fuzz_loop_turn();
    srv_engine_turn(&fuzz_engine, false);
    return fuzz_device_run(fuzz_engine.device) || happened;
}

/* Until nothing happens any more. */
static void settle(void)
{
    for (int quiet = 0, i = 0; quiet < 2; i++) {
        FUZZ_CHECK(i < MOST_TURNS);
        bool happened = turn();
        if (!happened && fuzz_engine.waiting)
            fuzz_run_out_of_time();
        quiet = happened || fuzz_engine.waiting ? 0 : quiet + 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    bool is_greeted = false;
    if (!n)
        return 0;
    size_t piece = (size_t)1 << (data[0] & 15), at = 1;
    piece = piece > n / MOST_PIECES ? piece : n / MOST_PIECES;
    memset(&fuzz_sent, 0, sizeof fuzz_sent);
    fuzz_heard.n = 0;
    fuzz_heard.room = data[0] & 16 ? LITTLE_ROOM : FUZZ_ROOM;
    on_client(&server->listener, 0, UV_READABLE);
    fuzz_sent.at = data + 1;
    while (at < n) {
        size_t size = piece < n - at ? piece : n - at;
        fuzz_sent.n += size;
        at += size;
        turn();
    }
    settle();
    fuzz_heard.room = FUZZ_ROOM;
    settle();
    hear(&is_greeted);
    FUZZ_CHECK(is_greeted && !server->n_busy && !fuzz_engine.n_in_flight);
    FUZZ_CHECK(!fuzz_heard.n || !fuzz_is_open);
    fuzz_sent.has_ended = true;
    settle();
    FUZZ_CHECK(!fuzz_is_open && !server->n_alive && !server->connections && !server->starved &&
               !server->turns);
    fuzz_world_reset();
    return 0;
}
