/* footprint.h: what a model of a config file takes, by the arithmetic of kvcache/. */
#ifndef ATTND_DAEMON_FOOTPRINT_H
#define ATTND_DAEMON_FOOTPRINT_H

#include <stdio.h>

#include "config/models.h"
#include "proto/err.h"

/* One line for the model, one for each group: bytes a block and a token, blocks, the tokens they
 * hold, the pool's bytes with its guard block. Refuses what the geometry refuses, and bytes that
 * hold no block, with the field under models[m]. */
attnd_status srv_footprint_print(FILE *out, const cfg_model *model, size_t m, attnd_err *err);

#endif
