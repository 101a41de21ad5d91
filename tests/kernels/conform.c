/* conform.c: problems made from what a row of kernels.def claims, run and judged. */
#include "tests/kernels/conform.h"

#include <time.h>

/* ---- Levels. ----------------------------------------------------------------------------------
 */

enum { MIXED = 2 }; /* a phase: contexts and generations */

typedef enum source { FROM_POOL, BY_TABLE, BY_SLOTS, BY_SLOTS_OR_NOT, GIVEN } source;

static const attnd_dtype floats[] = {ATTND_DTYPE_F32, ATTND_DTYPE_F16, ATTND_DTYPE_BF16};

/* D and Dv: both ends, whole and broken vectors, odd ones, K wider than V and the other way. */
static const uint32_t dims[][2] = {{1, 1},     {7, 7},     {16, 16},   {64, 64},
                                   {71, 71},   {80, 80},   {128, 128}, {192, 128},
                                   {256, 256}, {576, 512}, {40, 24},   {3, 100}};

/* Hq and Hkv: every group from 1 to 16, and groups beyond a tile of rows. */
static const uint32_t heads[][2] = {{1, 1},  {4, 4},  {2, 1},  {3, 1},  {8, 2},  {5, 1},  {12, 2},
                                    {7, 1},  {16, 2}, {9, 1},  {10, 1}, {33, 3}, {12, 1}, {13, 1},
                                    {28, 2}, {15, 1}, {16, 1}, {71, 1}, {130, 1}};

/* 0 stands for: there is none. */
static const uint32_t blocks[] = {0, 16, 1, 2, 4, 8, 32, 64, 128, 256, 512, 1024};
static const int32_t windows[] = {0, 1, 7, 33, 64, 1000000};
static const int32_t chunks[] = {0, 1, 16, 48, 100};
static const double caps[] = {0, 20, 1.5};
static const double amplitudes[] = {1, 8};
static const uint32_t splits[] = {0, 1, 2, 3, 8};
static const rig_poison poisons[] = {POISON_NAN, POISON_INF};

enum {
    LENGTHS_FEW,       /* 0 to 3 keys */
    LENGTHS_OF_BLOCKS, /* around a block and two */
    LENGTHS_OF_TILES,  /* around a tile */
    LENGTHS_LONG,      /* thousands */
    LENGTHS_MANY,      /* of 17 sequences */
    N_LENGTHS,
    QUERIES_ONE = 0, /* a sequence */
    QUERIES_GROUP,   /* verify groups of one width */
    QUERIES_RAGGED,  /* 0 to 8 */
    QUERIES_PROMPT,  /* all keys, or the last of them */
    QUERIES_MORE,    /* than keys */
    N_QUERIES,
    N_ROPES = 5,        /* none; neox, gptj: all channels, some */
    N_POSITIONS = 6,    /* there is no rope; past, explicit, delta, both, angles given */
    N_LAYOUTS = 4,      /* HND, NHD; with gaps */
    MAX_COST = 3000000, /* multiply-adds of the oracle */
    MAX_POOL = 4 << 20, /* bytes */
};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Levels that go together, -1: not chosen yet. */
static bool fits(const void *context, const int *row)
{
    const conform *c = context;
    const int *at = row;
    int from = at[CONFORM_SOURCE] < 0 ? -1 : c->source[at[CONFORM_SOURCE]];
    uint32_t kinds = at[CONFORM_MASK] < 0 ? 0 : c->masks[at[CONFORM_MASK]];
    if (from >= 0 && at[CONFORM_BLOCK] >= 0 && (from == GIVEN) != (at[CONFORM_BLOCK] == 0))
        return false;
    if (at[CONFORM_MASK] >= 0 && at[CONFORM_WINDOW] >= 0 &&
        !(kinds & KER_MASK_WINDOW) != (at[CONFORM_WINDOW] == 0))
        return false;
    if (at[CONFORM_MASK] >= 0 && at[CONFORM_CHUNK] >= 0 &&
        !(kinds & KER_MASK_CHUNK) != (at[CONFORM_CHUNK] == 0))
        return false;
    if (at[CONFORM_ROPE] >= 0 && at[CONFORM_POSITION] >= 0 &&
        (at[CONFORM_ROPE] == 0) != (at[CONFORM_POSITION] == 0))
        return false;
    if (at[CONFORM_DIMS] >= 0 && c->dims[at[CONFORM_DIMS]][0] < 2 &&
        (at[CONFORM_ROPE] > 0 || at[CONFORM_POSITION] > 0))
        return false;
    /* Only what stores nothing may have more queries than keys. */
    return !(at[CONFORM_QUERIES] == QUERIES_MORE && from >= BY_TABLE && from <= BY_SLOTS_OR_NOT);
}

/* Every subset of one and two claimed kinds of bounds, none, and the three that join. */
static int list_masks(conform *c)
{
    const uint32_t join = KER_MASK_CAUSAL | KER_MASK_WINDOW | KER_MASK_CHUNK;
    int n = 0;
    for (uint32_t kinds = 0; kinds <= KER_MASK_BOUNDS; kinds++)
        if (!(kinds & ~c->kernel->masks & KER_MASK_BOUNDS) &&
            (__builtin_popcount(kinds) <= 2 || kinds == join))
            c->masks[n++] = kinds;
    return n;
}

/* Every pair of two of the three, among them one type in all places. */
static int list_types(conform *c)
{
    int n = 0;
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++)
            if (c->kernel->kv & 1u << floats[b] && !(c->kernel->family->one_type && a != b)) {
                const attnd_dtype types[] = {floats[a], floats[b], floats[2 * (a + b) % 3]};
                memcpy(c->types[n++], types, sizeof types);
            }
    return n;
}

static int list_dims(conform *c)
{
    uint32_t most = c->kernel->dims, step = c->kernel->family->step;
    int n = 0;
    for (int i = 0; i < COUNT(dims); i++)
        if (dims[i][0] < most && dims[i][1] < most && dims[i][0] % step == 0 &&
            dims[i][1] % step == 0)
            memcpy(c->dims[n++], dims[i], sizeof dims[i]);
    c->dims[n][0] = c->dims[n][1] = most;
    return n + 1;
}

/* Claims without a level. */
static void note_unknown(conform *c)
{
    const ker_kernel *k = c->kernel;
    uint32_t kv = k->kv, extras = k->extras,
             all = KER_EXTRA_CAP | KER_EXTRA_ALIBI | KER_EXTRA_SINKS | KER_EXTRA_GIVEN;
    for (int i = 0; i < COUNT(floats); i++)
        kv &= ~(1u << floats[i]);
    if (k->masks & ~(uint32_t)KER_MASK_BOUNDS)
        snprintf(c->unknown, sizeof c->unknown, "masks = %s", k->words[3]);
    else if (kv)
        snprintf(c->unknown, sizeof c->unknown, "kv = %s", k->words[1]);
    else if (extras & ~all)
        snprintf(c->unknown, sizeof c->unknown, "extras = %s", k->words[4]);
    else if (k->rows & ~3u || !k->rows)
        snprintf(c->unknown, sizeof c->unknown, "rows = %s", k->words[0]);
}

void conform_make(conform *c, const ker_kernel *kernel)
{
    *c = (conform){.kernel = kernel};
    note_unknown(c);
    uint32_t extras = kernel->extras;
    int n_phases = 0;
    for (int phase = 0; phase < 2; phase++)
        if (kernel->rows & 1u << phase)
            c->phase[n_phases++] = phase;
    c->phase[n_phases++] = MIXED;
    for (int i = 0; i <= GIVEN; i++)
        c->source[i] = i;
    c->levels = (cover){
        .n_factors = CONFORM_N_FACTORS,
        .n_levels = {[CONFORM_PHASE] = n_phases,
                     [CONFORM_TYPES] = list_types(c),
                     [CONFORM_DIMS] = list_dims(c),
                     [CONFORM_HEADS] = COUNT(heads),
                     [CONFORM_BLOCK] = COUNT(blocks),
                     [CONFORM_LAYOUT] = N_LAYOUTS,
                     [CONFORM_SOURCE] = extras & KER_EXTRA_GIVEN ? GIVEN + 1 : GIVEN,
                     [CONFORM_MASK] = list_masks(c),
                     [CONFORM_WINDOW] = COUNT(windows),
                     [CONFORM_CHUNK] = COUNT(chunks),
                     [CONFORM_CAP] = extras & KER_EXTRA_CAP ? COUNT(caps) : 1,
                     [CONFORM_ALIBI] = extras & KER_EXTRA_ALIBI ? 2 : 1,
                     [CONFORM_SINKS] = extras & KER_EXTRA_SINKS ? 2 : 1,
                     [CONFORM_ROPE] = N_ROPES,
                     [CONFORM_POSITION] = N_POSITIONS,
                     [CONFORM_LENGTHS] = N_LENGTHS,
                     [CONFORM_QUERIES] = N_QUERIES,
                     [CONFORM_SPLITS] = COUNT(splits),
                     [CONFORM_INVARIANT] = 2,
                     [CONFORM_AMPLITUDE] = COUNT(amplitudes),
                     [CONFORM_ROWS] = N_ROWS_LAYOUTS,
                     [CONFORM_POISON] = COUNT(poisons)},
        .fits = fits,
        .context = c,
    };
}

/* ---- A row of levels → a problem. -------------------------------------------------------------
 */

static void set_lengths(const conform *c, const int *row, uint64_t seed, rig_spec *s)
{
    int32_t size = s->given ? 16 : (int32_t)s->block_size;
    const int32_t lengths[N_LENGTHS][4] = {
        [LENGTHS_FEW] = {3, 0, 1, 2},
        [LENGTHS_OF_BLOCKS] = {size + 1, size - 1, size, 2 * size + 1},
        [LENGTHS_OF_TILES] = {KER_TILE_KEYS, KER_TILE_KEYS + 1, 2 * KER_TILE_KEYS + 1,
                              KER_TILE_KEYS - 1},
        [LENGTHS_LONG] = {2500, 1025, 5, 1500},
        [LENGTHS_MANY] = {40, 17, 0, 90},
    };
    int profile = row[CONFORM_LENGTHS], phase = c->phase[row[CONFORM_PHASE]];
    s->n_seqs = profile == LENGTHS_MANY ? 17 : 4;
    s->n_contexts = phase == KER_GENERATION ? 0 : phase == KER_CONTEXT ? s->n_seqs : s->n_seqs / 2;
    for (uint32_t b = 0; b < s->n_seqs; b++)
        s->kv_len[b] = lengths[profile][(b + seed) % 4];
}

static void set_queries(const int *row, uint64_t seed, rig_spec *s)
{
    static const int32_t ragged[] = {1, 0, 3, 8, 5};
    for (uint32_t b = 0; b < s->n_seqs; b++) {
        bool is_context = b < s->n_contexts;
        int32_t kv_len = s->kv_len[b];
        const int32_t wanted[N_QUERIES] = {
            [QUERIES_ONE] = 1,
            [QUERIES_GROUP] = 4,
            [QUERIES_RAGGED] = ragged[(b + seed) % 5],
            [QUERIES_PROMPT] = is_context ? kv_len - (int32_t)(seed % 2 * 7) : 17,
            [QUERIES_MORE] = kv_len + 3,
        };
        int32_t q_len = wanted[row[CONFORM_QUERIES]];
        /* A generation's row without keys is a client's padding. */
        bool may_exceed = !s->append && (is_context || kv_len == 0);
        if (q_len > kv_len && !may_exceed)
            q_len = kv_len;
        s->q_len[b] = q_len < 0 ? 0 : q_len > 130 ? 130 : q_len;
    }
}

static double cost_of(const rig_spec *s, uint32_t b)
{
    return (double)s->q_len[b] * s->kv_len[b] * s->n_heads * (s->d + s->dv);
}

/* Halves the costliest sequences, then leaves sequences out, until the oracle has time for it. */
static void shrink(rig_spec *s)
{
    for (;;) {
        double total = 0, most = -1;
        uint32_t worst = 0;
        for (uint32_t b = 0; b < s->n_seqs; b++) {
            total += cost_of(s, b);
            if (cost_of(s, b) > most) {
                most = cost_of(s, b);
                worst = b;
            }
        }
        if (total <= MAX_COST)
            break;
        if (s->q_len[worst] > 4)
            s->q_len[worst] /= 2;
        else if (s->kv_len[worst] > 8)
            s->kv_len[worst] = s->kv_len[worst] / 2 + 1;
        else
            break;
    }
    double block = (double)s->block_size * s->n_kv_heads * (s->d + s->dv) * rig_size(s->kv);
    uint32_t fewest = s->n_contexts > 0 && s->n_contexts < s->n_seqs ? 2 : 1;
    while (!s->given && s->n_seqs > fewest && block * s->n_seqs > MAX_POOL) {
        uint32_t left_out = s->n_contexts > s->n_seqs - s->n_contexts ? 0 : s->n_seqs - 1;
        s->n_seqs--;
        if (left_out == 0) {
            s->n_contexts--;
            memmove(s->q_len, s->q_len + 1, s->n_seqs * sizeof *s->q_len);
            memmove(s->kv_len, s->kv_len + 1, s->n_seqs * sizeof *s->kv_len);
        }
    }
}

static void set_rope(const int *row, rig_spec *s)
{
    int rope = row[CONFORM_ROPE], position = row[CONFORM_POSITION];
    uint32_t some = s->d / 2 / 2 * 2;
    if (rope == 0)
        return;
    s->rope = rope <= 2 ? ATTND_ROPE_NEOX : ATTND_ROPE_GPTJ;
    s->rope_dim = rope % 2 || some == 0 ? s->d / 2 * 2 : some;
    s->positions = position == 2 || position == 4;
    s->deltas = position == 3 || position == 4;
    s->cos_sin = position == 5;
}

/* The problem of a row of levels, and how many splits to run it in. */
static void make_spec(const conform *c, const int *row, uint64_t seed, rig_spec *s,
                      uint32_t *n_splits)
{
    int from = c->source[row[CONFORM_SOURCE]];
    *s = (rig_spec){
        .name = c->kernel->name,
        .dtype = c->types[row[CONFORM_TYPES]][0],
        .kv = c->types[row[CONFORM_TYPES]][1],
        .out = c->types[row[CONFORM_TYPES]][2],
        .n_heads = heads[row[CONFORM_HEADS]][0],
        .n_kv_heads = heads[row[CONFORM_HEADS]][1],
        .d = c->dims[row[CONFORM_DIMS]][0],
        .dv = c->dims[row[CONFORM_DIMS]][1],
        .block_size = from == GIVEN ? 16 : blocks[row[CONFORM_BLOCK]],
        .nhd = row[CONFORM_LAYOUT] % 2,
        .gapped = row[CONFORM_LAYOUT] / 2,
        .given = from == GIVEN,
        .append = from >= BY_TABLE && from <= BY_SLOTS_OR_NOT,
        .slots = from == BY_SLOTS || from == BY_SLOTS_OR_NOT,
        .skips = from == BY_SLOTS_OR_NOT,
        .kinds = c->masks[row[CONFORM_MASK]],
        .window = windows[row[CONFORM_WINDOW]],
        .chunk = chunks[row[CONFORM_CHUNK]],
        .softcap = caps[row[CONFORM_CAP]],
        .alibi = row[CONFORM_ALIBI],
        .sinks = row[CONFORM_SINKS],
        .amplitude = amplitudes[row[CONFORM_AMPLITUDE]],
        .batch_invariant = row[CONFORM_INVARIANT],
        .rows = (rig_rows)row[CONFORM_ROWS],
        .align = c->kernel->family->align,
        .poison = poisons[row[CONFORM_POISON]],
        .seed = seed,
    };
    set_rope(row, s);
    set_lengths(c, row, seed, s);
    set_queries(row, seed, s);
    shrink(s);
    *n_splits = splits[row[CONFORM_SPLITS]];
}

/* ---- Running and judging. ---------------------------------------------------------------------
 */

const char *conform_line_name(int line)
{
    static const char *const features[] = {
#define X(name, text, has) text,
        CONFORM_FEATURES(X)
#undef X
    };
    return line < NEAR_N_PATHS ? near_gate_of((near_path)line).name : features[line - NEAR_N_PATHS];
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void add_run(conform_table *table, const rig_spec *s, uint32_t n_splits, const rig_errors *e,
                    double seconds)
{
    const bool has[] = {
#define X(name, text, has) has,
        CONFORM_FEATURES(X)
#undef X
    };
    double worst = fmax(e->out, fmax(e->rms, e->lse));
    table->n_runs++;
    table->seconds += seconds;
    for (int line = 0; line < CONFORM_N_LINES; line++) {
        bool is_path = line < NEAR_N_PATHS;
        if (is_path ? (int)near_path_for(s->dtype, s->kv, s->out) != line
                    : !has[line - NEAR_N_PATHS])
            continue;
        table->line[line].n_runs++;
        table->line[line].worst = fmax(table->line[line].worst, worst);
    }
}

/* One problem on one device. */
static bool run_on(rig *x, const conform *c, int device, uint32_t n_splits, conform_table *table,
                   char *text)
{
    ker_reason reason;
    for (int phase = 0; phase < 2; phase++)
        if (c->kernel->rows & 1u << phase &&
            !ker_kernel_serves(c->kernel, ker_device_level(rig_devices[device]), &x->problem,
                               (ker_phase)phase, &reason)) {
            snprintf(text, CONFORM_TEXT, "claimed and refused: %s: %s", reason.subject,
                     reason.wants);
            return false;
        }
    /* A phase of a mixed batch that is not this kernel's and nobody's. */
    if (!rig_serves(x, rig_devices[device], c->kernel))
        return true;
    double begin = now();
    rig_run(x, rig_devices[device], n_splits, c->kernel);
    double seconds = now() - begin;
    rig_errors e = rig_errors_of(x);
    snprintf(text, CONFORM_TEXT, "%s", e.text);
    if (table)
        add_run(&table[device], &x->spec, n_splits, &e, seconds);
    return e.ok;
}

static void describe(const conform *c, const int *row, uint64_t seed, size_t n, const char *device,
                     const char *why, char *text)
{
    static const char *const names[] = {
#define X(name, text) text,
        CONFORM_FACTORS(X)
#undef X
    };
    char levels[512] = "";
    size_t used = 0;
    for (int f = 0; f < CONFORM_N_FACTORS && used < sizeof levels; f++)
        used += (size_t)snprintf(levels + used, sizeof levels - used, " %s=%d", names[f], row[f]);
    snprintf(text, CONFORM_TEXT, "%s on %s, --seed %llu --case %zu: %.400s\n(%.500s)",
             c->kernel->name, device, (unsigned long long)seed, n, why, levels);
}

bool conform_run(const conform *c, uint64_t seed, long only, conform_table *table, char *text)
{
    bool ok = true;
    if (c->unknown[0]) {
        snprintf(text, CONFORM_TEXT, "%s claims %s, of which no problem is made", c->kernel->name,
                 c->unknown);
        return false;
    }
    cover_rows rows = cover_make(&c->levels, seed);
    assert_true(rows.n > 0);
    for (size_t n = 0; ok && n < rows.n; n++) {
        rig x;
        rig_spec s;
        uint32_t n_splits;
        char why[CONFORM_TEXT];
        if (only >= 0 && n != (size_t)only)
            continue;
        make_spec(c, rows.row[n], seed * 1000 + n, &s, &n_splits);
        rig_make(&x, &s);
        rig_judge(&x);
        EACH_DEVICE(i)
        {
            if (!rig_has_level(rig_devices[i], c->kernel))
                continue;
            if (table)
                table[i].n_cases++;
            ok = run_on(&x, c, i, n_splits, table, why);
            if (!ok) {
                describe(c, rows.row[n], seed, n, rig_device_names[i], why, text);
                break;
            }
        }
        rig_free(&x);
    }
    cover_free(&rows);
    return ok;
}
