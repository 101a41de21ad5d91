/* case_tensor.c: descriptions of tensors and tables into bytes and ids. */
#include "tests/oracle/case_tensor.h"

#include <stdlib.h>
#include <string.h>

#include "tests/oracle/case_json.h"
#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"

/* ---- Values -----------------------------------------------------------------------------------
 */

static attnd_status no_memory(const ora_want *want, size_t n, attnd_err *err)
{
    return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory for %zu elements", want->field, n);
}

/* Does a description have a value for every element? */
static attnd_status check_shape(const ora_case_tensor *t, const ora_want *want, size_t rows,
                                attnd_err *err)
{
    size_t n = rows * want->heads * want->width, wanted[3] = {rows, want->heads, want->width};
    static const char *const what[3] = {"rows", "heads", "channels"};
    if (t->source == ORA_CASE_BYTES)
        return ATTND_OK;
    if (t->take.given && t->take.n != rows)
        return attnd_fail(err, ATTND_BAD_CONFIG, "%s.take = %zu rows: there are %zu", want->field,
                          t->take.n, rows);
    if (t->source != ORA_CASE_VALUES)
        return ATTND_OK;
    if (t->n_dims == 1) {
        if (t->dims[0] != n && !t->repeat)
            return attnd_fail(err, ATTND_BAD_CONFIG, "%s.values = %zu numbers: there are %zu",
                              want->field, t->dims[0], n);
        return ATTND_OK;
    }
    for (int d = 0; d < 3; d++)
        if (t->dims[d] != 1 && (d == 2 ? t->dims[d] > wanted[d] : t->dims[d] != wanted[d]))
            return attnd_fail(err, ATTND_BAD_CONFIG, "%s = %zu %s: there are %zu", want->field,
                              t->dims[d], what[d], wanted[d]);
    return ATTND_OK;
}

static double value_at(const ora_case_tensor *t, size_t n_heads, size_t width, size_t row, size_t h,
                       size_t d)
{
    if (t->n_dims == 1)
        return t->values[((row * n_heads + h) * width + d) % t->dims[0]];
    size_t r = t->dims[0] == 1 ? 0 : row, g = t->dims[1] == 1 ? 0 : h;
    size_t c = t->dims[2] == 1 ? 0 : d;
    return c < t->dims[2] ? t->values[(r * t->dims[1] + g) * t->dims[2] + c] : 0;
}

static double element_of(const ora_case_tensor *t, const ora_want *want, size_t row, size_t h,
                         size_t d)
{
    int64_t in_layer = (int64_t)(row % (size_t)(want->rows ? want->rows : 1));
    int64_t position = want->positions ? want->positions[in_layer] : in_layer;
    uint64_t at = t->take.given ? (uint64_t)t->take.values[row] : row + t->first;
    switch (t->source) {
    case ORA_CASE_VALUES:
        return value_at(t, want->heads, want->width, row, h, d);
    case ORA_CASE_POSITION:
        return (double)position * t->scale + t->plus;
    case ORA_CASE_ONE_HOT:
        return (size_t)position % want->width == d;
    default:
        return (float)(t->amplitude *
                       ora_element(t->seed == ORA_CASE_NO_SEED ? want->seed : t->seed,
                                   t->name[0] ? t->name : want->field,
                                   (at * want->heads + h) * want->width + d));
    }
}

static const ora_case_patch *patch_of(const ora_case_tensor *t, size_t row)
{
    for (size_t p = t->n_patches; p > 0; p--)
        if (row >= t->patches[p - 1].row && row - t->patches[p - 1].row < t->patches[p - 1].n)
            return &t->patches[p - 1];
    return NULL;
}

attnd_status ora_tensor_values(ora_arena *arena, const ora_case_tensor *t, const ora_want *want,
                               double **out, attnd_err *err)
{
    size_t rows = (size_t)want->rows * want->n_layers, n = rows * want->heads * want->width;
    attnd_dtype dtype = t->dtype ? t->dtype : want->dtype;
    TRY(check_shape(t, want, rows, err));
    *out = ora_arena_take(arena, n + 1, sizeof **out);
    if (!*out)
        return no_memory(want, n, err);
    if (t->source == ORA_CASE_BYTES) {
        if (!ora_codec_has(dtype) || t->n_bytes != n * attnd_dtype_bits(dtype) / 8)
            return attnd_fail(err, ATTND_BAD_CONFIG, "%s.base64 = %zu bytes: %zu elements of %s",
                              want->field, t->n_bytes, n, attnd_dtype_name(dtype));
        ora_decode(dtype, t->bytes, n, *out);
        return ATTND_OK;
    }
    double *x = *out;
    for (size_t row = 0; row < rows; row++) {
        const ora_case_patch *patch = patch_of(t, row);
        for (size_t h = 0; h < want->heads; h++)
            for (size_t d = 0; d < want->width; d++)
                *x++ = patch ? patch->fill : element_of(t, want, row, h, d);
    }
    return ATTND_OK;
}

/* ---- Bytes ------------------------------------------------------------------------------------
 */

static int64_t element_bytes(const ora_bytes *b)
{
    return attnd_dtype_bits(b->dtype) / 8;
}

/* Byte of element (layer, row, head, channel) in the region; false: it is not in there, or the
 * shape on the wire is not the logical one. */
static bool place_of(const ora_bytes *b, int64_t layer, int64_t row, int64_t h, int64_t d,
                     int64_t *at)
{
    int64_t index[3] = {row, h, d}, offset = (int64_t)b->offset + layer * b->layer_stride;
    if (b->n_dims == 2 && b->width > 1) {
        index[1] = h * b->width + d;
        index[2] = 0;
    }
    if (!b->n_strides)
        offset += ((row * b->heads + h) * b->width + d) * element_bytes(b);
    for (uint32_t i = 0; i < b->n_strides && i < 3; i++) {
        int64_t step;
        if (__builtin_mul_overflow(index[i], b->strides[i], &step) ||
            __builtin_add_overflow(offset, step, &offset))
            return false;
    }
    *at = offset;
    return offset >= 0 && offset + element_bytes(b) <= (int64_t)b->n_region;
}

/* Copies element by element between the region and packed. */
static void move(ora_bytes *b, bool to_region)
{
    int64_t size = element_bytes(b), at;
    char *packed = b->packed;
    for (int64_t layer = 0; layer < b->n_layers; layer++)
        for (int64_t row = 0; row < b->rows; row++)
            for (int64_t h = 0; h < b->heads; h++)
                for (int64_t d = 0; d < b->width; d++, packed += size) {
                    if (!place_of(b, layer, row, h, d, &at))
                        continue;
                    if (to_region)
                        memcpy(b->region + at, packed, (size_t)size);
                    else
                        memcpy(packed, b->region + at, (size_t)size);
                }
}

void ora_tensor_gather(ora_bytes *tensor)
{
    if (tensor->given && tensor->packed != tensor->region)
        move(tensor, false);
}

/* The shape on the wire, its strides, and how many bytes it needs; false: more than can be. */
static bool lay_out(const ora_case_tensor *t, const ora_want *want, ora_bytes *b)
{
    b->n_dims = t->n_shape;
    memcpy(b->shape, t->shape, sizeof b->shape);
    if (!b->n_dims) {
        b->n_dims = want->is_flat ? 2 : 3;
        b->shape[0] = (uint64_t)want->rows;
        b->shape[1] = want->heads;
        b->shape[2] = want->width;
    }
    b->n_strides = t->n_strides;
    memcpy(b->strides, t->strides, sizeof b->strides);
    b->offset = t->offset;
    int64_t size = element_bytes(b);
    b->layer_stride = want->rows * want->heads * want->width * size;
    b->n_region = t->region;
    b->is_alone = t->region > 0;
    if (t->region)
        return true;
    bool is_too_far = false;
    int64_t bytes;
    if (b->n_strides)
        b->layer_stride = size;
    for (uint32_t i = 0; i < b->n_strides && i < b->n_dims; i++)
        if (b->strides[i] > 0 && b->shape[i] > 0)
            is_too_far |= __builtin_mul_overflow(b->shape[i] - 1, b->strides[i], &bytes) ||
                          __builtin_add_overflow(b->layer_stride, bytes, &b->layer_stride);
    is_too_far |= __builtin_mul_overflow(b->layer_stride, b->n_layers, &bytes) ||
                  __builtin_add_overflow(bytes, b->offset, &bytes);
    b->n_region = (size_t)bytes;
    return !is_too_far;
}

/* Elements of all layers, such that their bytes can be counted; false: too many. */
static bool count_elements(const ora_want *want, size_t *n)
{
    size_t of_a_layer = (size_t)want->rows;
    return !__builtin_mul_overflow(of_a_layer, want->heads, &of_a_layer) &&
           !__builtin_mul_overflow(of_a_layer, want->width, &of_a_layer) &&
           !__builtin_mul_overflow(of_a_layer, want->n_layers, n) && of_a_layer <= INT64_MAX / 64 &&
           *n <= INT64_MAX / 64;
}

/* Long contexts are mostly poison and zeros: they are not worth a codec an element. */
static bool is_one_number(const ora_case_tensor *t)
{
    return t->source == ORA_CASE_VALUES && t->dims[0] * t->dims[1] * t->dims[2] == 1 &&
           (t->n_dims == 3 || t->repeat) && t->n_patches == 0;
}

static attnd_status fill_packed(ora_arena *arena, const ora_case_tensor *t, const ora_want *want,
                                ora_bytes *b, attnd_err *err)
{
    double *values;
    if (want->is_output) {
        memset(b->packed, 0xFF, b->n_packed);
        memset(b->region, 0xFF, b->n_region);
        return ATTND_OK;
    }
    if (t->source == ORA_CASE_BYTES) {
        if (t->n_bytes != b->n_packed)
            return attnd_fail(err, ATTND_BAD_CONFIG, "%s.base64 = %zu bytes: there are %zu",
                              want->field, t->n_bytes, b->n_packed);
        memcpy(b->packed, t->bytes, b->n_packed);
        return ATTND_OK;
    }
    /* What has no number is there for its refusal. */
    if (!ora_codec_has(b->dtype))
        return ATTND_OK;
    if (is_one_number(t)) {
        size_t size = (size_t)element_bytes(b);
        TRY(check_shape(t, want, (size_t)want->rows * want->n_layers, err));
        for (size_t at = 0; at < b->n_packed; at += size)
            if (at == 0)
                ora_encode(b->dtype, t->values, 1, b->packed);
            else
                memcpy(b->packed + at, b->packed, size);
        return ATTND_OK;
    }
    TRY(ora_tensor_values(arena, t, want, &values, err));
    ora_encode(b->dtype, values, b->n_packed / (size_t)element_bytes(b), b->packed);
    return ATTND_OK;
}

attnd_status ora_tensor_make(ora_arena *arena, const ora_case_tensor *t, const ora_want *want,
                             ora_bytes *out, attnd_err *err)
{
    *out = (ora_bytes){.given = t->given,
                       .dtype = t->dtype ? t->dtype : want->dtype,
                       .rows = want->rows,
                       .n_layers = want->n_layers,
                       .heads = want->heads,
                       .width = want->width};
    if (!t->given)
        return ATTND_OK;
    size_t n;
    if (!count_elements(want, &n) || !lay_out(t, want, out))
        return attnd_fail(err, ATTND_BAD_CONFIG, "%s: more bytes than memory has addresses",
                          want->field);
    out->n_packed = n * attnd_dtype_bits(out->dtype) / 8;
    out->packed = ora_arena_take(arena, out->n_packed + 1, 1);
    out->region = out->packed;
    bool is_plain = !out->n_strides && !out->offset && out->n_region == out->n_packed;
    if (!is_plain)
        out->region = ora_arena_take(arena, out->n_region + 1, 1);
    if (!out->packed || !out->region)
        return no_memory(want, n, err);
    TRY(fill_packed(arena, t, want, out, err));
    if (!is_plain && !want->is_output)
        move(out, true);
    return ATTND_OK;
}

/* ---- Tables -----------------------------------------------------------------------------------
 */

/* All blocks of a pool in an order. */
static void put_in_order(const ora_case_blocks *blocks, uint32_t n, int32_t *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = blocks->order == ORA_CASE_DESCENDING ? (int32_t)(n - 1 - i) : (int32_t)i;
    if (blocks->order != ORA_CASE_SHUFFLED)
        return;
    for (uint32_t i = n; i > 1; i--) {
        double draw = ora_element(blocks->seed, "block_ids", i) / 7 + 0.5; /* |x| ≤ 3.47 */
        uint32_t other = (uint32_t)(draw * i);
        int32_t kept = out[i - 1];
        out[i - 1] = out[other];
        out[other] = kept;
    }
}

attnd_status ora_blocks_make(ora_arena *arena, const ora_case_blocks *blocks, uint32_t block_size,
                             uint32_t n_blocks, size_t n_seqs, const int64_t *first,
                             const int64_t *n, ora_case_ints *out, attnd_err *err)
{
    *out = blocks->ids;
    if (blocks->order == ORA_CASE_LIST)
        return ATTND_OK;
    int64_t row = ((int64_t)blocks->tokens + block_size - 1) / block_size, total = 0;
    for (size_t b = 0; b < n_seqs; b++)
        total += n[b];
    int32_t *order = ora_arena_take(arena, (size_t)n_blocks + 1, sizeof *order);
    out->values = ora_arena_take(arena, (size_t)total + 1, sizeof *out->values);
    if (!order || !out->values)
        return attnd_fail(err, ATTND_NO_ROOM, "block_ids: no memory for %u blocks", n_blocks);
    put_in_order(blocks, n_blocks, order);
    out->given = true;
    for (size_t b = 0; b < n_seqs; b++)
        for (int64_t i = 0; i < n[b]; i++) {
            int64_t at = (int64_t)(b + blocks->sequence) * row + first[b] + i;
            if (first[b] + i >= row || at >= n_blocks)
                return attnd_fail(err, ATTND_BAD_CONFIG,
                                  "block_ids.tokens = %u: entry %lld of sequence %zu; the pool has "
                                  "%u blocks",
                                  blocks->tokens, (long long)(first[b] + i), b, n_blocks);
            out->values[out->n++] = order[at];
        }
    return ATTND_OK;
}
