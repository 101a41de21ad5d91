/* models.h: the models of a config file: ModelSpec of attnd.proto in JSON, under the same names.
 *
 *     "models": [{"name": "m", "layers": [{"n_heads": 8, "head_dim": 64, "count": 32}],
 *                 "groups": [{"block_size": 16, "kv_dtype": "bf16", "n_blocks": 1024}]}]
 *
 * What a file leaves out has here the value it stands for.
 */
#ifndef ATTND_CONFIG_MODELS_H
#define ATTND_CONFIG_MODELS_H

#include <stdbool.h>

#include "proto/types.h"

enum { CFG_NAME = 65, CFG_MAX_LAYERS = 65536, CFG_MAX_GROUPS = 64 };

typedef struct cfg_rope {
    uint32_t pairing; /* attnd_rope_pairing */
    uint32_t dim;     /* channels that rotate */
    uint32_t scaling; /* number of RopeScaling in attnd.proto */
    double theta;
} cfg_rope;

typedef struct cfg_layer {
    uint32_t kind;  /* attnd_layer_kind */
    uint32_t group; /* encoder layers keep nothing and need none */
    uint32_t n_heads, n_kv_heads;
    uint32_t head_dim,
        head_dim_v;             /* mla: of the latent row with its rotated channels, and without */
    double sm_scale, q_scaling; /* sm_scale 0: 1 / (q_scaling · sqrt(head_dim)) */
    double softcap;             /* 0: none */
    uint32_t window, chunk;     /* 0: none */
    uint32_t count;
    cfg_rope rope;
} cfg_layer;

typedef struct cfg_group {
    char name[CFG_NAME];
    uint32_t block_size;
    uint32_t kv_dtype;   /* attnd_dtype */
    uint32_t layout;     /* attnd_layout */
    uint32_t n_blocks;   /* 0: as many as fit into bytes */
    uint64_t bytes;      /* 0: n_blocks says */
    uint32_t max_kv_len; /* tokens a sequence may reach */
    uint32_t window;     /* 0: none */
} cfg_group;

typedef struct cfg_model {
    char name[CFG_NAME];
    uint32_t owner; /* 0: client, 1: server */
    cfg_layer *layers;
    size_t n_layers; /* counts not multiplied out */
    cfg_group *groups;
    size_t n_groups;
} cfg_model;

typedef struct cfg_models {
    cfg_model *models;
    size_t n_models;
} cfg_models;

/* Frees what was read; accepts what is half read. */
void cfg_models_fini(cfg_models *models);

#endif
