/* capture_print.c: a copied request as a case file, tests/cases/format.md. On a worker thread. */
#include <inttypes.h>
#include <string.h>

#include "daemon/capture_record.h"

/* ---- Values -----------------------------------------------------------------------------------
 */

static void print_base64(FILE *f, const char *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *at = (const unsigned char *)bytes;
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i < 3 ? n - i : 3;
        uint32_t bits = (uint32_t)at[i] << 16;
        char text[5] = "====";
        bits |= left > 1 ? (uint32_t)at[i + 1] << 8 : 0;
        bits |= left > 2 ? at[i + 2] : 0;
        for (size_t d = 0; d <= left; d++)
            text[d] = digits[bits >> (18 - 6 * d) & 63];
        fputs(text, f);
    }
}

/* FNV1a64, as attnctl check makes it of what it got. */
static uint64_t hash_of(const srv_copy *copy)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < copy->n_bytes; i++)
        hash = (hash ^ (unsigned char)copy->bytes[i]) * 0x100000001B3u;
    return hash;
}

static void print_ints(FILE *f, const int32_t *values, int64_t n)
{
    fputc('[', f);
    for (int64_t i = 0; i < n; i++)
        fprintf(f, "%s%d", i ? ", " : "", values[i]);
    fputc(']', f);
}

/* An input; false without one. */
static void print_tensor(FILE *f, const char *name, const srv_copy *copy, bool with_data)
{
    if (!copy->dtype)
        return;
    fprintf(f, ",\n        \"%s\": {\"dtype\": \"%s\", ", name, attnd_dtype_name(copy->dtype));
    if (!with_data) {
        fprintf(f, "\"hash\": \"%016" PRIx64 "\"}", hash_of(copy));
        return;
    }
    fprintf(f, "\"base64\": \"");
    print_base64(f, copy->bytes, copy->n_bytes);
    fprintf(f, "\"}");
}

/* ---- The model --------------------------------------------------------------------------------
 */

static void print_layer(FILE *f, const srv_taken *t)
{
    static const char *const pairings[] = {"none", "neox", "gptj"};
    const ker_problem *p = &t->problem;
    fprintf(f,
            "{\"kind\": \"%s\", \"group\": %u, \"n_heads\": %u, \"n_kv_heads\": %u, "
            "\"head_dim\": %u, \"head_dim_v\": %u, \"sm_scale\": %.9g",
            attnd_layer_kind_name(p->kind), t->pool, p->n_heads, p->n_kv_heads, p->head_dim,
            p->head_dim_v, p->sm_scale);
    if (p->mask.kinds & KER_MASK_WINDOW)
        fprintf(f, ", \"window\": %d", p->mask.window);
    if (p->mask.kinds & KER_MASK_CHUNK)
        fprintf(f, ", \"chunk\": %d", p->mask.chunk);
    if (p->bias.softcap > 0)
        fprintf(f, ", \"softcap\": %.9g", p->bias.softcap);
    if (p->rope.pairing != ATTND_ROPE_NONE)
        fprintf(f, ", \"rope\": {\"pairing\": \"%s\", \"dim\": %u, \"theta\": %.17g}",
                pairings[p->rope.pairing], p->rope.dim, t->theta);
    fputc('}', f);
}

static void print_spec(FILE *f, const srv_record *r)
{
    fprintf(f, "  \"spec\": {\n    \"layers\": [");
    for (uint32_t i = 0; i < r->n_taken; i++) {
        fputs(i ? ",\n      " : "\n      ", f);
        print_layer(f, &r->taken[i]);
    }
    fprintf(f, "\n    ],\n    \"groups\": [");
    for (uint32_t s = 0; s < r->n_seen; s++) {
        const srv_seen *seen = &r->seen[s];
        fprintf(f,
                "%s\n      {\"block_size\": %u, \"kv_dtype\": \"%s\", \"layout\": \"%s\", "
                "\"n_blocks\": %u}",
                s ? "," : "", seen->block_size, attnd_dtype_name(seen->dtype),
                seen->is_nhd ? "nhd" : "hnd", seen->n_blocks ? seen->n_blocks : 1);
    }
    fprintf(f, "\n    ]\n  },\n");
}

/* ---- Steps ------------------------------------------------------------------------------------
 */

/* Part of the rows of a pool, as a tensor. */
static void print_rows(FILE *f, const char *name, const srv_copy *copy, int64_t first, int64_t n)
{
    size_t row = copy->n_rows ? copy->n_bytes / (size_t)copy->n_rows : 0;
    srv_copy part = *copy;
    part.bytes += (size_t)first * row;
    part.n_bytes = (size_t)n * row;
    print_tensor(f, name, &part, true);
}

/* Blocks [from, to), of which the last may be filled in part, as one sequence. */
static void print_write(FILE *f, const srv_record *r, uint32_t layer, uint32_t from, uint32_t to,
                        int64_t first, int64_t n)
{
    const srv_taken *t = &r->taken[layer];
    fprintf(f, "    {\"write\": {\"layer\": %u, \"kv_len\": %" PRId64 ", \"block_ids\": [", layer,
            n);
    for (uint32_t b = from; b < to; b++)
        fprintf(f, "%s%u", b > from ? ", " : "", b);
    fputc(']', f);
    print_rows(f, "k", &t->pool_k, first, n);
    print_rows(f, "v", &t->pool_v, first, n);
    fprintf(f, "}},\n");
}

static void print_writes(FILE *f, const srv_record *r, uint32_t layer)
{
    const srv_seen *seen = &r->seen[r->taken[layer].pool];
    uint32_t n_full = 0;
    int64_t row = 0;
    while (n_full < seen->n_blocks && seen->rows[n_full] == seen->block_size)
        n_full++;
    if (n_full)
        print_write(f, r, layer, 0, n_full, 0, (int64_t)n_full * seen->block_size);
    row = (int64_t)n_full * seen->block_size;
    for (uint32_t b = n_full; b < seen->n_blocks; b++) {
        if (seen->rows[b])
            print_write(f, r, layer, b, b + 1, row, seen->rows[b]);
        row += seen->rows[b];
    }
}

/* A hash of zeros and ones stands for nothing when inputs are hashes too: it is for people. */
static void print_exact(FILE *f, const srv_copy *out, const srv_copy *lse)
{
    fprintf(f, "     \"expect\": {\"exact\": {\"out\": \"%016" PRIx64 "\"", hash_of(out));
    if (lse->dtype)
        fprintf(f, ", \"lse\": \"%016" PRIx64 "\"", hash_of(lse));
    fprintf(f, "}}}");
}

/* The type of an output, or that it is not asked for. */
static void print_output(FILE *f, const char *name, const srv_copy *copy)
{
    if (copy->dtype)
        fprintf(f, ",\n        \"%s\": {\"dtype\": \"%s\"}", name, attnd_dtype_name(copy->dtype));
    else
        fprintf(f, ",\n        \"%s\": false", name);
}

static void print_attend(FILE *f, const srv_record *r, uint32_t layer)
{
    const srv_taken *t = &r->taken[layer];
    const ker_problem *p = &t->problem;
    fprintf(f, "    {\"attend\": {\"layer\": %u, \"batch\": {\n        \"n_contexts\": %u,\n",
            layer, p->batch.n_contexts);
    fprintf(f, "        \"q_lens\": ");
    print_ints(f, p->batch.q_len, p->batch.n_seqs);
    fprintf(f, ",\n        \"kv_lens\": ");
    print_ints(f, p->batch.kv_len, p->batch.n_seqs);
    fprintf(f, ",\n        \"tables\": [{\"group\": %u, \"block_ids\": ", t->pool);
    print_ints(f, t->table, t->n_table);
    fprintf(f, "}]");
    if (t->slots) {
        fprintf(f, ",\n        \"slots\": ");
        print_ints(f, t->slots, p->batch.n_tokens);
    }
    if (p->batch.positions) {
        fprintf(f, ",\n        \"positions\": ");
        print_ints(f, p->batch.positions, p->batch.n_tokens);
    }
    fprintf(f, ",\n        \"mask\": \"%s\"}", p->mask.kinds & KER_MASK_CAUSAL ? "causal" : "full");
    print_tensor(f, "q", &t->q, r->with_data);
    print_tensor(f, "k", &t->k, r->with_data);
    print_tensor(f, "v", &t->v, r->with_data);
    print_output(f, "out", &t->out);
    print_output(f, "lse", &t->lse);
    print_output(f, "stats", &t->stats);
    if (p->batch_invariant)
        fprintf(f, ",\n        \"batch_invariant\": true");
    fprintf(f, "},\n");
    print_exact(f, &t->out, &t->lse);
}

static void print_merge(FILE *f, const srv_record *r)
{
    const srv_copy *out = &r->merged[0];
    fprintf(f,
            "    {\"merge\": {\"n_tokens\": %" PRId64 ", \"n_heads\": %u, \"width\": %u,\n"
            "      \"partials\": [",
            out->n_rows, out->n_heads, out->width);
    for (uint32_t i = 0; i < r->n_parts; i++) {
        fprintf(f, "%s{\"use_stats\": %s", i ? ", " : "", r->parts[i][1].dtype ? "false" : "true");
        print_tensor(f, "out", &r->parts[i][0], r->with_data);
        print_tensor(f, "lse", &r->parts[i][1], r->with_data);
        print_tensor(f, "stats", &r->parts[i][2], r->with_data);
        fputc('}', f);
    }
    fputc(']', f);
    print_output(f, "out", out);
    print_output(f, "lse", &r->merged[1]);
    print_output(f, "stats", &r->merged[2]);
    fprintf(f, "},\n");
    print_exact(f, out, &r->merged[1]);
}

/* Text as JSON takes it: what is no plain character is left out. */
static void print_plain(FILE *f, const char *text)
{
    for (; *text; text++)
        if (*text >= ' ' && *text < 0x7f && *text != '"' && *text != '\\')
            fputc(*text, f);
}

void srv_record_print(FILE *f, const srv_record *r, const ker_device_info *device)
{
    fprintf(f, "{\n  \"about\": \"captured: %s of session %u\",\n", r->op, r->session);
    fprintf(f, "  \"captured\": {\"backend\": \"%s\", \"isa\": \"%s\", \"device\": \"",
            device->backend, device->isa);
    print_plain(f, device->name);
    fprintf(f, "\", \"data\": %s},\n", r->with_data ? "true" : "false");
    if (r->n_taken) {
        fprintf(f, "  \"dtype\": \"%s\",\n", attnd_dtype_name(r->taken[0].q.dtype));
        print_spec(f, r);
    }
    fprintf(f, "  \"steps\": [\n");
    for (uint32_t i = 0; i < r->n_taken; i++) {
        if (r->with_data)
            print_writes(f, r, i);
        print_attend(f, r, i);
        fputs(i + 1 < r->n_taken ? ",\n" : "", f);
    }
    if (r->n_parts)
        print_merge(f, r);
    fprintf(f, "\n  ]\n}\n");
}
