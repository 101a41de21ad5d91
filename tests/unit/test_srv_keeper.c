/* test_srv_keeper.c: one daemon a directory; an engine that dies is started again, one that leaves
 * ends the keeper.
 *
 * The keeper starts its own executable with --engine-socket added: this program, which then plays
 * the engine that argv[1] names.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "daemon/keeper.h"
#include "daemon/store.h"

/* ---- The engine that is played ---- */

static volatile sig_atomic_t got_hup;

static void on_hup(int sig)
{
    got_hup = 1;
}

static void on_term(int sig)
{
    _exit(0);
}

static void count_fd(void *arg, const char *name, int fd)
{
    ++*(int *)arg;
    close(fd);
}

/* Appends a line to DIR/engine. */
static void note(const char *dir, const char *fmt, int n)
{
    char path[256], line[64];
    snprintf(path, sizeof path, "%s/engine", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int bytes = snprintf(line, sizeof line, fmt, n);
    if (fd < 0 || write(fd, line, (size_t)bytes) != bytes)
        _exit(99);
    close(fd);
}

static int engine_main(const char *role, const char *dir, int socket)
{
    srv_store *store;
    attnd_err err;
    int kept = 0, n;
    signal(SIGTERM, on_term);
    signal(SIGHUP, on_hup);
    if (srv_store_open(&store, socket, &err) != ATTND_OK ||
        srv_store_get_all(store, count_fd, &kept, &err) != ATTND_OK)
        return 98;
    note(dir, "pid %d\n", (int)getpid());
    note(dir, "kept %d\n", kept);
    if (sscanf(role, "leave:%d", &n) == 1)
        return n;
    if (strcmp(role, "slow") == 0) {
        signal(SIGTERM, SIG_DFL);
        signal(SIGHUP, SIG_DFL);
        note(dir, "slow %d\n", 1);
        pause();
    }
    if (strcmp(role, "stubborn") == 0)
        signal(SIGTERM, SIG_IGN);
    int fd = memfd_create("kept", MFD_CLOEXEC);
    if (srv_store_put(store, "pool", fd, &err) != ATTND_OK ||
        srv_store_tell(store, SRV_NEWS_READY, &err) != ATTND_OK)
        return 97;
    note(dir, "ready %d\n", 1);
    if (sscanf(role, "ready:%d", &n) == 1)
        return n;
    if (strcmp(role, "crash") == 0)
        raise(SIGKILL);
    for (bool told = false;; usleep(1000))
        if (got_hup && !told) {
            note(dir, "hup %d\n", 1);
            told = true;
        }
}

/* ---- The directory and the keeper in a process of its own ---- */

typedef struct fixture {
    char dir[64];
    cfg config;
    pid_t keeper;
} fixture;

static int make_dir(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    strcpy(f->dir, "/tmp/attnd-keeper-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->config.keeper_max_crashes = 3;
    *state = f;
    return 0;
}

static int remove_dir(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {"engine", "log", "lock", "data", "control", "buf"};
    char path[128];
    if (f->keeper) {
        kill(f->keeper, SIGKILL);
        waitpid(f->keeper, NULL, 0);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

/* What a file of the directory says; "" when it is not there. */
static char *text_of(const fixture *f, const char *name)
{
    static char text[16384];
    char path[128];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
    return text;
}

static int count_of(const fixture *f, const char *name, const char *wanted)
{
    int n = 0;
    for (const char *s = text_of(f, name); (s = strstr(s, wanted)); s++)
        n++;
    return n;
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Waits until name holds wanted n times; returns the milliseconds it took. */
static uint64_t wait_for(const fixture *f, const char *name, const char *wanted, int n)
{
    uint64_t begin = now_ms();
    while (count_of(f, name, wanted) < n) {
        if (now_ms() - begin > 10000)
            fail_msg("%s does not hold \"%s\" %d times:\n%s", name, wanted, n, text_of(f, name));
        usleep(2000);
    }
    return now_ms() - begin;
}

static void start(fixture *f, const char *role)
{
    char path[128];
    snprintf(path, sizeof path, "%s/log", f->dir);
    fflush(NULL);
    f->keeper = fork();
    if (f->keeper)
        return;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(fd, STDERR_FILENO);
    char *argv[] = {(char *)"engine", (char *)role, f->dir, NULL};
    _exit(srv_keeper_run(&f->config, f->dir, argv));
}

/* Exit code of the keeper. */
static int end_of(fixture *f)
{
    int status;
    assert_int_equal(waitpid(f->keeper, &status, 0), f->keeper);
    f->keeper = 0;
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Process id of the n-th engine started. */
static pid_t engine_pid(const fixture *f, int n)
{
    const char *s = text_of(f, "engine");
    for (; n > 0 && (s = strstr(s, "pid ")); s++)
        if (--n == 0)
            return (pid_t)atoi(s + 4);
    fail_msg("no such engine:\n%s", text_of(f, "engine"));
    return 0;
}

static void put_file(const fixture *f, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    close(open(path, O_WRONLY | O_CREAT, 0600));
}

static void put_socket(const fixture *f, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", f->dir, name);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

static bool is_there(const fixture *f, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    return access(path, F_OK) == 0;
}

/* ---- The engine's end decides ---- */

static void an_engine_that_leaves_before_it_is_ready_ends_the_keeper_with_its_code(void **state)
{
    fixture *f = *state;
    static const int codes[] = {0, EX_USAGE, EX_UNAVAILABLE, EX_CANTCREAT, EX_CONFIG};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        char role[16];
        snprintf(role, sizeof role, "leave:%d", codes[i]);
        start(f, role);
        assert_int_equal(end_of(f), codes[i]);
    }
    assert_int_equal(count_of(f, "engine", "pid "), 5);
    assert_int_equal(count_of(f, "log", "engine died"), 0);
}

static void an_engine_that_leaves_with_0_once_ready_ends_the_keeper(void **state)
{
    fixture *f = *state;
    start(f, "ready:0");
    assert_int_equal(end_of(f), 0);
    assert_int_equal(count_of(f, "engine", "pid "), 1);
}

static void crashes_are_counted_and_end_the_keeper_with_11(void **state)
{
    fixture *f = *state;
    start(f, "crash");
    assert_int_equal(end_of(f), SRV_EXIT_CRASHES);
    assert_int_equal(count_of(f, "engine", "pid "), 3);
    assert_int_equal(count_of(f, "log", "error engine died"), 3);
    assert_int_equal(count_of(f, "log", "signal=SIGKILL"), 3);
    assert_int_equal(count_of(f, "log", "keeper gives up  crashes=3 in one minute"), 1);
}

static void a_device_error_and_a_code_after_ready_are_crashes_too(void **state)
{
    fixture *f = *state;
    start(f, "leave:10");
    assert_int_equal(end_of(f), SRV_EXIT_CRASHES);
    assert_int_equal(count_of(f, "log", "code=10"), 3);
    start(f, "ready:70");
    assert_int_equal(end_of(f), SRV_EXIT_CRASHES);
    assert_int_equal(count_of(f, "log", "code=70"), 3);
}

static void one_crash_allowed_means_no_second_engine(void **state)
{
    fixture *f = *state;
    f->config.keeper_max_crashes = 1;
    start(f, "crash");
    assert_int_equal(end_of(f), SRV_EXIT_CRASHES);
    assert_int_equal(count_of(f, "engine", "pid "), 1);
}

static void an_engine_killed_is_back_within_a_second_with_an_empty_store(void **state)
{
    fixture *f = *state;
    start(f, "serve");
    wait_for(f, "engine", "ready", 1);
    pid_t first = engine_pid(f, 1);
    kill(first, SIGKILL);
    uint64_t took_ms = wait_for(f, "engine", "ready", 2);
    assert_in_range(took_ms, 0, 1000);
    assert_int_not_equal(engine_pid(f, 2), first);
    assert_int_equal(count_of(f, "engine", "kept 0"), 2);
    wait_for(f, "log", "stored=1", 1);
    wait_for(f, "log", "engine ready", 2);
    kill(f->keeper, SIGTERM);
    assert_int_equal(end_of(f), 0);
}

/* ---- Signals ---- */

static void term_and_hup_reach_the_engine(void **state)
{
    fixture *f = *state;
    start(f, "serve");
    wait_for(f, "log", "engine ready", 1);
    kill(f->keeper, SIGHUP);
    wait_for(f, "engine", "hup", 1);
    kill(f->keeper, SIGTERM);
    assert_int_equal(end_of(f), 0);
    assert_int_equal(count_of(f, "engine", "pid "), 1);
}

static void a_second_term_kills_and_leaves_no_socket(void **state)
{
    fixture *f = *state;
    start(f, "stubborn");
    wait_for(f, "log", "engine ready", 1);
    put_socket(f, "data");
    put_socket(f, "control");
    put_file(f, "buf"); /* no socket: not the engine's */
    kill(f->keeper, SIGTERM);
    wait_for(f, "log", "stopping  signal=SIGTERM", 1);
    assert_int_equal(waitpid(f->keeper, NULL, WNOHANG), 0);
    kill(f->keeper, SIGTERM); /* the same once more */
    usleep(SRV_SAME_SIGNAL_MS * 1500);
    assert_int_equal(waitpid(f->keeper, NULL, WNOHANG), 0);
    kill(f->keeper, SIGTERM);
    assert_int_equal(end_of(f), 128 + SIGTERM);
    assert_false(is_there(f, "data"));
    assert_false(is_there(f, "control"));
    assert_true(is_there(f, "buf"));
    assert_int_equal(count_of(f, "engine", "pid "), 1);
}

static void an_engine_that_dies_while_it_drains_is_not_started_again(void **state)
{
    fixture *f = *state;
    start(f, "stubborn");
    wait_for(f, "log", "engine ready", 1);
    kill(f->keeper, SIGTERM);
    wait_for(f, "log", "stopping  signal=SIGTERM", 1);
    kill(engine_pid(f, 1), SIGKILL);
    assert_int_equal(end_of(f), 128 + SIGKILL);
    assert_int_equal(count_of(f, "engine", "pid "), 1);
}

static void a_term_before_ready_ends_with_0_and_a_hup_harms_nothing(void **state)
{
    fixture *f = *state;
    start(f, "slow");
    wait_for(f, "engine", "slow", 1);
    kill(f->keeper, SIGHUP); /* read before TERM: the lower number comes first */
    kill(f->keeper, SIGTERM);
    assert_int_equal(end_of(f), 0);
    assert_int_equal(count_of(f, "engine", "pid "), 1);
}

static void the_engine_dies_with_its_keeper(void **state)
{
    fixture *f = *state;
    int status;
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    start(f, "serve");
    wait_for(f, "engine", "ready", 1);
    pid_t engine = engine_pid(f, 1);
    kill(f->keeper, SIGKILL);
    assert_int_equal(waitpid(f->keeper, &status, 0), f->keeper);
    f->keeper = 0;
    uint64_t begin = now_ms();
    while (waitpid(engine, &status, WNOHANG) != engine) {
        assert_in_range(now_ms() - begin, 0, 2000);
        usleep(2000);
    }
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* ---- The lock ---- */

static void assert_refused(const char *dir, const char *wanted)
{
    attnd_err err;
    int fd = 7;
    assert_int_equal(srv_lock_take(dir, &fd, &err), ATTND_UNAVAILABLE);
    assert_int_equal(err.reason, ATTND_UNREACHABLE);
    assert_string_equal(err.text, wanted);
    assert_int_equal(fd, -1);
}

static void the_lock_is_taken_once_and_the_refusal_names_the_holder(void **state)
{
    fixture *f = *state;
    attnd_err err;
    int fd;
    char wanted[256];
    assert_int_equal(srv_lock_take(f->dir, &fd, &err), ATTND_OK);
    snprintf(wanted, sizeof wanted,
             "lock = %s/lock: held by process %d; another attnd serves this directory", f->dir,
             (int)getpid());
    assert_refused(f->dir, wanted);
    close(fd);
    assert_int_equal(srv_lock_take(f->dir, &fd, &err), ATTND_OK);
    assert_int_equal(ftruncate(fd, 0), 0);
    snprintf(wanted, sizeof wanted,
             "lock = %s/lock: held by another process; another attnd serves this directory",
             f->dir);
    assert_refused(f->dir, wanted);
    close(fd);
}

static void a_directory_that_is_missing_is_made_for_this_user_alone(void **state)
{
    fixture *f = *state;
    attnd_err err;
    struct stat st;
    int fd;
    char dir[128], lock[160], wanted[512];
    snprintf(dir, sizeof dir, "%s/new", f->dir);
    snprintf(lock, sizeof lock, "%s/lock", dir);
    mode_t old = umask(0);
    assert_int_equal(srv_lock_take(dir, &fd, &err), ATTND_OK);
    umask(old);
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(stat(lock, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    close(fd);
    unlink(lock);
    rmdir(dir);
    snprintf(dir, sizeof dir, "%s/no/such", f->dir);
    snprintf(wanted, sizeof wanted, "runtime.dir = %s: cannot be made: No such file or directory",
             dir);
    assert_refused(dir, wanted);
}

static void a_directory_that_lets_others_in_is_refused(void **state)
{
    fixture *f = *state;
    char wanted[256];
    assert_int_equal(chmod(f->dir, 0755), 0);
    snprintf(wanted, sizeof wanted, "runtime.dir = %s: mode 0755 lets others in; chmod 0700 it",
             f->dir);
    assert_refused(f->dir, wanted);
    assert_false(is_there(f, "lock"));
}

static void a_symbolic_link_and_a_plain_file_are_refused(void **state)
{
    fixture *f = *state;
    char link[128], slashed[140], file[128], wanted[320];
    snprintf(link, sizeof link, "%s/engine", f->dir);
    snprintf(slashed, sizeof slashed, "%s/", link);
    assert_int_equal(symlink(f->dir, link), 0);
    snprintf(wanted, sizeof wanted, "runtime.dir = %s: a symbolic link; name the directory itself",
             link);
    assert_refused(link, wanted);
    assert_refused(slashed, wanted);
    put_file(f, "log");
    snprintf(file, sizeof file, "%s/log", f->dir);
    snprintf(wanted, sizeof wanted, "runtime.dir = %s: cannot be opened: Not a directory", file);
    assert_refused(file, wanted);
    assert_false(is_there(f, "lock"));
}

static void a_lock_that_is_a_link_is_refused(void **state)
{
    fixture *f = *state;
    char lock[128], wanted[320];
    snprintf(lock, sizeof lock, "%s/lock", f->dir);
    assert_int_equal(symlink("/tmp/nobody-made-this", lock), 0);
    snprintf(wanted, sizeof wanted,
             "lock = %s: cannot be opened: Too many levels of symbolic links", lock);
    assert_refused(f->dir, wanted);
}

static void a_path_that_is_too_long_is_refused(void **state)
{
    char path[5000], wanted[256];
    memset(path, 'p', sizeof path - 1);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    snprintf(wanted, sizeof wanted, "runtime.dir = %.64s...: 4999 bytes are too long", path);
    assert_refused(path, wanted);
}

static void another_users_directory_is_refused(void **state)
{
    fixture *f = *state;
    char wanted[256];
    if (geteuid() != 0) {
        print_message("# only root can give a directory away\n");
        skip();
    }
    assert_int_equal(chown(f->dir, 65534, (gid_t)-1), 0);
    snprintf(wanted, sizeof wanted, "runtime.dir = %s: belongs to uid 65534; this process is uid 0",
             f->dir);
    assert_refused(f->dir, wanted);
    assert_false(is_there(f, "lock"));
}

#define WITH_DIR(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

int main(int argc, char *argv[])
{
    if (argc == 5 && strcmp(argv[3], "--engine-socket") == 0)
        _exit(engine_main(argv[1], argv[2], atoi(argv[4])));
    const struct CMUnitTest tests[] = {
        WITH_DIR(an_engine_that_leaves_before_it_is_ready_ends_the_keeper_with_its_code),
        WITH_DIR(an_engine_that_leaves_with_0_once_ready_ends_the_keeper),
        WITH_DIR(crashes_are_counted_and_end_the_keeper_with_11),
        WITH_DIR(a_device_error_and_a_code_after_ready_are_crashes_too),
        WITH_DIR(one_crash_allowed_means_no_second_engine),
        WITH_DIR(an_engine_killed_is_back_within_a_second_with_an_empty_store),
        WITH_DIR(term_and_hup_reach_the_engine),
        WITH_DIR(a_second_term_kills_and_leaves_no_socket),
        WITH_DIR(an_engine_that_dies_while_it_drains_is_not_started_again),
        WITH_DIR(a_term_before_ready_ends_with_0_and_a_hup_harms_nothing),
        WITH_DIR(the_engine_dies_with_its_keeper),
        WITH_DIR(the_lock_is_taken_once_and_the_refusal_names_the_holder),
        WITH_DIR(a_directory_that_is_missing_is_made_for_this_user_alone),
        WITH_DIR(a_directory_that_lets_others_in_is_refused),
        WITH_DIR(a_symbolic_link_and_a_plain_file_are_refused),
        WITH_DIR(a_lock_that_is_a_link_is_refused),
        WITH_DIR(a_path_that_is_too_long_is_refused),
        WITH_DIR(another_users_directory_is_refused),
    };
    return cmocka_run_group_tests_name("srv_keeper", tests, NULL, NULL);
}
