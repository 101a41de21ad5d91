/* config.h: file, environment and flags → one checked struct.
 *
 * Precedence: flags, then ATTND_* environment, then file, then defaults. Every key is a row of
 * keys.def, and the struct below is made of it: cfg.data_max_message is the key
 * "data.max_message", the variable ATTND_DATA_MAX_MESSAGE and the flag --data.max_message. A
 * refusal names file:line:column (or the variable or the flag), the key, and for an unknown key the
 * nearest known one. Knows no sockets.
 */
#ifndef ATTND_CONFIG_CONFIG_H
#define ATTND_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdio.h>

#include "config/models.h"
#include "proto/err.h"

enum { CFG_TEXT = 256 };

typedef char cfg_text[CFG_TEXT];

/* INT, BYTES and TIME_MS are int64_t, FLAG bool, TEXT and CHOICE cfg_text. */
#define CFG_C_INT int64_t
#define CFG_C_BYTES int64_t
#define CFG_C_TIME_MS int64_t
#define CFG_C_FLAG bool
#define CFG_C_TEXT cfg_text
#define CFG_C_CHOICE cfg_text

typedef struct cfg {
#define KEY(section, name, type, def, lo, hi, live, help) CFG_C_##type section##_##name;
#include "config/keys.def"
#undef KEY
} cfg;

/* Every key at its default. */
void cfg_defaults(cfg *out);

/* Reads a JSON file with // and block comments into *out, over what is there. Refuses BAD_CONFIG
 * with "path:line:column: key = value: what would be right"; *out is then as before. */
attnd_status cfg_read_file(cfg *out, const char *path, attnd_err *err);

/* The same for a file that may have models: fills *models, which the caller ends with
 * cfg_models_fini, after a refusal too. cfg_read_file refuses them (UNSUPPORTED): no server opens
 * them. */
attnd_status cfg_read_models(cfg *out, cfg_models *models, const char *path, attnd_err *err);

/* Reads ATTND_* of environ; an unknown ATTND_* name is refused but for those the build and tests
 * own (ATTND_BUILD, ATTND_TEST_*); *out is then as before. */
attnd_status cfg_read_env(cfg *out, char *const *environ_, attnd_err *err);

/* Sets one key by its dotted name from text, as a flag gives it ("64MiB", "250ms", "true"). A
 * refusal names the key; *out is then as before. */
attnd_status cfg_set(cfg *out, const char *key, const char *text, attnd_err *err);

/* Checks what no single key can: combinations. Called last. */
attnd_status cfg_check(const cfg *c, attnd_err *err);

/* Prints help for every key, one paragraph each: for --help. */
void cfg_help(FILE *out);

/* Prints config/attnd.json: every key at its default with its help as comments. */
void cfg_print_defaults(FILE *out);

/* Prints every key as scdoc markup: what attnd.conf(5) says of them. */
void cfg_print_man(FILE *out);

/* Text of a key's present value into buf ("4MiB", "30s", "info"); false when the key is unknown.
 * For config.get. */
bool cfg_get(const cfg *c, const char *key, char *buf, size_t bytes);

/* Names of the keys, in the order of keys.def; NULL past the end. */
const char *cfg_key_at(size_t i);

/* Whether the key can change while the daemon runs; false for an unknown one. */
bool cfg_is_live(const char *key);

/* Sets the live keys of *to to their values in from, and no other byte. */
void cfg_take_live(cfg *to, const cfg *from);

/* The runtime directory: runtime.dir when set, else $RUNTIME_DIRECTORY, else
 * $XDG_RUNTIME_DIR/attnd, else /run/attnd when it exists or can be made, else /tmp/attnd-UID. Only
 * names it; makes nothing. A name too long for a cfg_text is cut, and too long for a socket. */
void cfg_runtime_dir(const cfg *c, cfg_text out);

#endif
