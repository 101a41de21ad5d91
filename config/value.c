/* value.c: one value: from text, to text, and what would be right. */
#include "config/value.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

typedef struct unit {
    const char *name;
    int64_t factor;
} unit;

/* Largest first; the first name of a factor is the one that is written. */
static const unit BYTES[] = {
    {"TiB", 1ll << 40}, {"T", 1ll << 40}, {"GiB", 1ll << 30}, {"G", 1ll << 30}, {"MiB", 1 << 20},
    {"M", 1 << 20},     {"KiB", 1 << 10}, {"K", 1 << 10},     {"", 1},          {NULL, 0}};
static const unit TIMES[] = {{"h", 3600000}, {"min", 60000}, {"s", 1000},
                             {"ms", 1},      {"", 1},        {NULL, 0}};
static const unit NONE[] = {{"", 1}, {NULL, 0}};

static const unit *units_of(cfg_type type)
{
    return type == CFG_TYPE_BYTES ? BYTES : type == CFG_TYPE_TIME_MS ? TIMES : NONE;
}

static void *place_of(cfg *c, const cfg_key *key)
{
    return (char *)c + key->offset;
}

void cfg_value_default(cfg *out, const cfg_key *key)
{
    void *place = place_of(out, key);
    if (key->text)
        snprintf(place, CFG_TEXT, "%s", key->text);
    else if (key->type == CFG_TYPE_FLAG)
        *(bool *)place = key->number != 0;
    else
        *(int64_t *)place = key->number;
}

void cfg_value_copy(cfg *to, const cfg *from, const cfg_key *key)
{
    static const size_t bytes[] = {
        [CFG_TYPE_INT] = sizeof(int64_t),     [CFG_TYPE_BYTES] = sizeof(int64_t),
        [CFG_TYPE_TIME_MS] = sizeof(int64_t), [CFG_TYPE_FLAG] = sizeof(bool),
        [CFG_TYPE_TEXT] = sizeof(cfg_text),   [CFG_TYPE_CHOICE] = sizeof(cfg_text),
    };
    memcpy(place_of(to, key), place_of((cfg *)from, key), bytes[key->type]);
}

/* "64 KiB" → 65536. False for what is no number of this type or passes 2^63. */
static bool parse_number(const char *text, const unit *units, int64_t *out)
{
    bool negative = *text == '-';
    text += negative;
    if (*text < '0' || *text > '9')
        return false;
    int64_t number = 0;
    for (; *text >= '0' && *text <= '9'; text++)
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, *text - '0', &number))
            return false;
    text += *text == ' ';
    for (; units->name; units++)
        if (strcmp(text, units->name) == 0) {
            if (__builtin_mul_overflow(number, negative ? -units->factor : units->factor, out))
                return false;
            return true;
        }
    return false;
}

static void number_text(cfg_type type, int64_t number, char buf[CFG_VALUE_TEXT])
{
    const unit *u = units_of(type);
    while (u->factor > 1 && (number == 0 || number % u->factor != 0))
        u++;
    /* Nothing needs no unit. */
    snprintf(buf, CFG_VALUE_TEXT, "%lld%s", (long long)(number / u->factor),
             number == 0 ? "" : u->name);
}

static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *c = choices; *c;) {
        size_t width = strcspn(c, "|");
        if (width == n && memcmp(c, text, n) == 0)
            return true;
        c += width + (c[width] == '|');
    }
    return false;
}

static attnd_status refuse(const cfg_key *key, const char *called, const char *text, attnd_err *err)
{
    char expected[CFG_VALUE_TEXT];
    cfg_value_expected(key, expected);
    return attnd_fail(err, ATTND_BAD_CONFIG, "%s = %.80s: %s", called, text, expected);
}

attnd_status cfg_value_set(cfg *out, const cfg_key *key, const char *called, const char *text,
                           attnd_err *err)
{
    void *place = place_of(out, key);
    int64_t number;
    switch (key->type) {
    case CFG_TYPE_INT:
    case CFG_TYPE_BYTES:
    case CFG_TYPE_TIME_MS:
        if (!parse_number(text, units_of(key->type), &number) || number < key->lo ||
            number > key->hi)
            return refuse(key, called, text, err);
        *(int64_t *)place = number;
        return ATTND_OK;
    case CFG_TYPE_FLAG:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
            return refuse(key, called, text, err);
        *(bool *)place = text[0] == 't';
        return ATTND_OK;
    case CFG_TYPE_CHOICE:
        if (!is_choice(key->choices, text))
            return refuse(key, called, text, err);
        break;
    case CFG_TYPE_TEXT:
        if (strlen(text) >= CFG_TEXT)
            return refuse(key, called, text, err);
        break;
    }
    snprintf(place, CFG_TEXT, "%s", text);
    return ATTND_OK;
}

void cfg_value_text(const cfg *c, const cfg_key *key, char buf[CFG_VALUE_TEXT])
{
    const void *place = place_of((cfg *)c, key);
    switch (key->type) {
    case CFG_TYPE_INT:
    case CFG_TYPE_BYTES:
    case CFG_TYPE_TIME_MS:
        number_text(key->type, *(const int64_t *)place, buf);
        return;
    case CFG_TYPE_FLAG:
        snprintf(buf, CFG_VALUE_TEXT, "%s", *(const bool *)place ? "true" : "false");
        return;
    case CFG_TYPE_TEXT:
    case CFG_TYPE_CHOICE:
        snprintf(buf, CFG_VALUE_TEXT, "%s", (const char *)place);
        return;
    }
    assert(!"a type of keys.def");
}

void cfg_value_range(const cfg_key *key, char buf[CFG_VALUE_TEXT])
{
    char lo[CFG_VALUE_TEXT], hi[CFG_VALUE_TEXT];
    size_t n = 0;
    switch (key->type) {
    case CFG_TYPE_INT:
    case CFG_TYPE_BYTES:
    case CFG_TYPE_TIME_MS:
        number_text(key->type, key->lo, lo);
        number_text(key->type, key->hi, hi);
        snprintf(buf, CFG_VALUE_TEXT, "%.40s..%.40s", lo, hi);
        return;
    case CFG_TYPE_FLAG:
        snprintf(buf, CFG_VALUE_TEXT, "true | false");
        return;
    case CFG_TYPE_CHOICE:
        for (const char *c = key->choices; *c && n + 4 < CFG_VALUE_TEXT; c++)
            n += (size_t)snprintf(buf + n, CFG_VALUE_TEXT - n, *c == '|' ? " | " : "%c", *c);
        return;
    case CFG_TYPE_TEXT:
        buf[0] = '\0';
        return;
    }
    assert(!"a type of keys.def");
}

void cfg_value_expected(const cfg_key *key, char buf[CFG_VALUE_TEXT])
{
    static const char *const kinds[] = {
        [CFG_TYPE_INT] = "a whole number, ",
        [CFG_TYPE_BYTES] = "bytes (65536 or \"64KiB\"), ",
        [CFG_TYPE_TIME_MS] = "milliseconds (250, \"250ms\" or \"2s\"), ",
        [CFG_TYPE_FLAG] = "",
        [CFG_TYPE_TEXT] = "text of at most 255 bytes",
        [CFG_TYPE_CHOICE] = "",
    };
    char range[CFG_VALUE_TEXT];
    cfg_value_range(key, range);
    snprintf(buf, CFG_VALUE_TEXT, "%s%.200s", kinds[key->type], range);
}
