/* output.c: outputs in fewer bits (attention.md §14.7), and the scales around them (§8). */
#include <string.h>

#include "tests/oracle/blocks.h"
#include "tests/oracle/codec.h"
#include "tests/oracle/oracle.h"

static double factor(double given)
{
    return given == 0 ? 1 : given;
}

double ora_score_scale(double sm_scale, double q_quant_orig, double k_quant_orig)
{
    return sm_scale * factor(q_quant_orig) * factor(k_quant_orig);
}

double ora_value_scale(double v_quant_orig, double out_orig_quant)
{
    return factor(v_quant_orig) * factor(out_orig_quant);
}

void ora_output_e4m3(const ora_result *result, float out_scale, uint8_t *bytes)
{
    size_t n = (size_t)result->n_tokens * result->n_heads * result->head_dim_v;
    ora_encode_scaled(ATTND_DTYPE_E4M3, result->out, n, out_scale, bytes);
}

static int64_t up_to(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

size_t ora_swizzle_bytes(int64_t rows, int64_t columns)
{
    return (size_t)(up_to(rows, 128) * up_to(columns, 4));
}

int64_t ora_swizzle_offset(int64_t row, int64_t column, int64_t columns)
{
    return row / 128 * (up_to(columns, 4) / 4) * 512 + column / 4 * 512 + row % 32 * 16 +
           row % 128 / 32 * 4 + column % 4;
}

void ora_output_nvfp4(const ora_result *result, float out_scale, uint8_t *codes, uint8_t *scales)
{
    int64_t width = (int64_t)result->n_heads * result->head_dim_v;
    int64_t columns = width / ORA_NVFP4_BLOCK;
    memset(scales, 0, ora_swizzle_bytes(result->n_tokens, columns));
    for (int64_t row = 0; row < result->n_tokens; row++)
        for (int64_t column = 0; column < columns; column++) {
            int64_t first = row * width + column * ORA_NVFP4_BLOCK;
            ora_nvfp4_encode(result->out + first, ORA_NVFP4_BLOCK, out_scale, codes + first / 2,
                             scales + ora_swizzle_offset(row, column, columns));
        }
}
