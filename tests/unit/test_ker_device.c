/* test_ker_device.c: streams keep their order, side by side; memory is refused with its numbers. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tests/kernels/rig.h"

/* A decode of a few keys; a prefill of some tenths of a second of one thread. */
static const rig_spec brief = {.name = "brief",
                               .dtype = ATTND_DTYPE_F32,
                               .n_heads = 2,
                               .n_kv_heads = 1,
                               .d = 32,
                               .n_seqs = 2,
                               .q_len = {1, 1},
                               .kv_len = {40, 7},
                               .kinds = KER_MASK_CAUSAL,
                               .seed = 1};
static const rig_spec lengthy = {.name = "lengthy",
                                 .dtype = ATTND_DTYPE_BF16,
                                 .n_heads = 64,
                                 .n_kv_heads = 1,
                                 .d = 128,
                                 .n_seqs = 1,
                                 .n_contexts = 1,
                                 .q_len = {1400},
                                 .kv_len = {1400},
                                 .kinds = KER_MASK_CAUSAL,
                                 .seed = 2};

static ker_device *open_device(uint32_t n_threads, uint32_t n_slots)
{
    ker_device *device = NULL;
    attnd_err err = {0};
    ker_device_options options = {
        .backend = "cpu", .n_threads = n_threads, .n_slots = n_slots, .workspace_bytes = 32 << 20};
    if (ker_device_open(&device, &options, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    return device;
}

/* ---- Order. -----------------------------------------------------------------------------------
 */

enum { N_LAUNCHES = 200 };

typedef struct numbered {
    rig_wait wait; /* first */
    int number;
    int *order, *n_done; /* shared by the stream; one done at a time */
} numbered;

static void note(ker_ticket *ticket)
{
    numbered *n = (numbered *)ticket;
    n->order[(*n->n_done)++] = n->number;
    rig_done(ticket);
}

static void launch_numbered(ker_device *device, ker_stream *stream, const ker_plan *plan,
                            numbered *n)
{
    n->wait = (rig_wait){.ticket.done = note};
    pthread_mutex_init(&n->wait.lock, NULL);
    pthread_cond_init(&n->wait.rang, NULL);
    ker_launch(device, stream, plan, &n->wait.ticket);
}

static void a_stream_keeps_the_order_of_its_launches(void **state)
{
    static numbered launches[2][N_LAUNCHES];
    static int order[2][N_LAUNCHES];
    int n_done[2] = {0};
    ker_device *device = open_device(4, 2);
    ker_stream *streams[2];
    rig x[2];
    void *memory[2];
    ker_plan *plans[2];
    for (int k = 0; k < 2; k++) {
        rig_make(&x[k], &brief);
        rig_put(&x[k], device);
        plans[k] = rig_plan(device, &x[k].problem, 0, &memory[k]);
        assert_int_equal(ker_stream_open(device, &streams[k], NULL), ATTND_OK);
    }
    for (int i = 0; i < N_LAUNCHES; i++)
        for (int k = 0; k < 2; k++) {
            launches[k][i] = (numbered){.number = i, .order = order[k], .n_done = &n_done[k]};
            launch_numbered(device, streams[k], plans[k], &launches[k][i]);
        }
    for (int i = 0; i < N_LAUNCHES; i++)
        for (int k = 0; k < 2; k++)
            rig_join(&launches[k][i].wait);
    for (int k = 0; k < 2; k++) {
        ker_stream_close(streams[k]);
        assert_int_equal(n_done[k], N_LAUNCHES);
        for (int i = 0; i < N_LAUNCHES; i++) {
            const ker_ticket *ticket = &launches[k][i].wait.ticket;
            assert_int_equal(order[k][i], i);
            assert_true(ticket->launched_ns <= ticket->started_ns);
            assert_true(ticket->started_ns <= ticket->ended_ns);
            if (i > 0)
                assert_true(ticket->started_ns >= launches[k][i - 1].wait.ticket.ended_ns);
        }
    }
    for (int k = 0; k < 2; k++) {
        free(memory[k]);
        rig_free(&x[k]);
    }
    ker_device_close(device);
}

static void a_long_prefill_does_not_hold_up_another_stream(void **state)
{
    ker_device *device = open_device(1, 2);
    ker_stream *slow, *quick;
    rig prefill, decode;
    void *memory[2];
    rig_wait waits[12];
    rig_make(&prefill, &lengthy);
    rig_make(&decode, &brief);
    rig_put(&prefill, device);
    rig_put(&decode, device);
    ker_plan *long_plan = rig_plan(device, &prefill.problem, 0, &memory[0]);
    ker_plan *short_plan = rig_plan(device, &decode.problem, 0, &memory[1]);
    assert_int_equal(ker_stream_open(device, &slow, NULL), ATTND_OK);
    assert_int_equal(ker_stream_open(device, &quick, NULL), ATTND_OK);
    rig_launch(device, slow, long_plan, &waits[0]);
    rig_launch(device, slow, long_plan, &waits[1]);
    for (int i = 2; i < 12; i++) {
        rig_launch(device, quick, short_plan, &waits[i]);
        rig_join(&waits[i]);
    }
    rig_join(&waits[0]);
    rig_join(&waits[1]);
    assert_true(waits[11].ticket.ended_ns < waits[0].ticket.ended_ns);
    ker_stream_close(slow);
    ker_stream_close(quick);
    for (int i = 0; i < 2; i++)
        free(memory[i]);
    rig_free(&prefill);
    rig_free(&decode);
    ker_device_close(device);
}

static void more_streams_than_slots_wait_their_turn(void **state)
{
    enum { N_STREAMS = 7, N_EACH = 30 };
    static rig_wait waits[N_STREAMS][N_EACH];
    ker_device *device = open_device(3, 2);
    ker_stream *streams[N_STREAMS];
    rig x[N_STREAMS];
    void *memory[N_STREAMS];
    for (int k = 0; k < N_STREAMS; k++) {
        rig_make(&x[k], &brief);
        rig_put(&x[k], device);
        ker_plan *plan = rig_plan(device, &x[k].problem, 0, &memory[k]);
        assert_int_equal(ker_stream_open(device, &streams[k], NULL), ATTND_OK);
        for (int i = 0; i < N_EACH; i++)
            rig_launch(device, streams[k], plan, &waits[k][i]);
    }
    for (int k = 0; k < N_STREAMS; k++) {
        for (int i = 0; i < N_EACH; i++)
            rig_join(&waits[k][i]);
        ker_stream_close(streams[k]);
        free(memory[k]);
        rig_free(&x[k]);
    }
    ker_device_close(device);
}

static void launches_side_by_side_give_the_right_answers(void **state)
{
    ker_device *device = open_device(4, 3);
    ker_stream *streams[3];
    rig x[3];
    void *memory[3];
    ker_plan *plans[3];
    rig_wait waits[3];
    for (int k = 0; k < 3; k++) {
        rig_spec s = {.name = "beside",
                      .dtype = ATTND_DTYPE_BF16,
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .d = 64,
                      .n_seqs = 3,
                      .n_contexts = 1,
                      .q_len = {60, 1, 2},
                      .kv_len = {100, 900, 70},
                      .kinds = KER_MASK_CAUSAL,
                      .append = true,
                      .rope = ATTND_ROPE_NEOX,
                      .rope_dim = 64,
                      .seed = 20 + (uint64_t)k};
        rig_make(&x[k], &s);
        rig_judge(&x[k]);
        rig_put(&x[k], device);
        plans[k] = rig_plan(device, &x[k].problem, 7, &memory[k]);
        assert_int_equal(ker_stream_open(device, &streams[k], NULL), ATTND_OK);
    }
    for (int times = 0; times < 20; times++) {
        for (int k = 0; k < 3; k++) {
            rig_put(&x[k], device);
            rig_launch(device, streams[k], plans[k], &waits[k]);
        }
        for (int k = 0; k < 3; k++) {
            rig_join(&waits[k]);
            rig_fetch(&x[k]);
            rig_check(&x[k], "beside others");
        }
    }
    for (int k = 0; k < 3; k++) {
        ker_stream_close(streams[k]);
        free(memory[k]);
        rig_free(&x[k]);
    }
    ker_device_close(device);
}

static void a_launch_without_rows_is_done_too(void **state)
{
    rig_spec s = {.name = "nothing",
                  .dtype = ATTND_DTYPE_F32,
                  .n_heads = 1,
                  .n_kv_heads = 1,
                  .d = 16,
                  .n_seqs = 1,
                  .q_len = {0},
                  .kv_len = {9}};
    ker_device *device = open_device(2, 1);
    rig x;
    void *memory;
    rig_make(&x, &s);
    ker_plan *plan = rig_plan(device, &x.problem, 0, &memory);
    rig_carry_out(device, plan);
    ker_device_close(device);
    free(memory);
    rig_free(&x);
}

static void a_device_closes_while_idle_and_while_work_is_in_flight(void **state)
{
    ker_device_close(open_device(5, 1));
    ker_device_close(NULL);
    ker_stream_close(NULL);
    ker_device *device = open_device(2, 1);
    ker_stream *stream;
    rig x;
    void *memory;
    rig_wait waits[20];
    rig_make(&x, &brief);
    ker_plan *plan = rig_plan(device, &x.problem, 0, &memory);
    assert_int_equal(ker_stream_open(device, &stream, NULL), ATTND_OK);
    for (int i = 0; i < 20; i++)
        rig_launch(device, stream, plan, &waits[i]);
    /* The stream's memory outlives the device here; what is in flight ends first. */
    ker_device_close(device);
    for (int i = 0; i < 20; i++) {
        assert_true(waits[i].is_done);
        rig_join(&waits[i]);
    }
    free(stream);
    free(memory);
    rig_free(&x);
}

static void a_signal_never_goes_to_a_device_thread(void **state)
{
    ker_device *device = open_device(2, 1);
    sigset_t usr1, old, pending;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, &old);
    kill(getpid(), SIGUSR1); /* would end the process in a thread that takes it */
    struct timespec wait = {.tv_nsec = 50000000};
    assert_int_equal(sigtimedwait(&usr1, NULL, &wait), SIGUSR1);
    sigpending(&pending);
    assert_false(sigismember(&pending, SIGUSR1));
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    ker_device_close(device);
}

/* ---- Opening. ---------------------------------------------------------------------------------
 */

static void an_unknown_instruction_set_is_refused(void **state)
{
    ker_device *device = (ker_device *)state;
    attnd_err err = {0};
    ker_device_options options = {.backend = "cpu", .n_threads = 1, .n_slots = 1, .isa = "mmx"};
    assert_int_equal(ker_device_open(&device, &options, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_CONFIG);
    assert_string_equal(err.text, "device.isa = mmx: avx512, avx2 or portable");
    assert_null(device);
}

static void a_device_without_a_slot_is_refused(void **state)
{
    ker_device *device = (ker_device *)state;
    attnd_err err = {0};
    ker_device_options options = {.backend = "cpu", .n_threads = 1, .workspace_bytes = 4096};
    assert_int_equal(ker_device_open(&device, &options, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_CONFIG);
    assert_string_equal(err.text, "device.slots = 0: at least 1");
    assert_null(device);
}

static void more_workspace_than_addresses_is_refused(void **state)
{
    ker_device *device = (ker_device *)state;
    attnd_err err = {0};
    ker_device_options options = {
        .backend = "cpu", .n_threads = 1, .n_slots = 2, .workspace_bytes = (size_t)1 << 62};
    assert_int_equal(ker_device_open(&device, &options, &err), ATTND_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, ATTND_NO_ROOM);
    assert_string_equal(err.text,
                        "device.workspace = 4611686018427387904: no memory for it 2 times");
    assert_null(device);
}

static void a_device_describes_itself(void **state)
{
    ker_device_info info;
    ker_device *device = open_device(3, 2);
    ker_device_describe(device, &info);
    assert_string_equal(info.backend, "cpu");
    assert_true(strlen(info.name) > 0);
    assert_int_equal(info.n_threads, 3);
    assert_int_equal(info.n_slots, 2);
    assert_int_equal(info.workspace_bytes, 32 << 20);
    ker_device_close(device);
    device = open_device(0, 1);
    ker_device_describe(device, &info);
    assert_in_range(info.n_threads, 1, 4096);
    ker_device_close(device);
}

/* ---- Memory. ----------------------------------------------------------------------------------
 */

static void memory_is_zero_shared_and_sealed(void **state)
{
    ker_memory memory;
    ker_device *device = open_device(1, 1);
    assert_int_equal(ker_memory_make(device, "test", 5000, &memory, NULL), ATTND_OK);
    assert_int_equal(memory.bytes, 5000);
    assert_int_equal(memory.mapped % (size_t)sysconf(_SC_PAGESIZE), 0);
    assert_true(memory.mapped >= 5000);
    for (size_t i = 0; i < memory.mapped; i++)
        assert_int_equal(((char *)memory.base)[i], 0);
    char *other = mmap(NULL, memory.mapped, PROT_READ, MAP_SHARED, memory.fd, 0);
    assert_true(other != MAP_FAILED);
    ((char *)memory.base)[4999] = 7;
    assert_int_equal(other[4999], 7);
    munmap(other, memory.mapped);
    assert_int_equal(ftruncate(memory.fd, 10), -1);
    assert_int_equal(ftruncate(memory.fd, 1 << 20), -1);
    assert_int_equal(fcntl(memory.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    assert_true(fcntl(memory.fd, F_GETFD) & FD_CLOEXEC);
    int fd = memory.fd;
    ker_memory_free(device, &memory);
    assert_null(memory.base);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    ker_memory_free(device, &memory);
    ker_device_close(device);
}

static void memory_that_does_not_fit_is_refused_with_both_numbers(void **state)
{
    static const size_t sizes[] = {(size_t)1 << 46, (size_t)1 << 60, SIZE_MAX};
    ker_device *device = open_device(1, 1);
    for (int i = 0; i < 3; i++) {
        ker_memory memory = {.base = state};
        attnd_err err = {0};
        double wants, is_free;
        size_t bytes;
        assert_int_equal(ker_memory_make(device, "pool", sizes[i], &memory, &err),
                         ATTND_RESOURCE_EXHAUSTED);
        assert_int_equal(err.reason, ATTND_NO_ROOM);
        assert_int_equal(
            sscanf(err.text, "bytes = %zu: %lf GiB; %lf GiB are free", &bytes, &wants, &is_free),
            3);
        assert_true(bytes == sizes[i]);
        assert_true(fabs(wants * 0x1p30 / (double)sizes[i] - 1) < 1e-3);
        assert_true(is_free > 0 && is_free < wants);
        assert_null(memory.base);
        assert_int_equal(memory.fd, -1);
    }
    ker_device_close(device);
}

static void memory_is_not_promised_twice(void **state)
{
    ker_device *device = open_device(1, 1);
    ker_memory first, second;
    attnd_err err = {0};
    double is_free;
    assert_int_equal(ker_memory_make(device, "all", SIZE_MAX, &first, &err),
                     ATTND_RESOURCE_EXHAUSTED);
    assert_int_equal(sscanf(strstr(err.text, "; "), "; %lf GiB are free", &is_free), 1);
    size_t most = (size_t)(is_free * 0.6 * 0x1p30);
    assert_int_equal(ker_memory_make(device, "first", most, &first, &err), ATTND_OK);
    assert_int_equal(ker_memory_make(device, "second", most, &second, &err),
                     ATTND_RESOURCE_EXHAUSTED);
    assert_null(second.base);
    ker_memory_free(device, &first);
    assert_int_equal(ker_memory_make(device, "second", most, &second, &err), ATTND_OK);
    ker_memory_free(device, &second);
    ker_device_close(device);
}

static void memory_without_a_descriptor_left_is_refused(void **state)
{
    ker_device *device = open_device(1, 1);
    ker_memory memory;
    attnd_err err = {0};
    struct rlimit old, none;
    int next = dup(0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = old;
    none.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    attnd_status status = ker_memory_make(device, "buffer", 4096, &memory, &err);
    setrlimit(RLIMIT_NOFILE, &old);
    assert_int_equal(status, ATTND_RESOURCE_EXHAUSTED);
    assert_string_equal(err.text, "bytes = 4096: memfd_create: Too many open files");
    assert_null(memory.base);
    ker_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_keeps_the_order_of_its_launches),
        cmocka_unit_test(a_long_prefill_does_not_hold_up_another_stream),
        cmocka_unit_test(more_streams_than_slots_wait_their_turn),
        cmocka_unit_test(launches_side_by_side_give_the_right_answers),
        cmocka_unit_test(a_launch_without_rows_is_done_too),
        cmocka_unit_test(a_device_closes_while_idle_and_while_work_is_in_flight),
        cmocka_unit_test(a_signal_never_goes_to_a_device_thread),
        cmocka_unit_test(an_unknown_instruction_set_is_refused),
        cmocka_unit_test(a_device_without_a_slot_is_refused),
        cmocka_unit_test(more_workspace_than_addresses_is_refused),
        cmocka_unit_test(a_device_describes_itself),
        cmocka_unit_test(memory_is_zero_shared_and_sealed),
        cmocka_unit_test(memory_that_does_not_fit_is_refused_with_both_numbers),
        cmocka_unit_test(memory_is_not_promised_twice),
        cmocka_unit_test(memory_without_a_descriptor_left_is_refused),
    };
    return cmocka_run_group_tests_name("ker_device", tests, NULL, NULL);
}
