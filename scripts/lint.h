/* lint.h: included before every file that clang-tidy reads, and by nothing else: says what a reader
 * knows and the analyzer cannot see from one file, that a refusal is never OK and that
 * a failed assertion does not come back.
 */
#ifndef ATTND_SCRIPTS_LINT_H
#define ATTND_SCRIPTS_LINT_H

#include "proto/err.h"

/* The function of the same name, never 0. */
#define attnd_fail(...) (attnd_fail(__VA_ARGS__) ?: ATTND_INTERNAL)

/* cmocka's, which jumps out of the test. */
void _fail(const char *file, int line) __attribute__((noreturn));

#endif
