/* test_client_buffer.c: buffers are memory both sides see; whatever fails leaves neither mapping
 * nor descriptor behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fake_client.h"

static int n_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    int n = 0;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* Mappings of the fake's memory file in this process. */
static int n_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    char line[512];
    int n = 0;
    while (fgets(line, sizeof line, maps))
        n += strstr(line, "/memfd:fake") != NULL;
    fclose(maps);
    return n;
}

static void a_buffer_is_memory_both_sides_see(void **state)
{
    fake_server server = {0};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer;
    attnd_err err;
    assert_int_equal(attnd_create_buffer(client, 10000, 0, &buffer, &err), ATTND_OK);
    assert_int_equal(attnd_buffer_bytes(buffer), 10000);
    assert_int_equal(attnd_buffer_id(buffer), 55);
    char *data = attnd_buffer_data(buffer);
    for (int i = 0; i < 10000; i++)
        assert_int_equal(data[i], 0);
    memcpy(data + 9990, "from here", 10);
    char seen[10];
    assert_int_equal(pread(server.memory, seen, 10, 9990), 10);
    assert_string_equal(seen, "from here");
    assert_int_equal(pwrite(server.memory, "from there", 10, 0), 10);
    assert_memory_equal(data, "from there", 10);
    assert_int_equal(n_mappings(), 1);
    assert_int_equal(attnd_free_buffer(buffer, 0, &err), ATTND_OK);
    assert_int_equal(n_mappings(), 0);
    assert_int_equal(fake_n_requests(&server, MSG_OP_free_buffer), 1);
    leave(client, &server);
}

static fake_action with_offset(fake_server *server, const msg_fd_request *request,
                               msg_fd_reply *reply)
{
    fake_fd_answer(server, request, reply);
    reply->offset = request->buffer ? 4096 + 64 : 0;
    return FAKE_REPLY;
}

static void a_buffer_is_read_and_written_within_its_bounds(void **state)
{
    fake_server server = {0};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer;
    attnd_err err;
    char seen[16] = "untouched";
    assert_int_equal(attnd_create_buffer(client, 100, 0, &buffer, &err), ATTND_OK);
    assert_false(attnd_buffer_is_device(buffer));
    assert_int_equal(attnd_buffer_write(buffer, 93, "to end", 7, &err), ATTND_OK);
    assert_string_equal((char *)attnd_buffer_data(buffer) + 93, "to end");
    assert_int_equal(attnd_buffer_read(buffer, 100, seen, 0, &err), ATTND_OK);
    static const uint64_t outside[][2] = {{94, 7}, {101, 0}, {1, UINT64_MAX}, {UINT64_MAX, 2}};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        assert_int_equal(attnd_buffer_read(buffer, outside[i][0], seen, outside[i][1], &err),
                         ATTND_INVALID_ARGUMENT);
        assert_int_equal(attnd_buffer_write(buffer, outside[i][0], seen, outside[i][1], &err),
                         ATTND_INVALID_ARGUMENT);
        assert_int_equal(err.reason, ATTND_BAD_LENGTH);
    }
    assert_string_equal(err.text, "offset = 18446744073709551615: 2 bytes from there end outside "
                                  "the buffer of 100");
    assert_string_equal(seen, "untouched");
    assert_int_equal(attnd_buffer_read(buffer, 93, seen, 7, &err), ATTND_OK);
    assert_string_equal(seen, "to end");
    leave(client, &server);
}

static void a_buffer_may_start_anywhere_in_its_file(void **state)
{
    fake_server server = {.fd_answer = with_offset};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer;
    assert_int_equal(attnd_create_buffer(client, 100, 0, &buffer, NULL), ATTND_OK);
    strcpy(attnd_buffer_data(buffer), "here");
    char seen[5];
    assert_int_equal(pread(server.memory, seen, 5, 4096 + 64), 5);
    assert_string_equal(seen, "here");
    assert_int_equal(attnd_free_buffer(buffer, 0, NULL), ATTND_OK);
    assert_int_equal(n_mappings(), 0);
    leave(client, &server);
}

static void surplus_descriptors_are_closed(void **state)
{
    fake_server server = {.n_extra_fds = 3};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer;
    int before = n_descriptors();
    assert_int_equal(attnd_create_buffer(client, 100, 0, &buffer, NULL), ATTND_OK);
    assert_int_equal(n_descriptors(), before + 1); /* the fake's own */
    leave(client, &server);
}

static void closing_unmaps_every_buffer(void **state)
{
    fake_server server = {0};
    attnd_client *client = connected(&server);
    attnd_buffer *buffers[5];
    for (int i = 0; i < 5; i++)
        assert_int_equal(attnd_create_buffer(client, 4096, 0, &buffers[i], NULL), ATTND_OK);
    assert_int_equal(n_mappings(), 5);
    assert_int_equal(attnd_free_buffer(buffers[2], 0, NULL), ATTND_OK);
    assert_int_equal(n_mappings(), 4);
    attnd_close(client);
    assert_int_equal(n_mappings(), 0);
    fake_close(&server);
}

static fake_action refuse_buffers(fake_server *server, const msg_request *request, msg_reply *reply)
{
    fake_answer(server, request, reply);
    if (request->op == MSG_OP_create_buffer)
        attnd_fail(&reply->err, ATTND_TOO_LARGE, "bytes = 1: something");
    if (request->op == MSG_OP_free_buffer)
        attnd_fail(&reply->err, ATTND_NO_SUCH_HANDLE, "buffer = 55: no such buffer");
    return FAKE_REPLY;
}

static void a_refused_buffer_leaves_nothing(void **state)
{
    fake_server server = {.answer = refuse_buffers};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer = (attnd_buffer *)state;
    attnd_err err;
    assert_int_equal(attnd_create_buffer(client, 1, 0, &buffer, &err), ATTND_INVALID_ARGUMENT);
    assert_null(buffer);
    assert_refusal(&err, ATTND_TOO_LARGE, "bytes = 1: something");
    assert_int_equal(n_mappings(), 0);
    assert_int_equal(fake_n_requests(&server, MSG_OP_free_buffer), 0);
    leave(client, &server);
}

static fake_action refuse_free(fake_server *server, const msg_request *request, msg_reply *reply)
{
    fake_answer(server, request, reply);
    if (request->op == MSG_OP_free_buffer)
        attnd_fail(&reply->err, ATTND_NO_SUCH_HANDLE, "buffer = 55: no such buffer");
    return FAKE_REPLY;
}

static void a_buffer_whose_freeing_is_refused_is_unmapped(void **state)
{
    fake_server server = {.answer = refuse_free};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer;
    attnd_err err;
    assert_int_equal(attnd_create_buffer(client, 100, 0, &buffer, NULL), ATTND_OK);
    assert_int_equal(attnd_free_buffer(buffer, 0, &err), ATTND_NOT_FOUND);
    assert_refusal(&err, ATTND_NO_SUCH_HANDLE, "buffer = 55: no such buffer");
    assert_int_equal(n_mappings(), 0);
    leave(client, &server);
}

/* ---- When the descriptor does not come ---- */

static fake_action (*on_fetch)(fake_server *server, const msg_fd_request *request,
                               msg_fd_reply *reply);

static fake_action fetch_by_script(fake_server *server, const msg_fd_request *request,
                                   msg_fd_reply *reply)
{
    fake_action action = fake_fd_answer(server, request, reply);
    return request->buffer ? on_fetch(server, request, reply) : action;
}

/* A buffer whose fetching goes by the script is refused, and what was created is given back. */
static void assert_fetch_refused(fake_action (*script)(fake_server *, const msg_fd_request *,
                                                       msg_fd_reply *),
                                 attnd_reason reason, const char *text)
{
    on_fetch = script;
    fake_server server = {.fd_answer = fetch_by_script};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer = (attnd_buffer *)client;
    attnd_err err;
    int before = n_descriptors();
    assert_int_equal(attnd_create_buffer(client, 100, 0, &buffer, &err),
                     attnd_reason_status(reason));
    assert_null(buffer);
    assert_refusal(&err, reason, text);
    assert_int_equal(n_mappings(), 0);
    assert_int_equal(n_descriptors(), before + 1); /* the fake's own */
    assert_int_equal(fake_n_requests(&server, MSG_OP_free_buffer), 1);
    leave(client, &server);
}

static fake_action without_descriptor(fake_server *server, const msg_fd_request *request,
                                      msg_fd_reply *reply)
{
    *reply = (msg_fd_reply){0};
    return FAKE_REPLY;
}

static fake_action of_another_kind(fake_server *server, const msg_fd_request *request,
                                   msg_fd_reply *reply)
{
    reply->kind = 3;
    return FAKE_REPLY;
}

static fake_action refused(fake_server *server, const msg_fd_request *request, msg_fd_reply *reply)
{
    attnd_fail(&reply->err, ATTND_NO_SUCH_HANDLE, "buffer = 55: no such buffer");
    return FAKE_REPLY; /* with a descriptor all the same, which is closed */
}

static fake_action without_size(fake_server *server, const msg_fd_request *request,
                                msg_fd_reply *reply)
{
    reply->bytes = 0;
    return FAKE_REPLY;
}

static void a_buffer_that_cannot_be_fetched_is_given_back(void **state)
{
    assert_fetch_refused(without_descriptor, ATTND_UNSUPPORTED,
                         "kind = 0: this library maps FD_MEMFD (1) and FD_CUDA_VMM (2)");
    assert_fetch_refused(of_another_kind, ATTND_UNSUPPORTED,
                         "kind = 3: this library maps FD_MEMFD (1) and FD_CUDA_VMM (2)");
    assert_fetch_refused(refused, ATTND_NO_SUCH_HANDLE, "buffer = 55: no such buffer");
    assert_fetch_refused(without_size, ATTND_NO_ROOM,
                         "bytes = 0: cannot be mapped: Invalid argument");
}

static fake_action garbage(fake_server *server, const msg_fd_request *request, msg_fd_reply *reply)
{
    return FAKE_GARBAGE;
}

static void a_packet_that_does_not_decode_is_broken(void **state)
{
    on_fetch = garbage;
    fake_server server = {.fd_answer = fetch_by_script};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer;
    attnd_err err;
    char text[128];
    snprintf(text, sizeof text, "buf = %s/buf: sent no FdReply", server.dir);
    assert_int_equal(attnd_create_buffer(client, 100, 0, &buffer, &err), ATTND_INTERNAL);
    assert_null(buffer);
    assert_refusal(&err, ATTND_BROKEN, text);
    leave(client, &server);
}

static fake_action never(fake_server *server, const msg_fd_request *request, msg_fd_reply *reply)
{
    return FAKE_SILENT;
}

/* A late one would be taken for the next buffer's. */
static void a_descriptor_that_does_not_come_ends_the_connection_it_was_asked_over(void **state)
{
    on_fetch = never;
    fake_server server = {.fd_answer = fetch_by_script};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer;
    attnd_err err;
    char text[128];
    snprintf(text, sizeof text, "buf = %s/buf: no reply in time", server.dir);
    assert_int_equal(attnd_create_buffer(client, 100, 200, &buffer, &err), ATTND_DEADLINE_EXCEEDED);
    assert_null(buffer);
    assert_refusal(&err, ATTND_TIMED_OUT, text);
    assert_true(fake_wait_leases(&server, 1)); /* of a new connection */
    assert_int_equal(fake_n_requests(&server, MSG_OP_free_buffer), 1);
    pthread_mutex_lock(&server.lock);
    on_fetch = fake_fd_answer;
    pthread_mutex_unlock(&server.lock);
    assert_int_equal(attnd_create_buffer(client, 100, 0, &buffer, &err), ATTND_OK);
    leave(client, &server);
}

static fake_action hang_up(fake_server *server, const msg_fd_request *request, msg_fd_reply *reply)
{
    return FAKE_BREAK;
}

static void a_buffer_socket_that_closes_twice_is_said(void **state)
{
    on_fetch = hang_up;
    fake_server server = {.fd_answer = fetch_by_script};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer;
    attnd_err err;
    char text[128];
    snprintf(text, sizeof text, "buf = %s/buf: attnd closed the connection or is gone", server.dir);
    assert_int_equal(attnd_create_buffer(client, 100, 0, &buffer, &err), ATTND_UNAVAILABLE);
    assert_null(buffer);
    assert_refusal(&err, ATTND_RESTARTED, text);
    assert_int_equal(fake_n_requests(&server, MSG_OP_free_buffer), 1);
    leave(client, &server);
}

static fake_action hang_up_once(fake_server *server, const msg_fd_request *request,
                                msg_fd_reply *reply)
{
    return server->n_fd_requests == 2 ? FAKE_BREAK : FAKE_REPLY;
}

static void a_buffer_is_asked_for_again_over_a_new_lease(void **state)
{
    on_fetch = hang_up_once;
    fake_server server = {.fd_answer = fetch_by_script};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer;
    attnd_err err = {0};
    assert_int_equal(attnd_create_buffer(client, 100, 0, &buffer, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    assert_int_equal(fake_n_fd_requests(&server), 4); /* lease, buffer, lease, buffer */
    assert_int_equal(fake_n_requests(&server, MSG_OP_create_buffer), 1);
    assert_true(fake_wait_leases(&server, 1));
    leave(client, &server);
}

/* ---- Names ---- */

static const char *name_now;

static fake_action by_name(fake_server *server, const msg_request *request, msg_reply *reply)
{
    fake_answer(server, request, reply);
    if (request->op == MSG_OP_create_buffer && request->create_buffer.named)
        reply->create_buffer.shm_name = name_now;
    return FAKE_REPLY;
}

/* The object the test is about; its descriptor. */
static int made_object(char name[64], off_t bytes)
{
    snprintf(name, 64, "/attnd-test-%d", (int)getpid());
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    name_now = name;
    return fd;
}

static void a_named_buffer_is_mapped_by_its_name_and_unlinked_by_nobody_here(void **state)
{
    char name[64], seen[10];
    int object = made_object(name, 10000);
    fake_server server = {.answer = by_name};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer, *plain;
    attnd_err err = {0};
    int before = n_descriptors();
    assert_int_equal(attnd_create_named_buffer(client, 10000, 0, &buffer, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    assert_string_equal(attnd_buffer_name(buffer), name);
    assert_int_equal(attnd_buffer_bytes(buffer), 10000);
    assert_int_equal(n_descriptors(), before + 1); /* the fake's own */
    pthread_mutex_lock(&server.lock);
    assert_int_equal(server.n_fd_requests, 1); /* the lease's: no descriptor was asked for */
    pthread_mutex_unlock(&server.lock);
    memcpy((char *)attnd_buffer_data(buffer) + 9990, "from here", 10);
    assert_int_equal(pread(object, seen, 10, 9990), 10);
    assert_string_equal(seen, "from here");
    assert_int_equal(attnd_create_buffer(client, 100, 0, &plain, &err), ATTND_OK);
    assert_null(attnd_buffer_name(plain));
    assert_int_equal(attnd_free_buffer(buffer, 0, &err), ATTND_OK);
    assert_int_equal(fake_n_requests(&server, MSG_OP_free_buffer), 1);
    attnd_close(client);
    assert_int_equal(shm_unlink(name), 0); /* it is still there */
    close(object);
    fake_close(&server);
}

/* A named buffer is refused, and what was created is given back. */
static void assert_name_refused(uint64_t bytes, attnd_reason reason, const char *text)
{
    fake_server server = {.answer = by_name};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer = (attnd_buffer *)client;
    attnd_err err;
    int before = n_descriptors();
    assert_int_equal(attnd_create_named_buffer(client, bytes, 0, &buffer, &err),
                     attnd_reason_status(reason));
    assert_null(buffer);
    assert_refusal(&err, reason, text);
    assert_int_equal(n_descriptors(), before + 1); /* the fake's own */
    assert_int_equal(fake_n_requests(&server, MSG_OP_free_buffer), 1);
    leave(client, &server);
}

static void a_name_that_cannot_be_mapped_is_refused_and_the_buffer_given_back(void **state)
{
    char name[64], text[160];
    name_now = "/attnd-test-nobody";
    assert_name_refused(
        100, ATTND_UNREACHABLE,
        "shm_name = /attnd-test-nobody: cannot be opened here: No such file or directory");
    name_now = NULL; /* a daemon that knows no names would have refused the request */
    assert_name_refused(100, ATTND_BROKEN, "shm_name: attnd gave the buffer none");
    close(made_object(name, 99));
    snprintf(text, sizeof text, "shm_name = %s: shorter than its 100 bytes", name);
    assert_name_refused(100, ATTND_BROKEN, text);
    assert_int_equal(shm_unlink(name), 0);
}

/* ---- Threads ---- */

static void *create_and_free(void *client)
{
    size_t n_ok = 0;
    for (int i = 0; i < 30; i++) {
        attnd_buffer *buffer;
        if (attnd_create_buffer(client, 5000, 0, &buffer, NULL) != ATTND_OK)
            continue;
        memset(attnd_buffer_data(buffer), i, 5000);
        n_ok += attnd_free_buffer(buffer, 0, NULL) == ATTND_OK;
    }
    return (void *)n_ok;
}

static void threads_share_the_buffer_socket(void **state)
{
    fake_server server = {0};
    attnd_client *client = connected(&server);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, create_and_free, client), 0);
    for (int i = 0; i < 4; i++) {
        void *n_ok;
        pthread_join(threads[i], &n_ok);
        assert_int_equal((size_t)n_ok, 30);
    }
    assert_int_equal(n_mappings(), 0);
    leave(client, &server);
}

static void *create_slowly(void *client)
{
    attnd_buffer *buffer;
    return (void *)(uintptr_t)attnd_create_buffer(client, 100, 800, &buffer, NULL);
}

static void waiting_for_anothers_descriptor_ends_in_time(void **state)
{
    on_fetch = never;
    fake_server server = {.fd_answer = fetch_by_script};
    attnd_client *client = connected(&server);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, create_slowly, client), 0);
    usleep(300000); /* the other's descriptor is being waited for */
    attnd_buffer *buffer;
    attnd_err err;
    char text[128];
    snprintf(text, sizeof text, "buf = %s/buf: another buffer is still asked for", server.dir);
    assert_int_equal(attnd_create_buffer(client, 100, 100, &buffer, &err), ATTND_DEADLINE_EXCEEDED);
    assert_null(buffer);
    assert_refusal(&err, ATTND_TIMED_OUT, text);
    assert_int_equal(fake_n_fd_requests(&server), 2); /* the lease's, the other's */
    void *other;
    pthread_join(thread, &other);
    assert_int_equal((uintptr_t)other, ATTND_DEADLINE_EXCEEDED);
    leave(client, &server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_is_memory_both_sides_see),
        cmocka_unit_test(a_buffer_is_read_and_written_within_its_bounds),
        cmocka_unit_test(a_buffer_may_start_anywhere_in_its_file),
        cmocka_unit_test(surplus_descriptors_are_closed),
        cmocka_unit_test(closing_unmaps_every_buffer),
        cmocka_unit_test(a_refused_buffer_leaves_nothing),
        cmocka_unit_test(a_buffer_whose_freeing_is_refused_is_unmapped),
        cmocka_unit_test(a_buffer_that_cannot_be_fetched_is_given_back),
        cmocka_unit_test(a_packet_that_does_not_decode_is_broken),
        cmocka_unit_test(a_descriptor_that_does_not_come_ends_the_connection_it_was_asked_over),
        cmocka_unit_test(a_buffer_socket_that_closes_twice_is_said),
        cmocka_unit_test(a_buffer_is_asked_for_again_over_a_new_lease),
        cmocka_unit_test(a_named_buffer_is_mapped_by_its_name_and_unlinked_by_nobody_here),
        cmocka_unit_test(a_name_that_cannot_be_mapped_is_refused_and_the_buffer_given_back),
        cmocka_unit_test(threads_share_the_buffer_socket),
        cmocka_unit_test(waiting_for_anothers_descriptor_ends_in_time),
    };
    return cmocka_run_group_tests_name("client_buffer", tests, NULL, NULL);
}
