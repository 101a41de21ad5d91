/* keeper.c: lock, store, engine process; one thread that waits for signals and for the engine's
 * packets.
 */
#include "daemon/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/shm.h"
#include "daemon/socket.h"
#include "daemon/store.h"

/* ---- The lock ---- */

/* Opens dir and checks that it is this user's own and nobody else's. */
static attnd_status directory_open(const char *dir, int *fd, attnd_err *err)
{
    char path[PATH_MAX];
    struct stat st;
    if (snprintf(path, sizeof path, "%s", dir) >= (int)sizeof path)
        return attnd_fail(err, ATTND_UNREACHABLE, "runtime.dir = %.64s...: %zu bytes are too long",
                          dir, strlen(dir));
    /* "dir/" would follow a link that "dir" does not. */
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = '\0';
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return attnd_fail(err, ATTND_UNREACHABLE, "runtime.dir = %s: cannot be made: %s", path,
                          strerror(errno));
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        return attnd_fail(err, ATTND_UNREACHABLE,
                          "runtime.dir = %s: a symbolic link; name the directory itself", path);
    int got = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (got < 0)
        return attnd_fail(err, ATTND_UNREACHABLE, "runtime.dir = %s: cannot be opened: %s", path,
                          strerror(errno));
    attnd_status status = ATTND_OK;
    if (fstat(got, &st) < 0)
        status = attnd_fail(err, ATTND_UNREACHABLE, "runtime.dir = %s: %s", path, strerror(errno));
    else if (st.st_uid != geteuid())
        status = attnd_fail(err, ATTND_UNREACHABLE,
                            "runtime.dir = %s: belongs to uid %u; this process is uid %u", path,
                            (unsigned)st.st_uid, (unsigned)geteuid());
    else if (st.st_mode & 0077)
        status = attnd_fail(err, ATTND_UNREACHABLE,
                            "runtime.dir = %s: mode %04o lets others in; chmod 0700 it", path,
                            (unsigned)(st.st_mode & 07777));
    if (status != ATTND_OK) {
        close(got);
        return status;
    }
    *fd = got;
    return ATTND_OK;
}

/* "process 1234", from what the holder wrote. */
static void lock_holder(int fd, char out[32])
{
    char text[16];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    long pid = strtol(text, NULL, 10);
    if (pid > 0)
        snprintf(out, 32, "process %ld", pid);
    else
        snprintf(out, 32, "another process");
}

attnd_status srv_lock_take(const char *dir, int *fd, attnd_err *err)
{
    *fd = -1;
    int at;
    TRY(directory_open(dir, &at, err));
    /* Inherited by the engine on purpose: no second daemon starts while one of the two lives. */
    int got = openat(at, "lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    int error = errno;
    close(at);
    if (got < 0)
        return attnd_fail(err, ATTND_UNREACHABLE, "lock = %s/lock: cannot be opened: %s", dir,
                          strerror(error));
    if (flock(got, LOCK_EX | LOCK_NB) < 0) {
        char holder[32];
        error = errno;
        lock_holder(got, holder);
        close(got);
        if (error != EWOULDBLOCK)
            return attnd_fail(err, ATTND_UNREACHABLE, "lock = %s/lock: %s", dir, strerror(error));
        return attnd_fail(err, ATTND_UNREACHABLE,
                          "lock = %s/lock: held by %s; another attnd serves this directory", dir,
                          holder);
    }
    char text[16];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    /* The pid only words the refusal above; the flock is what protects. */
    if (ftruncate(got, 0) < 0 || pwrite(got, text, (size_t)n, 0) != n)
        srv_log(SRV_WARN, "lock not named  path=%s/lock error=\"%s\"", dir, strerror(errno));
    *fd = got;
    return ATTND_OK;
}

/* ---- The engine process ---- */

enum { CRASH_WINDOW_MS = 60000, NO_END = -1 };

static const int forwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

typedef struct keeper {
    const cfg *config;
    const char *runtime_dir;
    char *const *argv;
    srv_shelf *shelf;
    sigset_t old_mask;
    int signals; /* signalfd */
    pid_t engine;
    int socket; /* to the engine; -1 once it closed its end */
    bool ready;
    uint64_t started_ms;
    int stop_signal;      /* TERM or INT that began the drain; 0: none */
    uint64_t stopped_ms;  /* when it came */
    int kill_signal;      /* the second of them; 0: none */
    uint64_t *crashes_ms; /* ring of the last max_crashes */
    uint64_t n_crashes;   /* ever */
} keeper;

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* In the child, between fork and exec. Does not return. */
static void engine_exec(const keeper *k, pid_t parent, int socket)
{
    /* A keeper that died before this call sends no signal any more. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
        _exit(EX_OSERR);
    /* A group of its own: Ctrl-C reaches the keeper alone, which passes it on once. */
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, &k->old_mask, NULL);
    fcntl(socket, F_SETFD, 0);
    size_t n = 0;
    while (k->argv[n])
        n++;
    char number[16], **argv = calloc(n + 3, sizeof *argv);
    if (!argv)
        _exit(EX_OSERR);
    memcpy(argv, k->argv, n * sizeof *argv);
    snprintf(number, sizeof number, "%d", socket);
    argv[n] = (char[]){"--engine-socket"};
    argv[n + 1] = number;
    argv[n + 2] = NULL;
    execv("/proc/self/exe", argv);
    srv_log(SRV_ERROR, "engine not started  error=\"exec: %s\"", strerror(errno));
    _exit(EX_OSERR);
}

static bool engine_start(keeper *k)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        srv_log(SRV_ERROR, "engine not started  error=\"socketpair: %s\"", strerror(errno));
        return false;
    }
    pid_t parent = getpid();
    k->engine = fork();
    if (k->engine == 0)
        engine_exec(k, parent, pair[1]);
    int error = errno;
    close(pair[1]);
    if (k->engine < 0) {
        close(pair[0]);
        srv_log(SRV_ERROR, "engine not started  error=\"fork: %s\"", strerror(error));
        return false;
    }
    k->socket = pair[0];
    k->ready = false;
    k->started_ms = now_ms();
    srv_log(SRV_INFO, "engine started  pid=%ld", (long)k->engine);
    return true;
}

static void socket_close(keeper *k)
{
    if (k->socket >= 0)
        close(k->socket);
    k->socket = -1;
}

/* Counts a crash; false when it was one too many. */
static bool crash_allows_restart(keeper *k)
{
    uint64_t max = (uint64_t)k->config->keeper_max_crashes, now = now_ms();
    k->crashes_ms[k->n_crashes % max] = now;
    k->n_crashes++;
    if (k->n_crashes < max)
        return true;
    uint64_t oldest_ms = k->crashes_ms[k->n_crashes % max];
    return now - oldest_ms > CRASH_WINDOW_MS;
}

/* The engine is gone with status. Returns the keeper's exit code, or NO_END: it was started again.
 */
static int engine_ended(keeper *k, int status)
{
    bool left = WIFEXITED(status);
    int code = left ? WEXITSTATUS(status) : 0, sig = left ? 0 : WTERMSIG(status);
    socket_close(k);
    if (k->kill_signal)
        return 128 + k->kill_signal;
    if (k->stop_signal) {
        /* Not ready means no handler yet: the signal that asked it to leave has ended it. */
        if (sig == k->stop_signal && !k->ready)
            return 0;
        return left ? code : 128 + sig;
    }
    if (left && (code == 0 || (!k->ready && code >= EX__BASE && code <= EX__MAX)))
        return code;
    char how[48];
    if (left)
        snprintf(how, sizeof how, "code=%d", code);
    else
        snprintf(how, sizeof how, "signal=SIG%s", sigabbrev_np(sig) ? sigabbrev_np(sig) : "?");
    srv_log(SRV_ERROR, "engine died  pid=%ld %s after_ms=%llu ready=%s stored=%zu", (long)k->engine,
            how, (unsigned long long)(now_ms() - k->started_ms), k->ready ? "true" : "false",
            srv_shelf_count(k->shelf));
    if (!crash_allows_restart(k)) {
        srv_log(SRV_ERROR, "keeper gives up  crashes=%lld in one minute",
                (long long)k->config->keeper_max_crashes);
        return SRV_EXIT_CRASHES;
    }
    srv_notify("STATUS=the engine died and is started again");
    /* What the descriptors mean lies with the engine that is gone: its successor starts empty. */
    srv_shelf_clear(k->shelf);
    return engine_start(k) ? NO_END : EX_OSERR;
}

/* Reaps the engine if it is gone; as engine_ended. */
static int engine_reap(keeper *k)
{
    int status;
    pid_t pid;
    do
        pid = waitpid(k->engine, &status, WNOHANG);
    while (pid < 0 && errno == EINTR);
    return pid == k->engine ? engine_ended(k, status) : NO_END;
}

static void signal_forward(keeper *k, int sig)
{
    bool stops = sig == SIGTERM || sig == SIGINT;
    if (stops && k->stop_signal && now_ms() - k->stopped_ms < SRV_SAME_SIGNAL_MS)
        return;
    if (stops && k->stop_signal) {
        k->kill_signal = sig;
        srv_log(SRV_WARN, "second SIG%s  the engine is killed", sigabbrev_np(sig));
        kill(k->engine, SIGKILL);
        return;
    }
    if (stops) {
        k->stop_signal = sig;
        k->stopped_ms = now_ms();
        srv_notify("STOPPING=1\nSTATUS=drains");
        srv_log(SRV_INFO, "stopping  signal=SIG%s", sigabbrev_np(sig));
    } else if (!k->ready) {
        /* No handler yet: it would end the engine, which reads its config at start anyway. */
        if (sig == SIGHUP && k->n_crashes)
            srv_notify_reloading();
        return;
    }
    kill(k->engine, sig);
}

/* One signal from the signalfd; as engine_ended. */
static int signal_take(keeper *k)
{
    struct signalfd_siginfo info;
    if (read(k->signals, &info, sizeof info) != sizeof info)
        return NO_END;
    if (info.ssi_signo == SIGCHLD)
        return engine_reap(k);
    signal_forward(k, (int)info.ssi_signo);
    return NO_END;
}

/* What the engine says of itself goes on to the service manager, which listens to this process. */
static void hear(void *arg, srv_news news)
{
    keeper *k = arg;
    if (news == SRV_NEWS_READY) {
        k->ready = true;
        srv_notify("READY=1\nSTATUS=serves");
        srv_log(SRV_INFO, "engine ready  pid=%ld after_ms=%llu", (long)k->engine,
                (unsigned long long)(now_ms() - k->started_ms));
    } else if (news == SRV_NEWS_RELOADING) {
        srv_notify_reloading();
    } else {
        srv_notify("READY=1");
    }
}

static int keeper_loop(keeper *k)
{
    if (!engine_start(k))
        return EX_OSERR;
    for (;;) {
        struct pollfd polls[2] = {{.fd = k->signals, .events = POLLIN},
                                  {.fd = k->socket, .events = POLLIN}};
        if (poll(polls, 2, -1) < 0 && errno != EINTR) {
            srv_log(SRV_ERROR, "keeper failed  error=\"poll: %s\"", strerror(errno));
            return EX_OSERR;
        }
        if (polls[1].revents && !srv_shelf_answer(k->shelf, k->socket, hear, k))
            socket_close(k);
        int end = polls[0].revents ? signal_take(k) : NO_END;
        if (end != NO_END)
            return end;
    }
}

/* An engine that was killed left its sockets behind; what is no socket is not ours. */
static void sockets_unlink(const char *dir)
{
    static const char *const names[] = {"data", "control", "buf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s", dir, names[i]) < (int)sizeof path)
            srv_socket_remove(path, NULL);
    }
}

static attnd_status keeper_open(keeper *k, attnd_err *err)
{
    sigset_t mask;
    struct rlimit files;
    k->signals = k->socket = -1;
    TRY(srv_shelf_open(&k->shelf, err));
    k->crashes_ms = calloc((size_t)k->config->keeper_max_crashes, sizeof *k->crashes_ms);
    if (!k->crashes_ms)
        return attnd_fail(err, ATTND_NO_ROOM, "keeper.max_crashes = %lld: no memory",
                          (long long)k->config->keeper_max_crashes);
    /* Every descriptor of the store counts against this process. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        sigaddset(&mask, forwarded[i]);
    sigprocmask(SIG_BLOCK, &mask, &k->old_mask);
    k->signals = signalfd(-1, &mask, SFD_CLOEXEC);
    if (k->signals < 0)
        return attnd_fail(err, ATTND_UNREACHABLE, "signals = none: signalfd: %s", strerror(errno));
    return ATTND_OK;
}

int srv_keeper_run(const cfg *c, const char *runtime_dir, char *const argv[])
{
    keeper k = {.config = c, .runtime_dir = runtime_dir, .argv = argv};
    attnd_err err;
    int end = EX_OSERR;
    if (keeper_open(&k, &err) == ATTND_OK)
        end = keeper_loop(&k);
    else
        srv_log(SRV_ERROR, "keeper not started  %s", err.text);
    srv_log_flush(true);
    sockets_unlink(runtime_dir);
    srv_shm_clean();
    srv_shelf_close(k.shelf);
    free(k.crashes_ms);
    if (k.signals >= 0)
        close(k.signals);
    return end;
}
