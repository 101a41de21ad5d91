/* err.h: the refusal that travels.
 *
 * What can refuse returns attnd_status and takes an attnd_err last. The line that notices writes
 * the text once, as "field = value: what would be right"; it reaches the client's screen
 * unchanged.
 */
#ifndef ATTND_ERR_H
#define ATTND_ERR_H

#include "proto/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTND_ERR_TEXT 512

typedef struct attnd_err {
    attnd_status status;
    attnd_reason reason;
    char text[ATTND_ERR_TEXT]; /* "field = value: what would be right"; "" when OK */
} attnd_err;

/* Length of the field's name at the start of text: up to " = " or, failing that, ": "; 0 when text
 * names none. */
ATTND_API size_t attnd_err_field_len(const attnd_err *err);

/* ---- Not in the installed attnd.h: for those who refuse ---- */

/* Fills err (which may be NULL) and returns the reason's status. A text that is too long is cut. */
attnd_status attnd_fail(attnd_err *err, attnd_reason reason, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix" before the text: a caller that knows the row adds where it is. */
void attnd_err_prefix(attnd_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts text behind the text, as much of it as there is room for. */
void attnd_err_suffix(attnd_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Returns early with the status of a call that refused. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        attnd_status try_status_ = (call);                                                         \
        if (try_status_ != ATTND_OK)                                                               \
            return try_status_;                                                                    \
    } while (0)

/* ---- In the installed attnd.h again ---- */

#ifdef __cplusplus
}
#endif

#endif
