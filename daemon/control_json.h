/* control_json.h: cJSON as control*.c uses it: a failed allocation is noted, a 64-bit number stays
 * whole.
 *
 * One rule for numbers: handles, the instance, bytes and FLOPs may pass 2^53 and are strings of
 * digits wherever they stand; every other number is a number.
 */
#ifndef ATTND_DAEMON_CONTROL_JSON_H
#define ATTND_DAEMON_CONTROL_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Writing. at NULL (an allocation that failed before) is allowed everywhere. The failure is
 * noted until the next srv_json_begin. Owner of the note: the loop thread. ---- */

void srv_json_begin(void);
bool srv_json_failed(void);

cJSON *srv_json_object(cJSON *at, const char *name); /* at an array: name NULL */
cJSON *srv_json_array(cJSON *at, const char *name);
void srv_json_text(cJSON *at, const char *name,
                   const char *text); /* bytes that are no UTF-8: '?' */
void srv_json_flag(cJSON *at, const char *name, bool flag);
void srv_json_count(cJSON *at, const char *name, int64_t count);   /* a number; |count| < 2^53 */
void srv_json_real(cJSON *at, const char *name, double real);      /* three decimals are kept */
void srv_json_wide(cJSON *at, const char *name, uint64_t wide);    /* a string of digits */
void srv_json_wide_real(cJSON *at, const char *name, double real); /* the same, rounded */
void srv_json_take(cJSON *at, const char *name, cJSON *item);      /* takes item */

/* ---- Reading ---- */

/* A line that cJSON would read as something else than it says: not UTF-8, a zero byte, \u0000. */
bool srv_json_is_clean(const char *line, size_t n);

/* A whole number that a double holds exactly; false for anything else. */
bool srv_json_whole(const cJSON *item, int64_t lo, int64_t hi, int64_t *out);

/* A 64-bit number as a string of digits, or a whole number. */
bool srv_json_handle(const cJSON *item, uint64_t *out);

/* An item as it was written, cut to fit, for messages. */
void srv_json_brief(const cJSON *item, char *out, size_t bytes);

#endif
