/* arena.h: memory of one request: only grows, freed by one reset.
 *
 * Reserved once at its largest size and touched as it is used, so a large bound costs address space
 * and not memory. Owner: whoever holds the request.
 */
#ifndef ATTND_PROTO_ARENA_H
#define ATTND_PROTO_ARENA_H

#include "proto/err.h"

typedef struct msg_arena {
    char *base;
    size_t used;
    size_t bytes;    /* the bound */
    size_t reserved; /* the highest it can be */
} msg_arena;

/* Reserves bytes (rounded up to pages). Refuses NO_ROOM. */
attnd_status msg_arena_init(msg_arena *arena, size_t bytes, attnd_err *err);
void msg_arena_fini(msg_arena *arena);

/* 64-byte aligned, not cleared; NULL when the bound is reached. */
void *msg_arena_take(msg_arena *arena, size_t bytes);

/* Bounds what is taken from now on to at most bytes in all; 0: to all that is reserved. */
void msg_arena_bound(msg_arena *arena, size_t bytes);

/* Everything taken is gone; memory beyond a megabyte goes back to the system. */
void msg_arena_reset(msg_arena *arena);

#endif
