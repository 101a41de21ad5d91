/* test_srv_socket.c: a socket is its user's own, replaces a dead daemon's, leaves other files
 * alone, and lets in who may come.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/socket.h"
#include "daemon/stats.h"

typedef struct place {
    char dir[64], path[128];
} place;

static int setup(void **state)
{
    static place p;
    strcpy(p.dir, "/tmp/attnd-socket-XXXXXX");
    assert_non_null(mkdtemp(p.dir));
    snprintf(p.path, sizeof p.path, "%s/here", p.dir);
    srv_log_set_level("error");
    srv_stats_reset();
    *state = &p;
    return 0;
}

static int teardown(void **state)
{
    place *p = *state;
    unlink(p->path);
    assert_int_equal(rmdir(p->dir), 0);
    return 0;
}

static int listens(const place *p, int type)
{
    attnd_err err;
    int fd;
    assert_int_equal(srv_socket_listen(&fd, type, p->path, &err), ATTND_OK);
    return fd;
}

/* -1: refused by the kernel. */
static int dial(const place *p, int type)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    strcpy(at.sun_path, p->path);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0)
        return fd;
    close(fd);
    return -1;
}

static void assert_refused(const char *path, const char *text)
{
    attnd_err err;
    int fd = 0;
    assert_int_equal(srv_socket_listen(&fd, SOCK_STREAM, path, &err), ATTND_UNAVAILABLE);
    assert_int_equal(err.reason, ATTND_UNREACHABLE);
    assert_string_equal(err.text, text);
    assert_int_equal(fd, -1);
}

static void it_is_its_users_own_and_of_the_type_asked_for(void **state)
{
    place *p = *state;
    static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
    mode_t umask_before = umask(0);
    for (int i = 0; i < 2; i++) {
        struct stat at;
        int type, spare = -1, fd = listens(p, types[i]);
        socklen_t n = sizeof type;
        assert_int_equal(stat(p->path, &at), 0);
        assert_true(S_ISSOCK(at.st_mode));
        assert_int_equal(at.st_mode & 07777, 0600);
        assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n), 0);
        assert_int_equal(type, types[i]);
        assert_int_equal(srv_socket_accept(fd, &spare), -1); /* does not wait */
        int client = dial(p, types[i]), server = srv_socket_accept(fd, &spare);
        assert_true(client >= 0 && server >= 0);
        assert_true(fcntl(server, F_GETFL) & O_NONBLOCK);
        assert_true(fcntl(server, F_GETFD) & FD_CLOEXEC);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        close(client);
        close(server);
        close(spare);
        close(fd); /* left there, as by a daemon that died: the next round replaces it */
    }
    umask(umask_before);
}

static void what_is_no_socket_is_left_alone(void **state)
{
    place *p = *state;
    char wanted[256], byte;
    snprintf(wanted, sizeof wanted, "socket = %s: is there and is no socket; it is left alone",
             p->path);
    int fd = open(p->path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
    assert_refused(p->path, wanted);
    fd = open(p->path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, &byte, 1), 1);
    close(fd);
    unlink(p->path);
    /* Nor is what a link points to, though it be a socket. */
    char other[160];
    snprintf(other, sizeof other, "%s-other", p->path);
    assert_int_equal(symlink(other, p->path), 0);
    assert_refused(p->path, wanted);
    assert_int_equal(unlink(p->path), 0);
}

static void a_path_that_cannot_be_bound_is_told(void **state)
{
    place *p = *state;
    char path[256], wanted[512];
    snprintf(path, sizeof path, "%s/%0100d", p->dir, 0);
    snprintf(wanted, sizeof wanted, "socket = %s: a socket's path has at most 107 bytes", path);
    assert_refused(path, wanted);
    snprintf(path, sizeof path, "%s/none/here", p->dir);
    snprintf(wanted, sizeof wanted, "socket = %s: No such file or directory", path);
    assert_refused(path, wanted);
}

static void a_dead_daemons_socket_is_removed_and_nothing_is_fine(void **state)
{
    place *p = *state;
    attnd_err err;
    assert_int_equal(srv_socket_remove(p->path, &err), ATTND_OK);
    close(listens(p, SOCK_STREAM));
    assert_int_equal(srv_socket_remove(p->path, &err), ATTND_OK);
    assert_int_equal(access(p->path, F_OK), -1);
}

/* A child of uid 65534 connects past the mode; the status says whether it was hung up on. */
static void another_user_is_not_let_in(void **state)
{
    place *p = *state;
    int status, spare = -1, fd = listens(p, SOCK_STREAM);
    if (geteuid() != 0) {
        close(fd);
        print_message("# only root can become another user\n");
        skip();
    }
    assert_int_equal(chmod(p->dir, 0711), 0);
    assert_int_equal(chmod(p->path, 0666), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        if (setresuid(65534, 65534, 65534) < 0)
            _exit(2);
        int mine = dial(p, SOCK_STREAM);
        _exit(mine < 0 ? 3 : recv(mine, &byte, 1, 0) != 0);
    }
    int got;
    while ((got = srv_socket_accept(fd, &spare)) < 0 &&
           srv_stats_counter(SRV_COUNT_connections_refused) == 0)
        usleep(1000);
    assert_int_equal(got, -1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(srv_stats_counter(SRV_COUNT_connections_refused), 1);
    close(spare);
    close(fd);
}

static void without_a_descriptor_who_waits_is_hung_up_on(void **state)
{
    place *p = *state;
    struct rlimit files, few;
    int spare = -1, fd = listens(p, SOCK_STREAM);
    assert_int_equal(srv_socket_accept(fd, &spare), -1);
    assert_true(spare >= 0);
    int client = dial(p, SOCK_STREAM), last = dup(client);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)last + 1, .rlim_max = files.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    char byte;
    for (int n = 1; n <= 2; n++) {
        assert_int_equal(srv_socket_accept(fd, &spare), -1);
        assert_int_equal(srv_stats_counter(SRV_COUNT_connections_refused), n);
        assert_int_equal(recv(client, &byte, 1, 0), 0);
        close(client);
        client = dial(p, SOCK_STREAM);
        assert_true(client >= 0);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    int server = srv_socket_accept(fd, &spare);
    assert_true(server >= 0);
    close(server);
    close(client);
    close(last);
    close(spare);
    close(fd);
}

static void few_descriptors_leave_room_for_few_connections(void **state)
{
    struct rlimit files, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    few = (struct rlimit){.rlim_cur = 1000, .rlim_max = files.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(srv_socket_room(4096, 2), 500);
    assert_int_equal(srv_socket_room(100, 2), 100);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
}

#define AT_A_PLACE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        AT_A_PLACE(it_is_its_users_own_and_of_the_type_asked_for),
        AT_A_PLACE(what_is_no_socket_is_left_alone),
        AT_A_PLACE(a_path_that_cannot_be_bound_is_told),
        AT_A_PLACE(a_dead_daemons_socket_is_removed_and_nothing_is_fine),
        AT_A_PLACE(another_user_is_not_let_in),
        AT_A_PLACE(without_a_descriptor_who_waits_is_hung_up_on),
        AT_A_PLACE(few_descriptors_leave_room_for_few_connections),
    };
    return cmocka_run_group_tests_name("srv_socket", tests, NULL, NULL);
}
