/* log.c: the voice. Composes a line on the stack and hands it to stderr in one write. */
#include "daemon/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 2048 };

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static _Atomic int level_now = SRV_INFO;

bool srv_log_set_level(const char *name)
{
    for (int i = SRV_ERROR; i <= SRV_DEBUG; i++)
        if (strcmp(name, level_names[i]) == 0) {
            atomic_store_explicit(&level_now, i, memory_order_relaxed);
            return true;
        }
    return false;
}

srv_level srv_log_level(void)
{
    return (srv_level)atomic_load_explicit(&level_now, memory_order_relaxed);
}

const char *srv_log_level_name(srv_level level)
{
    return level_names[level];
}

/* C0, DEL, and the C1 controls as UTF-8 writes them: terminals obey those too. */
static bool is_control(const unsigned char *s)
{
    return *s < 0x20 || *s == 0x7f || (*s == 0xc2 && s[1] >= 0x80 && s[1] <= 0x9f);
}

/* Copies text behind line[n], escaped, up to the newline's place; returns the new length. */
static size_t append_escaped(char line[LINE], size_t n, const char *text)
{
    static const char cut[] = "...";
    size_t end = LINE - sizeof cut; /* room for the mark and the newline */
    for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
        bool escape = is_control(s);
        /* Never cut inside a character: its continuation bytes must fit too. */
        size_t need = escape ? 4 : *s >= 0xc0 ? 4 : 1;
        if (n + need > end) {
            memcpy(line + n, cut, sizeof cut - 1);
            return n + sizeof cut - 1;
        }
        if (escape)
            n += (size_t)snprintf(line + n, 5, "\\x%02x", *s);
        else
            line[n++] = (char)*s;
    }
    return n;
}

void srv_log(srv_level level, const char *fmt, ...)
{
    if (level > srv_log_level())
        return;
    char text[LINE], line[LINE];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    size_t n = (size_t)snprintf(line, sizeof line, "%-5s ", level_names[level]);
    n = append_escaped(line, n, text);
    line[n++] = '\n';
    /* A log that cannot be written has nowhere to say so. */
    if (write(STDERR_FILENO, line, n) < 0)
        return;
}
