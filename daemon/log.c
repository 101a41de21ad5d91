/* log.c: the voice. Composes a line on the stack and hands it to stderr in one write. */
#include "daemon/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 2048, KIND = 48, N_KINDS = 64, SECOND_MS = 1000, DEFAULT_RATE = 50 };

/* Lines that begin alike, since began_ms. */
typedef struct kind {
    char name[KIND]; /* "": free */
    uint64_t began_ms;
    int64_t n_written, n_left_out;
} kind;

/* Guards kinds; no other lock is taken under it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kind kinds[N_KINDS]; /* the last one is shared by what finds no place */
static _Atomic int64_t rate_now = DEFAULT_RATE;

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

static void write_line(srv_level level, const char *text)
{
    char line[LINE];
    size_t n = (size_t)snprintf(line, sizeof line, "%-5s ", level_names[level]);
    n = append_escaped(line, n, text);
    line[n++] = '\n';
    /* A log that cannot be written has nowhere to say so. */
    if (write(STDERR_FILENO, line, n) < 0)
        return;
}

/* ---- The rate ---------------------------------------------------------------------------------
 */

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static kind *kind_of(const char *text)
{
    const char *end = strstr(text, "  ");
    size_t n = end ? (size_t)(end - text) : strlen(text);
    char name[KIND];
    snprintf(name, sizeof name, "%.*s", (int)(n < KIND ? n : KIND), text);
    for (size_t i = 0; i < N_KINDS - 1; i++) {
        if (!kinds[i].name[0])
            memcpy(kinds[i].name, name, sizeof name);
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    }
    snprintf(kinds[N_KINDS - 1].name, KIND, "others");
    return &kinds[N_KINDS - 1];
}

/* A new second begins; what the last one left out is said. */
static void turn_over(kind *k, uint64_t now)
{
    char text[LINE];
    if (k->n_left_out) {
        snprintf(text, sizeof text, "lines left out  n=%lld kind=\"%s\" in_ms=%llu",
                 (long long)k->n_left_out, k->name, (unsigned long long)(now - k->began_ms));
        write_line(SRV_WARN, text);
    }
    k->began_ms = now;
    k->n_written = k->n_left_out = 0;
}

/* Counts a line; false when it is one too many of its kind. */
static bool admit(const char *text, int64_t rate)
{
    uint64_t now = now_ms();
    pthread_mutex_lock(&lock);
    kind *k = kind_of(text);
    if (now - k->began_ms >= SECOND_MS)
        turn_over(k, now);
    bool admitted = k->n_written < rate;
    k->n_written += admitted;
    k->n_left_out += !admitted;
    pthread_mutex_unlock(&lock);
    return admitted;
}

void srv_log_set_rate(int64_t lines)
{
    atomic_store_explicit(&rate_now, lines, memory_order_relaxed);
}

void srv_log_flush(bool all)
{
    uint64_t now = now_ms();
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < N_KINDS; i++)
        if (kinds[i].n_left_out && (all || now - kinds[i].began_ms >= SECOND_MS))
            turn_over(&kinds[i], now);
    pthread_mutex_unlock(&lock);
}

/* ---- A line -----------------------------------------------------------------------------------
 */

void srv_log(srv_level level, const char *fmt, ...)
{
    if (level > srv_log_level())
        return;
    char text[LINE];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    int64_t rate = atomic_load_explicit(&rate_now, memory_order_relaxed);
    if (level == SRV_DEBUG || rate == 0 || admit(text, rate))
        write_line(level, text);
}
