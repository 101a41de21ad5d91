/* world.h: an engine without threads and a session with models, buffers and plans, for fuzz
 * targets.
 *
 * Everything has the same number every time: the session FUZZ_SESSION, its model FUZZ_MODEL, and so
 * on. What a request changes is undone before the next one.
 */
#ifndef ATTND_TESTS_FUZZ_WORLD_H
#define ATTND_TESTS_FUZZ_WORLD_H

#include <stdio.h>
#include <stdlib.h>

#include "daemon/engine.h"

/* A promise of ours; kept in release builds. */
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerInitialize(int *argc, char ***argv);
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t room);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t room, unsigned seed);

#define FUZZ_SESSION 0x0123456789abcdefu

enum {
    FUZZ_MODEL = 1,  /* layers 0 and 2 in group 0, layer 1 with a window and rope in group 1 */
    FUZZ_BUFFER = 2, /* FUZZ_BUFFER_BYTES of floats, for tensors */
    FUZZ_INTS = 3,   /* the same of integers 0 .. 7, for Ints.ref */
    FUZZ_PLAN = 4,   /* a decode of two sequences, both groups */
    FUZZ_SLOTS = 5,  /* a plan with slots and positions, group 0 alone */
    FUZZ_HANDLES = FUZZ_SLOTS,
    FUZZ_BUFFER_BYTES = 4096,
    FUZZ_CONNECTION = 1,
    FUZZ_REQUESTS = 4, /* in flight together */
};

extern srv_engine fuzz_engine;

/* Called when the daemon's own code begins to run for a request, and when the device's or the
 * caller's does; NULL: nobody. */
extern void (*fuzz_on_the_road)(bool is);

/* Opens it; the session with all it has. */
void fuzz_world_open(void);
void fuzz_world_close(void);

/* Why the i-th of the requests sent last was refused; NO_REASON: it was not. */
attnd_reason fuzz_world_reason(size_t i);

/* Whether nothing has changed but what lies in memory, which ids came and which handles are used
 * up. */
bool fuzz_world_is_as_opened(void);

/* Sends requests that are on their way together, until all are answered, and checks every reply.
 * bytes borrowed. At most FUZZ_REQUESTS. */
void fuzz_world_send(const uint8_t *const *bytes, const size_t *n_bytes, size_t n);

/* What every reply is: whole, and either a result or a refusal that says what it is about. */
attnd_status fuzz_check_reply(const uint8_t *bytes, size_t n);

/* The time of those that wait for somebody who never comes is up. */
void fuzz_run_out_of_time(void);

/* What changed since it was opened is undone. */
void fuzz_world_reset(void);

/* A device without threads. */
ker_device *fuzz_device_open(size_t workspace_bytes);

/* Carries out what was launched; false: nothing was. */
bool fuzz_device_run(ker_device *device);

#endif
