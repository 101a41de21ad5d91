/* err.c: names of the shared words, and the refusal that travels. */
#include "proto/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *attnd_status_name(attnd_status status)
{
    switch (status) {
#define X(name, number, mender, text)                                                              \
    case ATTND_##name:                                                                             \
        return #name;
        ATTND_STATUS_MAP(X)
#undef X
    }
    return "?";
}

attnd_mender attnd_status_mender(attnd_status status)
{
    switch (status) {
#define X(name, number, mender, text)                                                              \
    case ATTND_##name:                                                                             \
        return ATTND_MENDER_##mender;
        ATTND_STATUS_MAP(X)
#undef X
    }
    return ATTND_MENDER_US;
}

const char *attnd_reason_name(attnd_reason reason)
{
    switch (reason) {
#define X(name, number, status)                                                                    \
    case ATTND_##name:                                                                             \
        return #name;
        ATTND_REASON_MAP(X)
#undef X
    }
    return "?";
}

attnd_status attnd_reason_status(attnd_reason reason)
{
    switch (reason) {
#define X(name, number, status)                                                                    \
    case ATTND_##name:                                                                             \
        return ATTND_##status;
        ATTND_REASON_MAP(X)
#undef X
    }
    return ATTND_INTERNAL;
}

const char *attnd_dtype_name(attnd_dtype dtype)
{
    switch (dtype) {
#define X(name, number, bits, text)                                                                \
    case ATTND_DTYPE_##name:                                                                       \
        return text;
        ATTND_DTYPE_MAP(X)
#undef X
    }
    return "?";
}

uint32_t attnd_dtype_bits(attnd_dtype dtype)
{
    switch (dtype) {
#define X(name, number, bits, text)                                                                \
    case ATTND_DTYPE_##name:                                                                       \
        return bits;
        ATTND_DTYPE_MAP(X)
#undef X
    }
    return 0;
}

attnd_dtype attnd_dtype_named(const char *wanted)
{
#define X(name, number, bits, text)                                                                \
    if (strcmp(wanted, text) == 0)                                                                 \
        return ATTND_DTYPE_##name;
    ATTND_DTYPE_MAP(X)
#undef X
    return ATTND_DTYPE_NONE;
}

const char *attnd_layer_kind_name(attnd_layer_kind kind)
{
    switch (kind) {
#define X(name, number, text)                                                                      \
    case ATTND_LAYER_##name:                                                                       \
        return text;
        ATTND_LAYER_KIND_MAP(X)
#undef X
    }
    return "?";
}

attnd_status attnd_fail(attnd_err *err, attnd_reason reason, const char *fmt, ...)
{
    attnd_status status = attnd_reason_status(reason);
    if (!err)
        return status;
    err->status = status;
    err->reason = reason;
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    return status;
}

void attnd_err_prefix(attnd_err *err, const char *fmt, ...)
{
    if (!err)
        return;
    char old[ATTND_ERR_TEXT];
    memcpy(old, err->text, sizeof old);
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->text)
        snprintf(err->text + n, sizeof err->text - (size_t)n, "%s", old);
}

void attnd_err_suffix(attnd_err *err, const char *fmt, ...)
{
    if (!err)
        return;
    size_t n = strlen(err->text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->text + n, sizeof err->text - n, fmt, args);
    va_end(args);
}

size_t attnd_err_field_len(const attnd_err *err)
{
    const char *end = strstr(err->text, " = ");
    if (!end)
        end = strstr(err->text, ": ");
    if (!end)
        return 0;
    size_t n = (size_t)(end - err->text);
    return memchr(err->text, ' ', n) ? 0 : n;
}
