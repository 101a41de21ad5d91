/* models_read.h: the array "models" of a file into structs. Private to config/. */
#ifndef ATTND_CONFIG_MODELS_READ_H
#define ATTND_CONFIG_MODELS_READ_H

#include "config/json.h"
#include "config/models.h"

/* Fills *out (empty before). Refuses BAD_CONFIG with "path:line:column:
 * models[0].layers[1].head_dim = value: what would be right", and NO_ROOM; what was read until then
 * is in *out. */
attnd_status cfg_models_read(cfg_models *out, const cfg_source *source, const cJSON *models,
                             size_t offset, attnd_err *err);

#endif
