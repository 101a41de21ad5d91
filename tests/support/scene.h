/* scene.h: a paged call of the oracle made of a few numbers, and what tests say of its result.
 *
 * Keys lie in shuffled blocks of a pool that is NaN wherever no key is. Needs cmocka.h.
 */
#ifndef ATTND_TESTS_SUPPORT_SCENE_H
#define ATTND_TESTS_SUPPORT_SCENE_H

#include "tests/oracle/oracle.h"

enum { SCENE_SEQS = 4, SCENE_BLOCKS = 257 };

typedef struct scene {
    ora_problem p; /* causal, of default scale; its arrays are those below */
    int32_t q_len[SCENE_SEQS], kv_len[SCENE_SEQS];
    int32_t block_ids[SCENE_BLOCKS];
    char *pool;
    char *q;
    size_t pool_bytes;
} scene;

typedef struct scene_shape {
    uint32_t n_seqs, n_heads, n_kv_heads, D, Dv, T;
    attnd_dtype dtype;
    attnd_layout layout;
    int32_t q_len[SCENE_SEQS], kv_len[SCENE_SEQS];
} scene_shape;

/* Three sequences of 17, 1 and 4 rows, bf16, 6 heads over 2. */
extern const scene_shape SCENE_MIXED;

/* What a key holds: the generated number, or 0 for K and the position for V ("K=0, V=pos"), then q
 * is 0 too. */
typedef enum scene_fill { SCENE_RANDOM, SCENE_POSITIONS } scene_fill;

void scene_open(scene *s, const scene_shape *shape, scene_fill how);
void scene_close(scene *s);

/* Bytes of key j of sequence b and kv head g. */
char *scene_key(const scene *s, uint32_t b, int32_t j, uint32_t g, int plane);

/* The answer; fails the test when there is none. */
ora_result scene_attend(const ora_problem *p);

/* To relative·max(1, |want|); equal infinities and NaNs are near. */
void assert_near(double got, double want, double relative);

/* Every channel of O is o, LSE is lse, both to 1e-6; of an empty row exactly. */
void assert_row(const ora_result *r, int64_t row, double o, double lse);

/* O, LSE and the number of visible keys. */
void assert_same(const ora_result *a, const ora_result *b, double relative);

/* Bit for bit. */
void assert_identical(const ora_result *a, const ora_result *b);

/* Both problems have one answer; relative 0: bit for bit. */
void assert_problems_same(const ora_problem *a, const ora_problem *b, double relative);

/* ora_attend() refuses with this reason and text, and leaves no result. */
void assert_refused(const ora_problem *p, attnd_reason reason, const char *text);

#endif
