/* keys.h: the rows of keys.def as data. Private to config/. */
#ifndef ATTND_CONFIG_KEYS_H
#define ATTND_CONFIG_KEYS_H

#include "config/config.h"

typedef enum cfg_type {
    CFG_TYPE_INT,
    CFG_TYPE_BYTES,
    CFG_TYPE_TIME_MS,
    CFG_TYPE_FLAG,
    CFG_TYPE_TEXT,
    CFG_TYPE_CHOICE,
} cfg_type;

typedef struct cfg_key {
    const char *name; /* "data.max_message" */
    size_t n_section; /* bytes of "data" */
    cfg_type type;
    size_t offset;          /* of the value in cfg */
    int64_t number, lo, hi; /* default and range of numbers; default of FLAG */
    const char *text;       /* default of TEXT and CHOICE */
    const char *choices;    /* CHOICE: separated by '|' */
    bool live;
    const char *help;
} cfg_key;

extern const cfg_key cfg_keys[];
extern const size_t cfg_n_keys;

/* The key of a dotted name, or NULL. */
const cfg_key *cfg_key_find(const char *name);

/* Steps of one letter between two names (Levenshtein), of their first 64 bytes each. */
size_t cfg_key_distance(const char *a, const char *b);

/* The key whose name is nearest. */
const cfg_key *cfg_key_nearest(const char *name);

#endif
