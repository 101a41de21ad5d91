/* watchdog.c: pings the daemon's own data socket, over plain sockets, without nng. */
#include "daemon/watchdog.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { PING_TIMEOUT_MS = 300 };

struct srv_watchdog {
    char path[108];
    int64_t interval_ms;
    void (*repair)(void *arg);
    void *arg;
    pthread_t thread;
    pthread_mutex_t lock; /* guards is_closing */
    pthread_cond_t closing;
    bool is_closing;
};

/* Whole exchange of proto/protocol.md: both hellos, a Ping of three bytes, its reply. */
static const uint8_t HELLO[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
static const uint8_t HELLO_BACK[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
static const uint8_t PING[] = {
    1,    0, 0, 0, 0, 0, 0, 0, 7, /* a message of 7 bytes */
    0x80, 0, 0, 1,                /* request 1 */
    0x82, 1, 0,                   /* Request{ping{}} */
};

static bool read_all(int fd, void *to, size_t n)
{
    return recv(fd, to, n, MSG_WAITALL) == (ssize_t)n;
}

int srv_watchdog_ping(const char *path, int timeout_ms)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    uint8_t hello[8], head[13];
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    bool is_alive = !connect(fd, (struct sockaddr *)&at, sizeof at) &&
                    send(fd, HELLO, sizeof HELLO, MSG_NOSIGNAL) == sizeof HELLO &&
                    read_all(fd, hello, sizeof hello) && !memcmp(hello, HELLO_BACK, sizeof hello) &&
                    send(fd, PING, sizeof PING, MSG_NOSIGNAL) == sizeof PING &&
                    read_all(fd, head, sizeof head) && !memcmp(head + 9, PING + 9, 4);
    close(fd);
    return is_alive ? 0 : -1;
}

static void *run(void *arg)
{
    srv_watchdog *w = arg;
    struct timespec until;
    pthread_setname_np(pthread_self(), "watchdog");
    pthread_mutex_lock(&w->lock);
    while (!w->is_closing) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += w->interval_ms / 1000;
        until.tv_nsec += w->interval_ms % 1000 * 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&w->closing, &w->lock, &until);
        if (w->is_closing)
            break;
        pthread_mutex_unlock(&w->lock);
        if (srv_watchdog_ping(w->path, PING_TIMEOUT_MS))
            w->repair(w->arg);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

attnd_status srv_watchdog_open(srv_watchdog **out, const char *path, int64_t interval_ms,
                               void (*repair)(void *arg), void *arg, attnd_err *err)
{
    pthread_condattr_t attr;
    *out = NULL;
    srv_watchdog *w = calloc(1, sizeof *w);
    if (!w)
        return attnd_fail(err, ATTND_NO_ROOM, "watchdog: no memory");
    snprintf(w->path, sizeof w->path, "%s", path);
    w->interval_ms = interval_ms;
    w->repair = repair;
    w->arg = arg;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->closing, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&w->thread, NULL, run, w)) {
        free(w);
        return attnd_fail(err, ATTND_NO_ROOM, "watchdog: no thread");
    }
    *out = w;
    return ATTND_OK;
}

void srv_watchdog_close(srv_watchdog *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->is_closing = true;
    pthread_cond_signal(&w->closing);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->closing);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
