/* control_json.c: cJSON with its traps covered. */
#include "daemon/control_json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t exact = (int64_t)1 << 53;
static bool failed; /* Owner: the loop thread. */

void srv_json_begin(void)
{
    failed = false;
}

bool srv_json_failed(void)
{
    return failed;
}

void srv_json_take(cJSON *at, const char *name, cJSON *item)
{
    if (!at || !item ||
        !(name ? cJSON_AddItemToObject(at, name, item) : cJSON_AddItemToArray(at, item))) {
        cJSON_Delete(item);
        failed = true;
    }
}

cJSON *srv_json_object(cJSON *at, const char *name)
{
    cJSON *item = cJSON_CreateObject();
    srv_json_take(at, name, item);
    return failed ? NULL : item;
}

cJSON *srv_json_array(cJSON *at, const char *name)
{
    cJSON *item = cJSON_CreateArray();
    srv_json_take(at, name, item);
    return failed ? NULL : item;
}

/* Bytes of the UTF-8 character at s, 0 when it is none (overlong, surrogate, beyond U+10FFFF). */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    size_t len = s[0] < 0x80       ? 1
                 : s[0] >> 5 == 6  ? 2
                 : s[0] >> 4 == 14 ? 3
                 : s[0] >> 3 == 30 ? 4
                                   : 0;
    if (len == 0 || len > n)
        return 0;
    uint32_t c = len == 1 ? s[0] : s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if (s[i] >> 6 != 2)
            return 0;
        c = c << 6 | (s[i] & 0x3fu);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    return c < least[len] || (c >= 0xd800 && c <= 0xdfff) || c > 0x10ffff ? 0 : len;
}

void srv_json_text(cJSON *at, const char *name, const char *text)
{
    cJSON *item = cJSON_CreateString(text);
    unsigned char *s = item ? (unsigned char *)item->valuestring : NULL;
    /* A text that was cut may end inside a character. */
    for (size_t n = strlen(text), i = 0, len; s && i < n; i += len ? len : 1) {
        len = utf8_length(s + i, n - i);
        if (len == 0)
            s[i] = '?';
    }
    srv_json_take(at, name, item);
}

void srv_json_flag(cJSON *at, const char *name, bool flag)
{
    srv_json_take(at, name, cJSON_CreateBool(flag));
}

/* cJSON prints whole numbers beyond 15 digits as powers of ten: those are written here. */
static cJSON *raw(const char *fmt, double number)
{
    char text[64];
    snprintf(text, sizeof text, fmt, number);
    return cJSON_CreateRaw(text);
}

void srv_json_count(cJSON *at, const char *name, int64_t count)
{
    srv_json_take(at, name, raw("%.0f", (double)count));
}

void srv_json_real(cJSON *at, const char *name, double real)
{
    srv_json_take(at, name, raw("%.3f", isfinite(real) ? real : 0));
}

void srv_json_wide(cJSON *at, const char *name, uint64_t wide)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, wide);
    srv_json_text(at, name, text);
}

void srv_json_wide_real(cJSON *at, const char *name, double real)
{
    char text[352]; /* the largest double has 309 digits */
    snprintf(text, sizeof text, "%.0f", isfinite(real) ? real : 0);
    srv_json_text(at, name, text);
}

bool srv_json_is_clean(const char *line, size_t n)
{
    const unsigned char *s = (const unsigned char *)line;
    for (size_t i = 0, len; i < n; i += len) {
        len = utf8_length(s + i, n - i);
        if (len == 0 || s[i] == 0)
            return false;
        if (s[i] != '\\')
            continue;
        if (n - i >= 6 && memcmp(s + i + 1, "u0000", 5) == 0)
            return false;
        len = i + 1 < n && s[i + 1] == '\\' ? 2 : 1;
    }
    return true;
}

bool srv_json_whole(const cJSON *item, int64_t lo, int64_t hi, int64_t *out)
{
    /* valueint saturates at 2^31: the double is the number. */
    if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= (double)exact) ||
        item->valuedouble != floor(item->valuedouble))
        return false;
    int64_t value = (int64_t)item->valuedouble;
    if (value < lo || value > hi)
        return false;
    *out = value;
    return true;
}

bool srv_json_handle(const cJSON *item, uint64_t *out)
{
    int64_t small;
    if (srv_json_whole(item, 0, exact, &small)) {
        *out = (uint64_t)small;
        return true;
    }
    if (!cJSON_IsString(item))
        return false;
    const char *s = item->valuestring;
    size_t n = strlen(s);
    if (n == 0 || n > 20 || strspn(s, "0123456789") != n)
        return false;
    errno = 0;
    uint64_t wide = strtoull(s, NULL, 10);
    if (errno)
        return false;
    *out = wide;
    return true;
}

void srv_json_brief(const cJSON *item, char *out, size_t bytes)
{
    char *text = cJSON_PrintUnformatted(item);
    int n = snprintf(out, bytes, "%s", text ? text : "?");
    cJSON_free(text);
    if (n < (int)bytes)
        return;
    /* Whole characters only: the mark replaces the last one that does not fit. */
    size_t end = bytes - 4;
    while (end > 0 && ((unsigned char)out[end] & 0xc0) == 0x80)
        end--;
    memcpy(out + end, "...", 4);
}
