/* test_srv_store.c: descriptors put into the store come back under their names, as the same files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store.h"

typedef struct fixture {
    srv_store *store; /* the engine's end */
    srv_shelf *shelf; /* the keeper's, owned by its thread but when the engine waits for nothing */
    int socket;       /* the keeper's end */
    int heard[SRV_NEWS_RELOADED + 1];
    pthread_t keeper;
} fixture;

static void hear(void *arg, srv_news news)
{
    fixture *f = arg;
    f->heard[news]++;
}

static void *keeper_thread(void *arg)
{
    fixture *f = arg;
    while (srv_shelf_answer(f->shelf, f->socket, hear, f))
        ;
    return NULL;
}

static int open_pair(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    int pair[2];
    attnd_err err;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(srv_store_open(&f->store, pair[0], &err), ATTND_OK);
    assert_int_equal(srv_shelf_open(&f->shelf, &err), ATTND_OK);
    f->socket = pair[1];
    assert_int_equal(pthread_create(&f->keeper, NULL, keeper_thread, f), 0);
    *state = f;
    return 0;
}

static int close_pair(void **state)
{
    fixture *f = *state;
    srv_store_close(f->store);
    pthread_join(f->keeper, NULL);
    srv_shelf_close(f->shelf);
    close(f->socket);
    free(f);
    return 0;
}

static int memory_file(const char *text)
{
    int fd = memfd_create(text, MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    return fd;
}

typedef struct found {
    size_t n;
    char name[8][SRV_STORE_NAME];
    char text[8][32];
} found;

static void remember(void *arg, const char *name, int fd)
{
    found *f = arg;
    snprintf(f->name[f->n], SRV_STORE_NAME, "%s", name);
    ssize_t n = pread(fd, f->text[f->n], sizeof f->text[f->n] - 1, 0);
    f->text[f->n][n > 0 ? n : 0] = '\0';
    close(fd);
    f->n++;
}

static void put(fixture *f, const char *name, const char *text)
{
    attnd_err err;
    int fd = memory_file(text);
    assert_int_equal(srv_store_put(f->store, name, fd, &err), ATTND_OK);
    close(fd);
}

static found get_all(fixture *f)
{
    found got = {0};
    attnd_err err;
    assert_int_equal(srv_store_get_all(f->store, remember, &got, &err), ATTND_OK);
    return got;
}

static void what_is_put_comes_back_with_its_bytes(void **state)
{
    fixture *f = *state;
    put(f, "pool.main", "main");
    put(f, "buffer.7", "seven");
    found got = get_all(f);
    assert_int_equal(got.n, 2);
    assert_string_equal(got.name[0], "pool.main");
    assert_string_equal(got.text[0], "main");
    assert_string_equal(got.name[1], "buffer.7");
    assert_string_equal(got.text[1], "seven");
}

static void an_empty_store_gives_nothing(void **state)
{
    assert_int_equal(get_all(*state).n, 0);
}

static void a_put_of_a_known_name_replaces_it(void **state)
{
    fixture *f = *state;
    put(f, "a", "old");
    put(f, "b", "other");
    put(f, "a", "new");
    found got = get_all(f);
    assert_int_equal(got.n, 2);
    assert_string_equal(got.name[0], "a");
    assert_string_equal(got.text[0], "new");
}

static void a_dropped_name_is_gone_and_an_unknown_one_is_no_error(void **state)
{
    fixture *f = *state;
    attnd_err err;
    put(f, "a", "a");
    put(f, "b", "b");
    put(f, "c", "c");
    assert_int_equal(srv_store_drop(f->store, "b", &err), ATTND_OK);
    assert_int_equal(srv_store_drop(f->store, "nobody", &err), ATTND_OK);
    found got = get_all(f);
    assert_int_equal(got.n, 2);
    assert_string_equal(got.name[0], "a");
    assert_string_equal(got.name[1], "c");
    assert_string_equal(got.text[1], "c");
}

static void news_have_reached_the_keeper_when_they_are_told(void **state)
{
    fixture *f = *state;
    attnd_err err;
    for (int news = SRV_NEWS_READY; news <= SRV_NEWS_RELOADED; news++) {
        assert_int_equal(f->heard[news], 0);
        assert_int_equal(srv_store_tell(f->store, (srv_news)news, &err), ATTND_OK);
        assert_int_equal(f->heard[news], 1);
    }
}

static void *tell_often(void *arg)
{
    fixture *f = arg;
    attnd_err err;
    for (int i = 0; i < 500; i++)
        if (srv_store_tell(f->store, SRV_NEWS_RELOADED, &err) != ATTND_OK)
            return f;
    return NULL;
}

/* One thread tells while another one puts: each gets its own answers. */
static void two_threads_share_it(void **state)
{
    fixture *f = *state;
    attnd_err err;
    pthread_t teller;
    void *failed;
    assert_int_equal(pthread_create(&teller, NULL, tell_often, f), 0);
    for (int i = 0; i < 500; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i % 8);
        assert_int_equal(srv_store_put(f->store, name, 0, &err), ATTND_OK);
    }
    pthread_join(teller, &failed);
    assert_null(failed);
    assert_int_equal(f->heard[SRV_NEWS_RELOADED], 500);
    assert_int_equal(srv_shelf_count(f->shelf), 8);
}

static void a_name_that_does_not_fit_is_refused_and_nothing_is_kept(void **state)
{
    fixture *f = *state;
    char name[SRV_STORE_NAME + 1];
    attnd_err err;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(srv_store_put(f->store, name, 0, &err), ATTND_INTERNAL);
    assert_int_equal(err.reason, ATTND_BROKEN);
    assert_string_equal(err.text, "name = 96 bytes: the store takes 1..95");
    assert_int_equal(srv_store_put(f->store, "", 0, &err), ATTND_INTERNAL);
    assert_string_equal(err.text, "name = 0 bytes: the store takes 1..95");
    assert_int_equal(get_all(f).n, 0);
    name[SRV_STORE_NAME - 1] = '\0';
    put(f, name, "longest");
    assert_string_equal(get_all(f).name[0], name);
}

static void a_full_store_refuses_and_keeps_what_it_has(void **state)
{
    fixture *f = *state;
    attnd_err err;
    struct rlimit old, roomy;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    roomy = old;
    roomy.rlim_cur = 4096 + 64;
    if (roomy.rlim_cur > roomy.rlim_max) {
        print_message("# needs %lu open files, the limit is %lu\n", (unsigned long)roomy.rlim_cur,
                      (unsigned long)roomy.rlim_max);
        skip();
    }
    if (roomy.rlim_cur > old.rlim_cur)
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &roomy), 0);
    int fd = memory_file("x");
    char name[SRV_STORE_NAME];
    for (int i = 0; i < 4096; i++) {
        snprintf(name, sizeof name, "n%d", i);
        assert_int_equal(srv_store_put(f->store, name, fd, &err), ATTND_OK);
    }
    assert_int_equal(srv_store_put(f->store, "one more", fd, &err), ATTND_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, ATTND_NO_ROOM);
    assert_string_equal(err.text, "store = 4096 descriptors: the keeper takes no more (at most "
                                  "4096, and no more than its own limit of open files)");
    assert_int_equal(srv_shelf_count(f->shelf), 4096);
    assert_int_equal(srv_store_put(f->store, "n17", fd, &err), ATTND_OK);
    assert_int_equal(srv_store_drop(f->store, "n17", &err), ATTND_OK);
    assert_int_equal(srv_store_put(f->store, "one more", fd, &err), ATTND_OK);
    close(fd);
    srv_store_drop(f->store, "n0", &err);
    srv_shelf_clear(f->shelf);
    assert_int_equal(srv_shelf_count(f->shelf), 0);
    setrlimit(RLIMIT_NOFILE, &old);
}

static int open_files(void)
{
    int n = 0;
    struct stat st;
    for (int fd = 0; fd < 1024; fd++)
        n += fstat(fd, &st) == 0;
    return n;
}

static void no_descriptor_leaks(void **state)
{
    fixture *f = *state;
    attnd_err err;
    int before = open_files();
    for (int i = 0; i < 50; i++) {
        put(f, "same", "same");
        get_all(f);
        srv_store_drop(f->store, "same", &err);
    }
    assert_int_equal(open_files(), before);
}

static void a_keeper_that_is_gone_is_said_so(void **state)
{
    int pair[2];
    attnd_err err;
    srv_store *store;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(srv_store_open(&store, pair[0], &err), ATTND_OK);
    close(pair[1]);
    assert_int_equal(srv_store_put(store, "a", 0, &err), ATTND_UNAVAILABLE);
    assert_int_equal(err.reason, ATTND_UNREACHABLE);
    assert_string_equal(err.text, "keeper = gone: its socket was closed");
    assert_int_equal(srv_store_tell(store, SRV_NEWS_READY, &err), ATTND_UNAVAILABLE);
    assert_int_equal(srv_store_drop(store, "a", &err), ATTND_UNAVAILABLE);
    assert_int_equal(srv_store_get_all(store, remember, &(found){0}, &err), ATTND_UNAVAILABLE);
    srv_store_close(store);
}

static void a_socket_of_another_kind_is_refused(void **state)
{
    int pair[2];
    attnd_err err;
    srv_store *store = (srv_store *)state;
    char text[128];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(srv_store_open(&store, pair[0], &err), ATTND_UNAVAILABLE);
    assert_null(store);
    assert_int_equal(err.reason, ATTND_UNREACHABLE);
    snprintf(text, sizeof text, "engine-socket = %d: not the keeper's seqpacket socket", pair[0]);
    assert_string_equal(err.text, text);
    close(pair[0]);
    close(pair[1]);
}

static void a_packet_of_another_size_ends_the_conversation(void **state)
{
    int pair[2];
    attnd_err err;
    srv_shelf *shelf;
    fixture f = {.store = NULL};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    assert_int_equal(srv_shelf_open(&shelf, &err), ATTND_OK);
    assert_int_equal(send(pair[0], "junk", 4, 0), 4);
    assert_false(srv_shelf_answer(shelf, pair[1], hear, &f));
    assert_int_equal(f.heard[SRV_NEWS_READY], 0);
    assert_int_equal(srv_shelf_count(shelf), 0);
    close(pair[0]);
    assert_false(srv_shelf_answer(shelf, pair[1], hear, &f));
    close(pair[1]);
    srv_shelf_close(shelf);
    srv_shelf_close(NULL);
    srv_store_close(NULL);
}

#define PAIRED(test) cmocka_unit_test_setup_teardown(test, open_pair, close_pair)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PAIRED(what_is_put_comes_back_with_its_bytes),
        PAIRED(an_empty_store_gives_nothing),
        PAIRED(a_put_of_a_known_name_replaces_it),
        PAIRED(a_dropped_name_is_gone_and_an_unknown_one_is_no_error),
        PAIRED(news_have_reached_the_keeper_when_they_are_told),
        PAIRED(two_threads_share_it),
        PAIRED(a_name_that_does_not_fit_is_refused_and_nothing_is_kept),
        PAIRED(a_full_store_refuses_and_keeps_what_it_has),
        PAIRED(no_descriptor_leaks),
        cmocka_unit_test(a_keeper_that_is_gone_is_said_so),
        cmocka_unit_test(a_socket_of_another_kind_is_refused),
        cmocka_unit_test(a_packet_of_another_size_ends_the_conversation),
    };
    return cmocka_run_group_tests_name("srv_store", tests, NULL, NULL);
}
