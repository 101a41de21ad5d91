/* cover.h: few rows that hold every pair of levels of any two factors.
 *
 * A row names one level for each factor. Pairs that no row may hold are left out.
 */
#ifndef ATTND_TESTS_KERNELS_COVER_H
#define ATTND_TESTS_KERNELS_COVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COVER_MAX_FACTORS = 32, COVER_MAX_LEVELS = 32 };

/* Whether a row may hold these levels; -1 is not chosen yet. Must be true for some level of every
 * factor left, whatever was chosen and found true before. */
typedef bool cover_fits(const void *context, const int *row);

typedef struct cover {
    int n_factors;
    int n_levels[COVER_MAX_FACTORS];
    cover_fits *fits; /* NULL: anything goes */
    const void *context;
} cover;

typedef struct cover_rows {
    int (*row)[COVER_MAX_FACTORS]; /* [n] */
    size_t n;
    size_t n_pairs; /* held by them: every pair that may be */
} cover_rows;

/* The same rows for the same seed. The caller frees them with cover_free(). NULL without memory. */
cover_rows cover_make(const cover *c, uint64_t seed);
void cover_free(cover_rows *rows);

#endif
