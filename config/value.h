/* value.h: one value: from text, to text, and what would be right. Private to config/.
 *
 * Bytes are a whole number with or without K, KiB, M, MiB, G, GiB, T, TiB (K and KiB are both
 * 1024); times a whole number of milliseconds, or with ms, s, min, h.
 */
#ifndef ATTND_CONFIG_VALUE_H
#define ATTND_CONFIG_VALUE_H

#include "config/keys.h"

enum { CFG_VALUE_TEXT = CFG_TEXT + 64 }; /* room for any value or what is expected of it */

/* Sets the key's value in *out to its default. */
void cfg_value_default(cfg *out, const cfg_key *key);

/* Sets the key's value in *to to the one in from. */
void cfg_value_copy(cfg *to, const cfg *from, const cfg_key *key);

/* Sets the key's value in *out from text. A refusal (BAD_CONFIG) calls it `called`: the key, or the
 * variable it came from; *out is then as before. */
attnd_status cfg_value_set(cfg *out, const cfg_key *key, const char *called, const char *text,
                           attnd_err *err);

/* The key's present value as people write it: "4MiB", "30s", "info". */
void cfg_value_text(const cfg *c, const cfg_key *key, char buf[CFG_VALUE_TEXT]);

/* What would be right: "bytes (65536, 64KiB), 4KiB..256MiB". */
void cfg_value_expected(const cfg_key *key, char buf[CFG_VALUE_TEXT]);

/* What may be written: "4KiB..256MiB", "auto | cpu"; empty for text. */
void cfg_value_range(const cfg_key *key, char buf[CFG_VALUE_TEXT]);

#endif
