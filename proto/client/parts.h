/* parts.h: tensors, integers, tables and batches on the wire: what several requests are made of.
 *
 * Each make fills a struct of protobuf-c, and what it points to, from one of attnd.h, which is
 * borrowed as long as the message is used. Not installed.
 */
#ifndef ATTND_CLIENT_PARTS_H
#define ATTND_CLIENT_PARTS_H

#include "proto/client/client.h"

typedef struct cli_layer_tensor {
    Attnd__V1__LayerTensor layers;
    Attnd__V1__Tensor first;
} cli_layer_tensor;

typedef struct cli_ints {
    Attnd__V1__Ints ints;
    Attnd__V1__Tensor tensor;
} cli_ints;

typedef struct cli_tables {
    size_t n;
    struct cli_table *memory; /* [n] */
    Attnd__V1__Table **list;  /* [n] */
} cli_tables;

typedef struct cli_batch {
    Attnd__V1__Batch batch;
    cli_ints q_lens, kv_lens, slots, positions;
    cli_tables tables;
} cli_batch;

typedef struct cli_update {
    Attnd__V1__PlanUpdate update;
    cli_ints q_lens, kv_lens, slots, positions;
    cli_tables appended;
} cli_update;

/* NULL when there is none. */
Attnd__V1__Tensor *cli_make_tensor(Attnd__V1__Tensor *m, const attnd_tensor *from);
Attnd__V1__LayerTensor *cli_make_layer_tensor(cli_layer_tensor *m, const attnd_layer_tensor *from);
Attnd__V1__Ints *cli_make_ints(cli_ints *m, const attnd_ints *from);

/* A tensor's arrays hold ATTND_MAX_DIMS: what claims more cannot be read, so the daemon cannot be
 * asked. Refuses BAD_TENSOR. */
attnd_status cli_check_tensor(const attnd_tensor *t, const char *name, attnd_err *err);

/* The caller frees the tables, also on refusal. Refuses BAD_TENSOR, NO_ROOM. */
attnd_status cli_make_batch(cli_batch *m, const attnd_batch *from, attnd_err *err);
attnd_status cli_make_update(cli_update *m, uint64_t plan, const attnd_plan_update *from,
                             attnd_err *err);
void cli_free_tables(cli_tables *m);

#endif
