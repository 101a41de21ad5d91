/* roundtrip.c: one Ping to the daemon beside one exchange with a bare nng echo, by the same client.
 *
 * Both servers are processes of their own on ipc sockets; rounds alternate between them, so that
 * whatever else the machine does hits both. Prints p50 and p99 in microseconds and their ratio.
 * `roundtrip echo URL` is the bare echo alone, for tests.
 */
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WARM_UP = 500, ROUNDS = 4000, N_CONTEXTS = 72 };

static const uint8_t PING[] = {0x82, 1, 0}; /* Request{ping{}} */

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static void must(int failed, const char *what)
{
    if (!failed)
        return;
    fprintf(stderr, "roundtrip: %s: %s\n", what, nng_strerror(failed));
    exit(1);
}

/* ---- The bare echo: REP contexts answering from their callbacks ---- */

typedef struct echo_slot {
    nng_ctx context;
    nng_aio *aio;
    bool is_sending;
} echo_slot;

static void echo_event(void *arg)
{
    echo_slot *s = arg;
    if (nng_aio_result(s->aio))
        return;
    s->is_sending = !s->is_sending;
    if (s->is_sending)
        nng_ctx_send(s->context, s->aio); /* the message received is the message sent */
    else
        nng_ctx_recv(s->context, s->aio);
}

static void run_echo(const char *url)
{
    static echo_slot slots[N_CONTEXTS];
    nng_socket socket;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(nng_rep0_open(&socket), "echo");
    for (int i = 0; i < N_CONTEXTS; i++) {
        must(nng_aio_alloc(&slots[i].aio, echo_event, &slots[i]), "echo");
        must(nng_ctx_open(&slots[i].context, socket), "echo");
        nng_ctx_recv(slots[i].context, slots[i].aio);
    }
    must(nng_listen(socket, url, NULL, 0), url);
    for (;;)
        pause();
}

/* ---- The client ---- */

typedef struct peer {
    nng_socket socket;
    double us[ROUNDS];
} peer;

static void dial(peer *p, const char *url)
{
    int failed = 1;
    must(nng_req0_open(&p->socket), "client");
    nng_socket_set_ms(p->socket, NNG_OPT_RECVTIMEO, 5000);
    for (int tries = 0; failed && tries < 500; tries++) {
        failed = nng_dial(p->socket, url, NULL, 0);
        if (failed)
            usleep(10000);
    }
    must(failed, url);
}

static double exchange(peer *p)
{
    nng_msg *message;
    double begin = now_us();
    must(nng_msg_alloc(&message, 0), "message");
    must(nng_msg_append(message, PING, sizeof PING), "message");
    must(nng_sendmsg(p->socket, message, 0), "send");
    must(nng_recvmsg(p->socket, &message, 0), "receive");
    nng_msg_free(message);
    return now_us() - begin;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *name, const double *us)
{
    printf("%-28s %8.1f %8.1f\n", name, us[ROUNDS / 2], us[ROUNDS * 99 / 100]);
}

static pid_t start(const char *binary, const char *dir)
{
    pid_t child = fork();
    if (child)
        return child;
    char option[300];
    snprintf(option, sizeof option, "--runtime.dir=%s", dir);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl(binary, "attnd", "--no-keeper", "--device.backend=cpu", "--log.level=error", option,
          (char *)NULL);
    perror(binary);
    _exit(127);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "echo"))
        run_echo(argv[2]);
    static peer attnd, echo;
    char dir[] = "/tmp/attnd-bench-XXXXXX", url[128], binary[512];
    const char *build = getenv("ATTND_BUILD");
    if (!mkdtemp(dir))
        return 1;
    snprintf(url, sizeof url, "ipc://%s/echo", dir);
    snprintf(binary, sizeof binary, "%s/bin/attnd", build ? build : "build/release");
    pid_t child = fork(); /* before nng starts its threads here */
    if (!child)
        run_echo(url);
    pid_t daemon_pid = start(binary, dir);
    dial(&echo, url);
    snprintf(url, sizeof url, "ipc://%s/data", dir);
    dial(&attnd, url);
    for (int i = -WARM_UP; i < ROUNDS; i++) {
        double a = exchange(&attnd), e = exchange(&echo);
        if (i >= 0) {
            attnd.us[i] = a;
            echo.us[i] = e;
        }
    }
    kill(daemon_pid, SIGTERM);
    kill(child, SIGKILL);
    waitpid(daemon_pid, NULL, 0);
    waitpid(child, NULL, 0);
    qsort(attnd.us, ROUNDS, sizeof *attnd.us, by_value);
    qsort(echo.us, ROUNDS, sizeof *echo.us, by_value);
    printf("%-28s %8s %8s   %d round trips each, alternating\n", "round trip", "p50 us", "p99 us",
           ROUNDS);
    print_row("attnd Ping", attnd.us);
    print_row("bare nng echo", echo.us);
    printf("%-28s %8.2f %8.2f\n", "ratio", attnd.us[ROUNDS / 2] / echo.us[ROUNDS / 2],
           attnd.us[ROUNDS * 99 / 100] / echo.us[ROUNDS * 99 / 100]);
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}
