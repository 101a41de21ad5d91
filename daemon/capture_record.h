/* capture_record.h: one request, copied, so that it can be written as a case file later. Inside
 * capture*.c only.
 */
#ifndef ATTND_DAEMON_CAPTURE_RECORD_H
#define ATTND_DAEMON_CAPTURE_RECORD_H

#include <stdio.h>

#include "daemon/request.h"
#include "proto/arena.h"

/* Values without gaps, [rows][heads][width]. */
typedef struct srv_copy {
    attnd_dtype dtype; /* NONE: not given */
    int64_t n_rows;
    uint32_t n_heads, width;
    char *bytes;
    size_t n_bytes;
} srv_copy;

/* Blocks of one pool that the request saw, numbered anew: those whose every row was seen first. */
typedef struct srv_seen {
    const char *base; /* of the pool: what tells one from the other */
    uint32_t block_size, n_blocks;
    attnd_dtype dtype;
    bool is_nhd;
    int32_t *ids;     /* [n_blocks] what it was called, by its new number */
    int32_t *numbers; /* [blocks of the pool] the new number, -1: not looked at */
    uint32_t *rows;   /* [n_blocks] that lay in it before, from its first */
} srv_seen;

typedef struct srv_taken {
    uint32_t pool; /* index of seen */
    /* Shapes, mask, scale and batch; its arrays are copies, its addresses nothing. */
    ker_problem problem;
    double theta;
    int32_t *table; /* [Σ ceil(kv_len / block_size)] new numbers, -1: not looked at */
    int64_t n_table;
    int32_t *slots; /* new numbers; NULL: none */
    srv_copy q, k, v, out, lse, stats;
    srv_copy pool_k, pool_v; /* rows of the blocks of seen, in their order */
} srv_taken;

typedef struct srv_record {
    msg_arena arena; /* everything below lies in it */
    bool with_data;
    uint32_t session;
    uint64_t request; /* its number, for people */
    const char *op;
    srv_seen *seen;
    uint32_t n_seen;
    srv_taken *taken; /* layers, in order */
    uint32_t n_taken;
    srv_copy (*parts)[3]; /* of a merge: out, lse, stats */
    uint32_t n_parts;
    srv_copy merged[3];
} srv_record;

/* Copies a completed request; at most `most` bytes. Refuses TOO_LARGE, NO_ROOM; the caller frees
 * *out, which is NULL then. Engine thread. */
attnd_status srv_record_make(srv_record **out, const srv_request *request, bool with_data,
                             uint64_t most, attnd_err *err);
void srv_record_free(srv_record *record); /* accepts NULL */

/* The case file. */
void srv_record_print(FILE *file, const srv_record *record, const ker_device_info *device);

#endif
