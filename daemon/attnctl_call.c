/* attnctl_call.c: the connection to the control socket, and one call over it.
 */
#include "daemon/attnctl.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CALL_TIMEOUT_MS = 5000,
    WAIT_TIMEOUT_MS = 60000,
    MAX_ANSWER = 64 << 20,
    MAX_PLACES = 4,
};

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static _Noreturn void leave(const ctl_connection *c, int code, const char *what)
{
    fprintf(stderr, "attnctl: %s: %s\n", c->path, what);
    exit(code);
}

static void wait_for(const ctl_connection *c, short events)
{
    struct pollfd p = {.fd = c->fd, .events = events};
    uint64_t now = now_ms();
    int n = now < c->deadline_ms ? poll(&p, 1, (int)(c->deadline_ms - now)) : 0;
    if (n == 0)
        leave(c, CTL_TIMED_OUT, "no answer in time");
}

/* 0, or errno. */
static int try_connect(ctl_connection *c)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, c->path, sizeof address.sun_path);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        return errno;
    /* EAGAIN: others are waiting to be accepted. */
    while (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0) {
        int error = errno;
        if (error != EAGAIN || now_ms() >= c->deadline_ms) {
            close(c->fd);
            return error;
        }
        usleep(10000);
    }
    return 0;
}

static bool set_path(ctl_connection *c, const char *dir, const char *below)
{
    return snprintf(c->path, sizeof c->path, "%s%s", dir, below) < (int)sizeof c->path;
}

/* The directories a daemon may have made its own, in order, with what to add to each. */
static size_t list_places(const ctl_options *o, const char *dirs[MAX_PLACES],
                          const char *below[MAX_PLACES])
{
    static char last[64];
    const char *own = getenv("RUNTIME_DIRECTORY"), *xdg = getenv("XDG_RUNTIME_DIR");
    size_t n = 0;
    for (size_t i = 0; i < MAX_PLACES; i++)
        below[i] = "/control";
    if (o->socket || o->dir) {
        dirs[0] = o->socket ? o->socket : o->dir;
        below[0] = o->socket ? "" : "/control";
        return 1;
    }
    if (own && *own)
        dirs[n++] = own;
    if (xdg && *xdg) {
        dirs[n] = xdg;
        below[n++] = "/attnd/control";
    }
    snprintf(last, sizeof last, "/tmp/attnd-%u", (unsigned)getuid());
    dirs[n++] = "/run/attnd";
    dirs[n++] = last;
    return n;
}

static void set_deadline(ctl_connection *c, const ctl_options *o)
{
    c->deadline_ms = now_ms() + (uint64_t)(o->timeout_ms < 0 ? CALL_TIMEOUT_MS : o->timeout_ms);
}

void ctl_open(ctl_connection *c, const ctl_options *o)
{
    const char *dirs[MAX_PLACES], *below[MAX_PLACES];
    size_t n = list_places(o, dirs, below);
    *c = (ctl_connection){.fd = -1};
    int errors[MAX_PLACES];
    set_deadline(c, o);
    for (size_t i = 0; i < n; i++) {
        errors[i] = set_path(c, dirs[i], below[i]) ? try_connect(c) : ENAMETOOLONG;
        if (errors[i] == 0)
            return;
    }
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, "attnctl: %s%s: %s\n", dirs[i], below[i], strerror(errors[i]));
    fprintf(stderr, "attnctl: no daemon answers; is attnd running?\n");
    exit(CTL_NO_DAEMON);
}

void ctl_close(ctl_connection *c)
{
    free(c->text);
    close(c->fd);
}

/* A daemon that hangs up first may have said why: then there is an answer all the same. */
static void send_text(ctl_connection *c, const char *text)
{
    for (size_t n = strlen(text), done = 0; done < n;) {
        wait_for(c, POLLOUT);
        ssize_t sent = send(c->fd, text + done, n - done, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
            return;
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            leave(c, CTL_NO_DAEMON, strerror(errno));
        if (sent > 0)
            done += (size_t)sent;
    }
}

/* Receives more into c->text; false at the end of file. */
static bool receive_more(ctl_connection *c)
{
    char chunk[16384];
    wait_for(c, POLLIN);
    ssize_t n = recv(c->fd, chunk, sizeof chunk, 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return false;
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR)
            return true;
        leave(c, CTL_NO_DAEMON, strerror(errno));
    }
    char *grown = c->n + (size_t)n < MAX_ANSWER ? realloc(c->text, c->n + (size_t)n + 1) : NULL;
    if (!grown)
        leave(c, CTL_REFUSED, "the answer is too large");
    c->text = grown;
    memcpy(c->text + c->n, chunk, (size_t)n);
    c->n += (size_t)n;
    c->text[c->n] = '\0';
    return true;
}

/* cJSON prints whole numbers beyond 15 digits as powers of ten. */
static void keep_digits(cJSON *item)
{
    for (; item; item = item->next) {
        char digits[32];
        keep_digits(item->child);
        if (!cJSON_IsNumber(item) || fabs(item->valuedouble) < 1e15 ||
            fabs(item->valuedouble) > 1e18)
            continue;
        snprintf(digits, sizeof digits, "%.0f", item->valuedouble);
        item->valuestring = strdup(digits);
        item->type = cJSON_Raw;
    }
}

cJSON *ctl_call(ctl_connection *c, const ctl_options *o, const char *method, cJSON *params)
{
    cJSON *request = cJSON_CreateObject();
    cJSON_AddStringToObject(request, "jsonrpc", "2.0");
    cJSON_AddNumberToObject(request, "id", 1);
    cJSON_AddStringToObject(request, "method", method);
    cJSON_AddItemToObject(request, "params", params);
    char *text = cJSON_PrintUnformatted(request), *line;
    set_deadline(c, o);
    c->n = 0;
    if (c->text)
        *c->text = '\0';
    cJSON_Delete(request);
    if (!text || asprintf(&line, "%s\n", text) < 0)
        leave(c, CTL_REFUSED, "no memory");
    send_text(c, line);
    free(line);
    cJSON_free(text);
    while (!c->text || !strchr(c->text, '\n'))
        if (!receive_more(c))
            leave(c, CTL_NO_DAEMON, "the daemon hung up without an answer");
    cJSON *answer = cJSON_Parse(c->text);
    if (!cJSON_IsObject(answer))
        leave(c, CTL_REFUSED, "the answer is no JSON object");
    keep_digits(answer);
    return answer;
}

void ctl_wait_until_gone(ctl_connection *c, const ctl_options *o)
{
    c->deadline_ms = now_ms() + (uint64_t)(o->timeout_ms < 0 ? WAIT_TIMEOUT_MS : o->timeout_ms);
    for (;;) {
        char byte;
        wait_for(c, POLLIN);
        ssize_t n = recv(c->fd, &byte, 1, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return;
    }
}

cJSON *ctl_get(ctl_connection *c, const ctl_options *o, const char *method)
{
    cJSON *answer = ctl_call(c, o, method, cJSON_CreateObject());
    cJSON *result = cJSON_DetachItemFromObjectCaseSensitive(answer, "result");
    if (!result)
        exit(ctl_print_error(o, c, cJSON_GetObjectItemCaseSensitive(answer, "error")));
    cJSON_Delete(answer);
    return result;
}

void ctl_sleep_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    fflush(stdout);
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}
