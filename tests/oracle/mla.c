/* mla.c: from latent rows to keys and values, and from q to the absorbed q (attention.md §11). */
#include "tests/oracle/mla.h"

#include <stdlib.h>
#include <string.h>

#include "tests/oracle/kv.h"

/* out[rows] = matrix[rows][columns] · x */
static void multiply(const double *matrix, size_t rows, size_t columns, const double *x,
                     double *out)
{
    for (size_t r = 0; r < rows; r++) {
        out[r] = 0;
        for (size_t c = 0; c < columns; c++)
            out[r] += matrix[r * columns + c] * x[c];
    }
}

void ora_mla_expand(const ora_mla *mla, const double *latents, int64_t n, double *k, double *v)
{
    size_t C = mla->rank, R = mla->rope_dim, dn = mla->nope_dim, dv = mla->v_dim;
    for (int64_t row = 0; row < n; row++, latents += C + R)
        for (uint32_t h = 0; h < mla->n_heads; h++, k += dn + R, v += dv) {
            multiply(mla->w_uk + h * dn * C, dn, C, latents, k);
            memcpy(k + dn, latents + C, R * sizeof *k);
            multiply(mla->w_uv + h * dv * C, dv, C, latents, v);
        }
}

void ora_mla_absorb(const ora_mla *mla, const double *q, int64_t n, double *absorbed)
{
    size_t C = mla->rank, R = mla->rope_dim, dn = mla->nope_dim;
    for (int64_t row = 0; row < n; row++)
        for (uint32_t h = 0; h < mla->n_heads; h++, q += dn + R, absorbed += C + R) {
            const double *w = mla->w_uk + h * dn * C;
            for (size_t c = 0; c < C; c++) {
                absorbed[c] = 0;
                for (size_t d = 0; d < dn; d++)
                    absorbed[c] += w[d * C + c] * q[d];
            }
            memcpy(absorbed + C, q + dn, R * sizeof *q);
        }
}

void ora_mla_project(const ora_mla *mla, const double *absorbed_out, int64_t n, double *out)
{
    size_t C = mla->rank, dv = mla->v_dim;
    for (int64_t row = 0; row < n; row++)
        for (uint32_t h = 0; h < mla->n_heads; h++, absorbed_out += C, out += dv)
            multiply(mla->w_uv + h * dv * C, dv, C, absorbed_out, out);
}

static attnd_status gather_rows(const ora_batch *batch, const ora_problem *p, uint32_t rank,
                                uint32_t seq, int64_t first, int64_t n, double *row, double *c,
                                double *k_pe, attnd_err *err)
{
    size_t R = p->head_dim - rank;
    for (int64_t k = 0; k < n; k++) {
        ora_place at;
        TRY(ora_kv_find(batch, p, seq, first + k, &at, err));
        ora_kv_load(p, at.kv, 0, seq, 0, at.slot, row);
        memcpy(c + k * rank, row, rank * sizeof *row);
        memcpy(k_pe + (size_t)k * R, row + rank, R * sizeof *row);
    }
    return ATTND_OK;
}

attnd_status ora_gather(const ora_problem *p, uint32_t rank, uint32_t seq, int64_t first, int64_t n,
                        double *c, double *k_pe, attnd_err *err)
{
    if (rank > p->head_dim || p->n_kv_heads != 1)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "rank = %u: up to %u, of one kv head", rank,
                          p->head_dim);
    if (seq >= p->n_seqs || first < 0 || n < 0 || first > p->kv_len[seq] - n)
        return attnd_fail(err, ATTND_BAD_LENGTH, "first = %lld, n = %lld: keys of sequence %u",
                          (long long)first, (long long)n, seq);
    ora_batch batch;
    double *row = NULL;
    attnd_status status = ora_batch_init(&batch, p, err);
    if (status == ATTND_OK && !(row = calloc(p->head_dim, sizeof *row)))
        status =
            attnd_fail(err, ATTND_NO_ROOM, "head_dim = %u: no memory for their row", p->head_dim);
    if (status == ATTND_OK)
        status = gather_rows(&batch, p, rank, seq, first, n, row, c, k_pe, err);
    free(row);
    ora_batch_fini(&batch);
    return status;
}
