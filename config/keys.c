/* keys.c: the rows of keys.def as data, and the nearest of them to a name. */
#include "config/keys.h"

#include <string.h>

/* Columns mean different things by type. */
#define AS_INT(def, low, high) .number = (def), .lo = (low), .hi = (high)
#define AS_BYTES(def, low, high) AS_INT(def, low, high)
#define AS_TIME_MS(def, low, high) AS_INT(def, low, high)
#define AS_FLAG(def, low, high) AS_INT(def, 0, 1)
#define AS_TEXT(def, low, high) .text = (def)
#define AS_CHOICE(def, low, high) .text = (def), .choices = (low)

const cfg_key cfg_keys[] = {
#define KEY(section, key, kind, def, low, high, is_live, words)                                    \
    {                                                                                              \
        .name = #section "." #key,                                                                 \
        .n_section = sizeof #section - 1,                                                          \
        .type = CFG_TYPE_##kind,                                                                   \
        .offset = offsetof(cfg, section##_##key),                                                  \
        AS_##kind(def, low, high),                                                                 \
        .live = (is_live),                                                                         \
        .help = (words),                                                                           \
    },
#include "config/keys.def"
#undef KEY
};

const size_t cfg_n_keys = sizeof cfg_keys / sizeof cfg_keys[0];

const cfg_key *cfg_key_find(const char *name)
{
    for (size_t i = 0; i < cfg_n_keys; i++)
        if (strcmp(cfg_keys[i].name, name) == 0)
            return &cfg_keys[i];
    return NULL;
}

static size_t least(size_t a, size_t b, size_t c)
{
    size_t low = a < b ? a : b;
    return low < c ? low : c;
}

size_t cfg_key_distance(const char *a, const char *b)
{
    enum { MOST = 64 };
    size_t n_a = strnlen(a, MOST), n_b = strnlen(b, MOST);
    size_t row[MOST + 1]; /* row[j]: from the first i letters of a to the first j of b */
    for (size_t j = 0; j <= n_b; j++)
        row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t above = row[j];
            row[j] = least(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[n_b];
}

const cfg_key *cfg_key_nearest(const char *name)
{
    const cfg_key *nearest = &cfg_keys[0];
    for (size_t i = 1; i < cfg_n_keys; i++)
        if (cfg_key_distance(name, cfg_keys[i].name) < cfg_key_distance(name, nearest->name))
            nearest = &cfg_keys[i];
    return nearest;
}

const char *cfg_key_at(size_t i)
{
    return i < cfg_n_keys ? cfg_keys[i].name : NULL;
}
