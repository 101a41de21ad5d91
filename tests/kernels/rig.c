/* rig.c: a rig on a device: memory, launches, and the judgement of what they left behind. */
#include "tests/kernels/rig.h"

#include <unistd.h>

/* ---- Devices. ---------------------------------------------------------------------------------
 */

const char *const rig_device_names[RIG_N_DEVICES] = {"portable", "avx2", "avx512", "cuda"};
ker_device *rig_devices[RIG_N_DEVICES];
char rig_device_missing[RIG_N_DEVICES][ATTND_ERR_TEXT];

static ker_device *open_device(const char *backend, const char *isa, uint32_t n_threads, char *why)
{
    ker_device *device;
    attnd_err err = {0};
    ker_device_options options = {.backend = backend,
                                  .n_threads = n_threads,
                                  .n_slots = 3,
                                  .workspace_bytes = 64 << 20,
                                  .isa = isa};
    ker_device_open(&device, &options, &err);
    snprintf(why, ATTND_ERR_TEXT, "%s", err.text);
    return device;
}

ker_device *rig_device(const char *isa, uint32_t n_threads)
{
    char why[ATTND_ERR_TEXT];
    return open_device("cpu", isa, n_threads, why);
}

ker_device *rig_open(int device, uint32_t n_threads)
{
    bool is_cuda = strcmp(rig_device_names[device], "cuda") == 0;
    return open_device(is_cuda ? "cuda" : "cpu", is_cuda ? NULL : rig_device_names[device],
                       n_threads, rig_device_missing[device]);
}

int rig_open_devices(void **state)
{
    for (int i = 0; i < RIG_N_DEVICES; i++)
        rig_devices[i] = rig_open(i, 2);
    assert_non_null(rig_devices[0]);
    return 0;
}

int rig_close_devices(void **state)
{
    for (int i = 0; i < RIG_N_DEVICES; i++) {
        ker_device_close(rig_devices[i]);
        rig_devices[i] = NULL;
    }
    return 0;
}

ker_device *rig_best_device(void)
{
    for (int i = 2; i > 0; i--)
        if (rig_devices[i])
            return rig_devices[i];
    return rig_devices[0];
}

bool rig_has_level(const ker_device *device, const ker_kernel *kernel)
{
    ker_level level = ker_device_level(device);
    return kernel->needs <= level &&
           (kernel->needs < KER_N_CPU_LEVELS) == (level < KER_N_CPU_LEVELS);
}

void rig_alloc(ker_device *device, const char *name, size_t bytes, ker_memory *out)
{
    attnd_err err = {0};
    if (ker_memory_make(device, name, bytes, out, &err) != ATTND_OK)
        fail_msg("no memory for %s: %s", name, err.text);
}

void rig_upload(ker_device *device, char *to, const char *from, size_t bytes)
{
    assert_int_equal(ker_memory_write(device, to, from, bytes, NULL), ATTND_OK);
}

void rig_download(ker_device *device, char *to, const char *from, size_t bytes)
{
    assert_int_equal(ker_memory_read(device, to, from, bytes, NULL), ATTND_OK);
}

/* ---- Running. ---------------------------------------------------------------------------------
 */

void rig_done(ker_ticket *ticket)
{
    rig_wait *wait = (rig_wait *)ticket;
    pthread_mutex_lock(&wait->lock);
    wait->is_done = true;
    pthread_cond_broadcast(&wait->rang);
    pthread_mutex_unlock(&wait->lock);
}

void rig_launch(ker_device *device, ker_stream *stream, const ker_plan *plan, rig_wait *wait)
{
    *wait = (rig_wait){.ticket.done = rig_done};
    pthread_mutex_init(&wait->lock, NULL);
    pthread_cond_init(&wait->rang, NULL);
    ker_launch(device, stream, plan, &wait->ticket);
}

void rig_join(rig_wait *wait)
{
    pthread_mutex_lock(&wait->lock);
    while (!wait->is_done)
        pthread_cond_wait(&wait->rang, &wait->lock);
    pthread_mutex_unlock(&wait->lock);
    pthread_cond_destroy(&wait->rang);
    pthread_mutex_destroy(&wait->lock);
    assert_int_equal(wait->ticket.err.status, ATTND_OK);
}

void rig_carry_out(ker_device *device, const ker_plan *plan)
{
    ker_stream *stream;
    rig_wait wait;
    assert_int_equal(ker_stream_open(device, &stream, NULL), ATTND_OK);
    rig_launch(device, stream, plan, &wait);
    rig_join(&wait);
    ker_stream_close(stream);
}

ker_plan *rig_plan(ker_device *device, const ker_problem *problem, uint32_t n_splits, void **memory)
{
    attnd_err err = {0};
    ker_plan *plan = NULL;
    size_t bytes = ker_plan_bytes(device, problem) * (n_splits ? n_splits + 1 : 1);
    *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(*memory);
    if (ker_plan_make(device, problem, n_splits, *memory, bytes, &plan, &err) != ATTND_OK)
        fail_msg("no plan: %s", err.text);
    return plan;
}

/* Whether the kernel serves a phase of the rig's problem. */
static bool serves(const rig *x, ker_device *device, const ker_kernel *kernel, int phase)
{
    ker_reason reason;
    return ker_kernel_serves(kernel, ker_device_level(device), &x->problem, (ker_phase)phase,
                             &reason);
}

bool rig_serves(const rig *x, ker_device *device, const ker_kernel *kernel)
{
    bool any = false;
    for (int phase = 0; phase < 2; phase++) {
        uint32_t n = phase == 0 ? x->spec.n_contexts : x->spec.n_seqs - x->spec.n_contexts;
        const ker_kernel *other;
        attnd_err err;
        if (n == 0)
            continue;
        if (serves(x, device, kernel, phase))
            any = true;
        else if (ker_find(device, &x->problem, (ker_phase)phase, &other, &err) != ATTND_OK)
            return false;
    }
    return any;
}

void rig_run(rig *x, ker_device *device, uint32_t n_splits, const ker_kernel *kernel)
{
    void *memory;
    rig_put(x, device);
    ker_plan *plan = rig_plan(device, &x->problem, n_splits, &memory);
    for (int phase = 0; kernel && phase < 2; phase++)
        if (plan->part[phase].kernel && serves(x, device, kernel, phase))
            plan->part[phase].kernel = kernel;
    rig_carry_out(device, plan);
    free(memory);
    rig_fetch(x);
}

/* ---- Judging. ---------------------------------------------------------------------------------
 */

void rig_judge(rig *x)
{
    attnd_err err = {0};
    memcpy(x->want, x->given, x->bytes);
    ora_result_fini(&x->want_rows);
    if (ora_append(&x->oracle, &err) != ATTND_OK ||
        ora_attend(&x->oracle, &x->want_rows, &err) != ATTND_OK)
        fail_msg("%s: the oracle refuses: %s", x->spec.name, err.text);
}

/* Puts back what a launch may write, in a copy of what came back. */
static void undo_rows(const rig *x, char *image, const ker_rows *rows, uint32_t heads,
                      size_t row_bytes)
{
    for (int64_t t = 0; rows->base && t < x->n_tokens; t++)
        for (uint32_t h = 0; h < heads; h++)
            memcpy(rig_token(x, image, rows, t, h), rig_token(x, x->given, rows, t, h), row_bytes);
}

/* Stored keys and values as they should be, and undone in image. */
static bool keys_are_right(const rig *x, char *image, near_report *report)
{
    const rig_spec *s = &x->spec;
    size_t size = rig_size(s->kv), turned = s->rope ? s->rope_dim : 0;
    for (uint32_t b = 0; s->append && b < s->n_seqs; b++)
        for (int32_t i = 0; i < s->q_len[b]; i++)
            for (uint32_t g = 0; g < s->n_kv_heads; g++) {
                int64_t j = (int64_t)s->kv_len[b] - s->q_len[b] + i;
                const char *k = rig_key(x, x->got, 0, g, b, j), *v = rig_key(x, x->got, 1, g, b, j);
                const char *want_k = rig_key(x, x->want, 0, g, b, j);
                if (!near_bytes(s->kv, k, want_k, turned, 1, report) ||
                    !near_bytes(s->kv, k + turned * size, want_k + turned * size, s->d - turned, 0,
                                report) ||
                    !near_bytes(s->kv, v, rig_key(x, x->want, 1, g, b, j), s->dv, 0, report))
                    return false;
                if (s->skips && x->slots[x->q_first[b] + i] < 0)
                    continue;
                memcpy(rig_key(x, image, 0, g, b, j), rig_key(x, x->given, 0, g, b, j),
                       s->d * size);
                memcpy(rig_key(x, image, 1, g, b, j), rig_key(x, x->given, 1, g, b, j),
                       s->dv * size);
            }
    return true;
}

/* Every byte that no one may write is as given. */
static bool rest_is_as_given(const rig *x, near_report *report)
{
    const rig_spec *s = &x->spec;
    const ker_problem *p = &x->problem;
    char *image = malloc(x->bytes);
    assert_non_null(image);
    memcpy(image, x->got, x->bytes);
    bool ok = keys_are_right(x, image, report);
    undo_rows(x, image, &p->out, s->n_heads, s->dv * rig_size(s->out));
    undo_rows(x, image, &p->lse, s->n_heads, 4);
    undo_rows(x, image, &p->stats, s->n_heads, 8);
    if (ok && memcmp(image, x->given, x->bytes) != 0) {
        size_t at = 0;
        while (image[at] == x->given[at])
            at++;
        bool in_pool = at >= RIG_EDGE && at < RIG_EDGE + x->pool_bytes;
        snprintf(report->text, sizeof report->text, "byte %zu of %zu, %s, was written", at,
                 x->bytes, in_pool ? "of the pool" : "beside the outputs");
        ok = false;
    }
    free(image);
    return ok;
}

static ora_rows got_rows(const rig *x, const ker_rows *rows)
{
    return (ora_rows){rig_token(x, x->got, rows, 0, 0), rows->token_stride, rows->head_stride,
                      rows->dtype};
}

rig_errors rig_errors_of(rig *x)
{
    const rig_spec *s = &x->spec;
    const ker_problem *p = &x->problem;
    ker_device_info info;
    ker_device_describe(x->device, &info);
    near_backend backend = strcmp(info.backend, "cpu") == 0 ? NEAR_CPU : NEAR_GPU;
    near_path path = near_path_for(s->dtype, s->kv, s->out);
    double widen = s->softcap > 0 ? 1.5 : 1;
    near_report report = {.ok = true};
    rig_errors e = {0};
    ora_rows out = got_rows(x, &p->out), lse = got_rows(x, &p->lse), stats = got_rows(x, &p->stats);
    bool ok = near_out(&out, &x->want_rows, path, widen, s->sinks, &report);
    e.out = report.times;
    e.rms = report.e_rms / (near_gate_of(path).e_rms * widen);
    if (ok)
        ok = near_lse(&lse, &x->want_rows, backend, &report);
    e.lse = report.times;
    e.ok =
        ok && near_stats(&stats, &x->want_rows, backend, &report) && rest_is_as_given(x, &report);
    snprintf(e.text, sizeof e.text, "%s, seed %llu: %s", s->name, (unsigned long long)s->seed,
             report.text);
    return e;
}

void rig_check(rig *x, const char *what)
{
    rig_errors e = rig_errors_of(x);
    if (!e.ok)
        fail_msg("%s: %s", what, e.text);
}

void rig_same_bits(const rig *a, const rig *b, const char *what)
{
    const ker_problem *p = &a->problem, *r = &b->problem;
    size_t size = rig_size(a->spec.out);
    for (int64_t t = 0; t < a->n_tokens; t++)
        for (uint32_t h = 0; h < a->spec.n_heads; h++)
            if (memcmp(rig_token(a, a->got, &p->out, t, h), rig_token(b, b->got, &r->out, t, h),
                       a->spec.dv * size) != 0 ||
                memcmp(rig_token(a, a->got, &p->lse, t, h), rig_token(b, b->got, &r->lse, t, h),
                       4) != 0 ||
                memcmp(rig_token(a, a->got, &p->stats, t, h), rig_token(b, b->got, &r->stats, t, h),
                       8) != 0)
                fail_msg("%s, %s, seed %llu: token %lld, head %u has other bits", a->spec.name,
                         what, (unsigned long long)a->spec.seed, (long long)t, h);
}

int64_t rig_far_page(const rig *x)
{
    int64_t page = sysconf(_SC_PAGESIZE), stride = x->problem.kv.block_stride;
    off_t end = 0, from;
    while ((from = lseek(x->far.fd, end, SEEK_DATA)) >= 0) {
        end = lseek(x->far.fd, from, SEEK_HOLE);
        for (off_t at = from; at < end; at += page) {
            bool used = false;
            for (int64_t i = 0; i < x->n_tables; i++)
                used |=
                    at >= x->far_ids[i] * stride / page * page && at < (x->far_ids[i] + 1) * stride;
            if (!used)
                return at;
        }
    }
    return -1;
}

double rig_out_at(const rig *x, int64_t token, uint32_t head, uint32_t channel)
{
    const ker_rows *rows = &x->problem.out;
    double value;
    ora_decode(rows->dtype,
               rig_token(x, x->got, rows, token, head) + channel * rig_size(rows->dtype), 1,
               &value);
    return value;
}

double rig_lse_at(const rig *x, int64_t token, uint32_t head)
{
    float value;
    memcpy(&value, rig_token(x, x->got, &x->problem.lse, token, head), sizeof value);
    return (double)value;
}
