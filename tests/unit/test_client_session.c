/* test_client_session.c: a client connects, says what went wrong, never waits too long and leaves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/fake_client.h"

static const char OVER[] = "session: it has ended; a new client makes another";

/* ---- Connecting ---- */

/* Why nothing came of connecting; a time that ran out was used. The caller closes the server. */
static attnd_err refused_connection(fake_server *server, uint32_t timeout_ms)
{
    attnd_client *client = (attnd_client *)server;
    attnd_err err = {0};
    fake_open(server);
    int64_t begin = now_ms();
    attnd_status status = attnd_connect(&client, server->dir, "x", timeout_ms, &err);
    assert_int_not_equal(status, ATTND_OK);
    assert_int_equal(status, err.status);
    assert_null(client);
    if (status == ATTND_DEADLINE_EXCEEDED)
        assert_timed(begin, timeout_ms);
    return err;
}

static void a_session_is_opened_leased_and_ended(void **state)
{
    fake_server server = {0};
    attnd_client *client = connected(&server);
    assert_int_equal(fake_n_requests(&server, MSG_OP_hello), 1);
    assert_true(fake_wait_leases(&server, 1));
    const attnd_info *info = attnd_get_info(client);
    assert_string_equal(info->version, "9.8.7");
    assert_string_equal(info->backend, "cpu");
    assert_string_equal(info->device, "a fake");
    assert_int_equal(info->n_threads, 2);
    assert_int_equal(info->session_ordinal, FAKE_ORDINAL);
    assert_int_equal(info->instance, FAKE_INSTANCE);
    assert_int_equal(info->max_message_bytes, 16 << 20);
    assert_int_equal(info->max_tokens, 2);
    assert_int_equal(info->max_sequences, 3);
    assert_int_equal(info->max_in_flight, 4);
    assert_int_equal(info->max_buffer_bytes, 5);
    assert_int_equal(info->max_pool_bytes, 6);
    assert_int_equal(info->max_head_dim, 7);
    assert_int_equal(info->default_timeout_ms, 8);
    assert_int_equal(info->n_features, 2);
    assert_string_equal(info->features[1], "attend");
    assert_int_equal(info->n_models, 1);
    assert_int_equal(info->models[0].model, 900);
    assert_string_equal(info->models[0].name, "ready");
    assert_int_equal(attnd_ping(client, 0, NULL), ATTND_OK);
    attnd_close(client);
    assert_int_equal(fake_n_requests(&server, MSG_OP_goodbye), 1);
    assert_true(fake_wait_leases(&server, 0));
    fake_close(&server);
}

static fake_action note_hello(fake_server *server, const msg_request *request, msg_reply *reply)
{
    if (request->op == MSG_OP_hello) {
        assert_int_equal(request->session, 0);
        assert_int_equal(request->hello.protocol, 1);
        snprintf(server->arg, 65, "%s", request->hello.client);
    } else {
        assert_int_equal(request->session, FAKE_SESSION);
    }
    return fake_answer(server, request, reply);
}

static void the_name_is_sent_and_may_be_missing(void **state)
{
    char name[65];
    fake_server server = {.answer = note_hello, .arg = name};
    attnd_close(connected(&server));
    assert_string_equal(name, "test");
    attnd_client *client;
    assert_int_equal(attnd_connect(&client, server.dir, NULL, 0, NULL), ATTND_OK);
    assert_string_equal(name, "");
    leave(client, &server);
}

static void a_missing_socket_is_named(void **state)
{
    attnd_client *client = (attnd_client *)state;
    attnd_err err;
    assert_int_equal(attnd_connect(&client, "/tmp/attnd-no-such-dir", "x", 0, &err),
                     ATTND_UNAVAILABLE);
    assert_null(client);
    assert_refusal(
        &err, ATTND_UNREACHABLE,
        "data = /tmp/attnd-no-such-dir/data: No such file or directory; is attnd running?");
}

static void a_socket_nobody_listens_on_is_named(void **state)
{
    char dir[] = "/tmp/attnd-stale-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/data", dir);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    attnd_client *client;
    attnd_err err;
    int64_t begin = now_ms();
    assert_int_equal(attnd_connect(&client, dir, "x", 5000, &err), ATTND_UNAVAILABLE);
    assert_true(now_ms() - begin < 1000);
    assert_null(client);
    assert_refusal(&err, ATTND_UNREACHABLE, "data = %s: Connection refused; is attnd running?",
                   address.sun_path);
    close(fd);
    unlink(address.sun_path);
    rmdir(dir);
}

static void a_path_too_long_for_a_socket_is_named(void **state)
{
    char dir[200];
    memset(dir, 'd', sizeof dir);
    dir[0] = '/';
    dir[sizeof dir - 1] = 0;
    attnd_client *client;
    attnd_err err;
    assert_int_equal(attnd_connect(&client, dir, "x", 1000, &err), ATTND_UNAVAILABLE);
    assert_null(client);
    assert_refusal(&err, ATTND_UNREACHABLE, "data = %s/data: a socket's path has at most 107 bytes",
                   dir);
}

static void a_socket_that_greets_nobody_is_left_in_time(void **state)
{
    fake_server server = {.is_mute = true};
    attnd_err err = refused_connection(&server, 300);
    assert_refusal(&err, ATTND_TIMED_OUT, "data = %s/data: nobody greets there", server.dir);
    fake_close(&server);
}

static fake_action never(fake_server *server, const msg_request *request, msg_reply *reply)
{
    return FAKE_SILENT;
}

static void a_hello_without_reply_ends_in_time(void **state)
{
    fake_server server = {.answer = never};
    attnd_err err = refused_connection(&server, 300);
    assert_refusal(&err, ATTND_TIMED_OUT, "data = %s/data: no reply in time", server.dir);
    fake_close(&server);
}

static fake_action refuse(fake_server *server, const msg_request *request, msg_reply *reply)
{
    attnd_fail(&reply->err, ATTND_NO_ROOM, "sessions = 256: the most there may be");
    return FAKE_REPLY;
}

static void a_refusal_arrives_unchanged(void **state)
{
    fake_server server = {.answer = refuse};
    attnd_err err = refused_connection(&server, 0);
    assert_refusal(&err, ATTND_NO_ROOM, "sessions = 256: the most there may be");
    assert_int_equal(attnd_err_field_len(&err), strlen("sessions"));
    fake_close(&server);
}

static fake_action hello_without_session(fake_server *server, const msg_request *request,
                                         msg_reply *reply)
{
    fake_answer(server, request, reply);
    reply->hello.session = 0;
    return FAKE_REPLY;
}

static void a_hello_without_session_is_broken(void **state)
{
    fake_server server = {.answer = hello_without_session};
    attnd_err err = refused_connection(&server, 0);
    assert_refusal(&err, ATTND_BROKEN, "hello: without session, device or limits");
    fake_close(&server);
}

/* B128: the second step fails. */
static void without_a_lease_there_is_no_session(void **state)
{
    fake_server server = {.is_unleased = true};
    attnd_err err = refused_connection(&server, 0);
    assert_refusal(&err, ATTND_UNREACHABLE,
                   "buf = %s/buf: No such file or directory; is attnd running?", server.dir);
    assert_int_equal(fake_n_requests(&server, MSG_OP_goodbye), 1); /* nothing is left behind */
    fake_close(&server);
}

static fake_action refuse_lease(fake_server *server, const msg_fd_request *request,
                                msg_fd_reply *reply)
{
    assert_int_equal(request->session, FAKE_SESSION);
    assert_int_equal(request->buffer, 0);
    attnd_fail(&reply->err, ATTND_UNREGISTERED, "session: no such session");
    return FAKE_REPLY;
}

static void a_refused_lease_arrives_unchanged(void **state)
{
    fake_server server = {.fd_answer = refuse_lease};
    attnd_err err = refused_connection(&server, 0);
    assert_refusal(&err, ATTND_UNREGISTERED, "session: no such session");
    assert_int_equal(fake_n_requests(&server, MSG_OP_goodbye), 1);
    fake_close(&server);
}

static fake_action never_lease(fake_server *server, const msg_fd_request *request,
                               msg_fd_reply *reply)
{
    return FAKE_SILENT;
}

static void a_lease_without_reply_ends_in_time(void **state)
{
    fake_server server = {.fd_answer = never_lease};
    attnd_err err = refused_connection(&server, 300);
    assert_refusal(&err, ATTND_TIMED_OUT, "buf = %s/buf: no reply in time", server.dir);
    fake_close(&server);
}

/* ---- Where the daemon is ---- */

static void the_directory_is_looked_for_in_order(void **state)
{
    fake_server own = {0}, xdg = {0};
    fake_open(&own);
    fake_open(&xdg);
    char home[] = "/tmp/attnd-xdg-XXXXXX", link[64];
    assert_non_null(mkdtemp(home));
    snprintf(link, sizeof link, "%s/attnd", home);
    assert_int_equal(symlink(xdg.dir, link), 0);
    setenv("RUNTIME_DIRECTORY", own.dir, 1);
    setenv("XDG_RUNTIME_DIR", home, 1);
    attnd_client *client;
    assert_int_equal(attnd_connect(&client, NULL, "x", 0, NULL), ATTND_OK);
    attnd_close(client);
    assert_int_equal(fake_n_requests(&own, MSG_OP_hello), 1);
    setenv("RUNTIME_DIRECTORY", "/tmp/attnd-no-such-dir", 1);
    assert_int_equal(attnd_connect(&client, NULL, "x", 0, NULL), ATTND_OK);
    attnd_close(client);
    assert_int_equal(fake_n_requests(&own, MSG_OP_hello), 1);
    assert_int_equal(fake_n_requests(&xdg, MSG_OP_hello), 1);
    unlink(link);
    char here[64];
    snprintf(here, sizeof here, "/tmp/attnd-%u/data", (unsigned)getuid());
    if (access("/run/attnd/data", F_OK) != 0 && access(here, F_OK) != 0) {
        attnd_err err;
        assert_int_equal(attnd_connect(&client, NULL, "x", 0, &err), ATTND_UNAVAILABLE);
        assert_null(client);
        assert_refusal(&err, ATTND_UNREACHABLE,
                       "data = /tmp/attnd-no-such-dir/data, %s/attnd/data, /run/attnd/data, %s: "
                       "no such socket; is attnd running?",
                       home, here);
    }
    unsetenv("RUNTIME_DIRECTORY");
    unsetenv("XDG_RUNTIME_DIR");
    rmdir(home);
    fake_close(&own);
    fake_close(&xdg);
}

/* ---- What goes wrong later ---- */

static fake_action (*on_ping)(fake_server *server, const msg_request *request, msg_reply *reply);

static fake_action ping_by_script(fake_server *server, const msg_request *request, msg_reply *reply)
{
    fake_action action = fake_answer(server, request, reply);
    return request->op == MSG_OP_ping ? on_ping(server, request, reply) : action;
}

/* A client whose pings go by the script; the caller closes both. */
static attnd_client *scripted(fake_server *server,
                              fake_action (*script)(fake_server *, const msg_request *,
                                                    msg_reply *))
{
    on_ping = script;
    *server = (fake_server){.answer = ping_by_script};
    return connected(server);
}

/* Connects, pings with the script and expects the refusal; the caller closes both. */
static attnd_client *
ping_refused(fake_server *server,
             fake_action (*script)(fake_server *, const msg_request *, msg_reply *), attnd_err *err)
{
    attnd_client *client = scripted(server, script);
    assert_int_not_equal(attnd_ping(client, 300, err), ATTND_OK);
    return client;
}

static fake_action break_first(fake_server *server, const msg_request *request, msg_reply *reply)
{
    return server->n_requests[MSG_OP_ping] == 1 ? FAKE_BREAK : FAKE_REPLY;
}

static void a_request_whose_connection_breaks_is_repeated_once_with_its_id(void **state)
{
    fake_server server;
    attnd_client *client = scripted(&server, break_first);
    attnd_err err = {0};
    assert_int_equal(attnd_ping(client, 2000, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    assert_int_equal(fake_n_requests(&server, MSG_OP_ping), 2);
    assert_int_equal(fake_n_connections(&server), 2);
    uint64_t ids[FAKE_MAX];
    assert_int_equal(fake_copy_ids(&server, ids), 3); /* hello, ping, ping */
    assert_true(ids[1] > ids[0]);
    assert_true(ids[2] == ids[1]);
    assert_int_equal(attnd_ping(client, 2000, &err), ATTND_OK);
    assert_int_equal(fake_copy_ids(&server, ids), 4);
    assert_true(ids[3] > ids[2]);
    leave(client, &server);
}

static fake_action break_always(fake_server *server, const msg_request *request, msg_reply *reply)
{
    return FAKE_BREAK;
}

/* It may be the request that breaks it. */
static void a_request_that_breaks_two_connections_is_not_sent_a_third_time(void **state)
{
    fake_server server;
    attnd_client *client = scripted(&server, break_always);
    attnd_err err;
    int64_t begin = now_ms();
    assert_int_equal(attnd_ping(client, 5000, &err), ATTND_UNAVAILABLE);
    assert_true(now_ms() - begin < 2000);
    assert_refusal(&err, ATTND_RESTARTED,
                   "data = %s/data: the connection broke before the reply came", server.dir);
    usleep(200000);
    assert_int_equal(fake_n_requests(&server, MSG_OP_ping), 2);
    pthread_mutex_lock(&server.lock);
    on_ping = fake_answer;
    pthread_mutex_unlock(&server.lock);
    assert_int_equal(attnd_ping(client, 2000, &err), ATTND_OK); /* the session goes on */
    leave(client, &server);
}

static fake_action break_hello(fake_server *server, const msg_request *request, msg_reply *reply)
{
    return FAKE_BREAK;
}

static void a_hello_is_not_repeated(void **state)
{
    fake_server server = {.answer = break_hello};
    attnd_err err = refused_connection(&server, 0);
    assert_refusal(&err, ATTND_RESTARTED,
                   "data = %s/data: the connection broke before the reply came", server.dir);
    assert_int_equal(fake_n_requests(&server, MSG_OP_hello), 1);
    fake_close(&server);
}

static void a_reply_that_does_not_come_ends_in_time(void **state)
{
    fake_server server;
    attnd_err err;
    int64_t begin = now_ms();
    attnd_client *client = ping_refused(&server, never, &err);
    assert_timed(begin, 300);
    assert_refusal(&err, ATTND_TIMED_OUT, "data = %s/data: no reply in time", server.dir);
    begin = now_ms(); /* the daemon is silent from here on */
    pthread_mutex_lock(&server.lock);
    assert_true(server.last_timeout_ms >= 240 && server.last_timeout_ms <= 270);
    server.answer = never;
    pthread_mutex_unlock(&server.lock);
    attnd_close(client);
    assert_true(now_ms() - begin < 2000);
    fake_close(&server);
}

static fake_action die_now(fake_server *server, const msg_request *request, msg_reply *reply)
{
    return FAKE_DIE;
}

static void a_dead_daemon_is_said_and_left_quickly(void **state)
{
    fake_server server;
    attnd_client *client = scripted(&server, die_now);
    attnd_err err;
    int64_t begin = now_ms();
    assert_int_equal(attnd_ping(client, 30000, &err), ATTND_UNAVAILABLE);
    assert_true(now_ms() - begin < 2000);
    assert_refusal(&err, ATTND_RESTARTED,
                   "data = %s/data: the connection broke before the reply came", server.dir);
    begin = now_ms(); /* and from now on at once */
    assert_int_equal(attnd_ping(client, 30000, &err), ATTND_UNAVAILABLE);
    assert_refusal(&err, ATTND_RESTARTED, OVER);
    attnd_close(client);
    assert_true(now_ms() - begin < 500);
    fake_close(&server);
}

static void a_daemon_that_died_meanwhile_is_said_and_left_quickly(void **state)
{
    fake_server server;
    attnd_client *client = scripted(&server, die_now);
    attnd_err err;
    int64_t begin = now_ms();
    assert_int_equal(attnd_ping(client, 100, &err), ATTND_UNAVAILABLE); /* too short to be sure */
    assert_int_equal(err.reason, ATTND_RESTARTED);
    assert_true(now_ms() - begin < 500);
    assert_int_equal(attnd_ping(client, 30000, &err), ATTND_UNAVAILABLE);
    assert_refusal(&err, ATTND_RESTARTED,
                   "buf = %s/buf: the connection broke and is not to be had again", server.dir);
    assert_int_equal(attnd_ping(client, 30000, &err), ATTND_UNAVAILABLE);
    assert_refusal(&err, ATTND_RESTARTED, OVER);
    attnd_close(client);
    assert_true(now_ms() - begin < 2500);
    fake_close(&server);
}

static void a_lease_that_broke_is_taken_again(void **state)
{
    fake_server server = {0};
    attnd_client *client = connected(&server);
    fake_end_leases(&server);
    assert_true(fake_wait_leases(&server, 0));
    attnd_err err = {0};
    assert_int_equal(attnd_ping(client, 0, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    assert_true(fake_wait_leases(&server, 1));
    assert_int_equal(fake_n_fd_requests(&server), 2);
    assert_int_equal(fake_n_requests(&server, MSG_OP_hello), 1); /* the same session */
    attnd_close(client);
    assert_true(fake_wait_leases(&server, 0));
    fake_close(&server);
}

static fake_action forget_session(fake_server *server, const msg_fd_request *request,
                                  msg_fd_reply *reply)
{
    if (server->n_fd_requests > 1)
        attnd_fail(&reply->err, ATTND_UNREGISTERED, "session: there is no such session");
    return FAKE_REPLY;
}

static void a_session_that_ended_meanwhile_is_over(void **state)
{
    fake_server server = {.fd_answer = forget_session};
    attnd_client *client = connected(&server);
    fake_end_leases(&server);
    assert_true(fake_wait_leases(&server, 0));
    attnd_err err;
    assert_int_equal(attnd_ping(client, 0, &err), ATTND_UNAVAILABLE);
    assert_refusal(&err, ATTND_RESTARTED, "session: there is no such session");
    int64_t begin = now_ms();
    assert_int_equal(attnd_ping(client, 0, &err), ATTND_UNAVAILABLE);
    assert_refusal(&err, ATTND_RESTARTED, OVER);
    attnd_close(client);
    assert_true(now_ms() - begin < 500);
    assert_int_equal(fake_n_requests(&server, MSG_OP_ping), 0);
    assert_int_equal(fake_n_requests(&server, MSG_OP_goodbye), 0);
    fake_close(&server);
}

static fake_action unregistered(fake_server *server, const msg_request *request, msg_reply *reply)
{
    attnd_fail(&reply->err, ATTND_UNREGISTERED, "session: there is no such session");
    return FAKE_REPLY;
}

static void a_daemon_that_does_not_know_the_session_any_more_ends_it(void **state)
{
    fake_server server;
    attnd_err err;
    attnd_client *client = ping_refused(&server, unregistered, &err);
    assert_refusal(&err, ATTND_RESTARTED, "session: there is no such session");
    assert_int_equal(attnd_ping(client, 0, &err), ATTND_UNAVAILABLE);
    assert_refusal(&err, ATTND_RESTARTED, OVER);
    assert_int_equal(fake_n_requests(&server, MSG_OP_ping), 1);
    leave(client, &server);
}

static fake_action close_listener(fake_server *server, const msg_request *request, msg_reply *reply)
{
    close(server->listeners[0]);
    server->listeners[0] = -1;
    return FAKE_BREAK;
}

static void a_daemon_that_does_not_listen_any_more_is_named(void **state)
{
    fake_server server;
    attnd_err err;
    attnd_client *client = ping_refused(&server, close_listener, &err);
    assert_int_equal(err.reason, ATTND_RESTARTED);
    usleep(100000);
    int64_t begin = now_ms();
    assert_int_equal(attnd_ping(client, 300, &err), ATTND_UNAVAILABLE);
    assert_timed(begin, 300);
    assert_refusal(&err, ATTND_UNREACHABLE, "data = %s/data: Connection refused; is attnd running?",
                   server.dir);
    begin = now_ms();
    attnd_close(client);
    assert_true(now_ms() - begin < 2000);
    fake_close(&server);
}

static fake_action other_instance(fake_server *server, const msg_request *request, msg_reply *reply)
{
    reply->instance = 8;
    return FAKE_REPLY;
}

static void another_instance_is_noticed(void **state)
{
    fake_server server;
    attnd_err err;
    attnd_client *client = ping_refused(&server, other_instance, &err);
    assert_refusal(&err, ATTND_RESTARTED,
                   "instance = 0000000000000008: the session was of 0000000000000007");
    assert_int_equal(attnd_ping(client, 0, &err), ATTND_UNAVAILABLE);
    assert_refusal(&err, ATTND_RESTARTED, OVER);
    leave(client, &server);
}

static fake_action garbage(fake_server *server, const msg_request *request, msg_reply *reply)
{
    return FAKE_GARBAGE;
}

static fake_action other_id(fake_server *server, const msg_request *request, msg_reply *reply)
{
    reply->id++;
    return FAKE_REPLY;
}

static fake_action other_result(fake_server *server, const msg_request *request, msg_reply *reply)
{
    reply->op = MSG_OP_goodbye;
    return FAKE_REPLY;
}

static void replies_that_make_no_sense_are_broken(void **state)
{
    fake_server server;
    attnd_err err;
    attnd_client *client = ping_refused(&server, garbage, &err);
    assert_refusal(&err, ATTND_BROKEN, "reply = 5 bytes: not the reply to request 2");
    leave(client, &server);
    client = ping_refused(&server, other_id, &err);
    assert_refusal(&err, ATTND_BROKEN, "reply = 23 bytes: not the reply to request 2");
    leave(client, &server);
    client = ping_refused(&server, other_result, &err);
    assert_refusal(&err, ATTND_BROKEN, "result = 18: 16 was asked for");
    leave(client, &server);
}

static fake_action junk(fake_server *server, const msg_request *request, msg_reply *reply)
{
    return FAKE_JUNK;
}

static void bytes_that_are_no_message_end_the_connection(void **state)
{
    fake_server server;
    attnd_err err;
    int64_t begin = now_ms();
    attnd_client *client = scripted(&server, junk);
    assert_int_equal(attnd_ping(client, 5000, &err), ATTND_UNAVAILABLE);
    assert_true(now_ms() - begin < 2000);
    assert_refusal(&err, ATTND_RESTARTED,
                   "data = %s/data: the connection broke before the reply came", server.dir);
    assert_int_equal(fake_n_requests(&server, MSG_OP_ping), 2);
    assert_int_equal(fake_n_connections(&server), 2);
    leave(client, &server);
}

static fake_action say_much(fake_server *server, const msg_request *request, msg_reply *reply)
{
    static const char *features[2000];
    fake_action action = fake_answer(server, request, reply);
    for (int i = 0; i < 2000; i++)
        features[i] = "a feature";
    if (request->op == MSG_OP_hello) {
        reply->hello.features = features;
        reply->hello.n_features = 2000;
    }
    return action;
}

static void replies_come_in_pieces_of_any_size(void **state)
{
    static const size_t pieces[] = {0, 1, 13, 4096};
    for (int i = 0; i < 4; i++) {
        fake_server server = {.answer = say_much, .piece = pieces[i]};
        attnd_client *client = connected(&server);
        assert_int_equal(attnd_get_info(client)->n_features, 2000);
        assert_string_equal(attnd_get_info(client)->features[1999], "a feature");
        for (int k = 0; k < 20; k++)
            assert_int_equal(attnd_ping(client, 0, NULL), ATTND_OK);
        leave(client, &server);
    }
}

static atomic_bool is_awake;

/* Reads nothing meanwhile. */
static fake_action doze(fake_server *server, const msg_request *request, msg_reply *reply)
{
    for (int i = 0; i < 20000 && !atomic_load(&is_awake); i++)
        usleep(1000);
    return FAKE_REPLY;
}

static void a_request_nobody_reads_ends_in_time_and_the_connection_with_it(void **state)
{
    enum { BYTES = 8 << 20 };
    fake_server server;
    atomic_store(&is_awake, false);
    attnd_client *client = scripted(&server, doze);
    attnd_err err;
    assert_int_equal(attnd_ping(client, 50, &err), ATTND_DEADLINE_EXCEEDED);
    char *name = malloc(BYTES);
    memset(name, 'n', BYTES - 1);
    name[BYTES - 1] = 0;
    const attnd_model_spec spec = {.name = name};
    attnd_model model;
    int64_t begin = now_ms();
    assert_int_equal(attnd_open_model(client, &spec, 200, &model, NULL, &err),
                     ATTND_DEADLINE_EXCEEDED);
    assert_timed(begin, 200);
    assert_refusal(&err, ATTND_TIMED_OUT, "data = %s/data: attnd does not read", server.dir);
    free(name);
    atomic_store(&is_awake, true);
    pthread_mutex_lock(&server.lock);
    on_ping = fake_answer;
    pthread_mutex_unlock(&server.lock);
    assert_int_equal(attnd_ping(client, 5000, &err), ATTND_OK);
    assert_int_equal(fake_n_connections(&server), 2);
    assert_int_equal(fake_n_requests(&server, MSG_OP_open_model), 0);
    leave(client, &server);
}

static fake_action unknown_reason(fake_server *server, const msg_request *request, msg_reply *reply)
{
    attnd_fail(&reply->err, ATTND_BAD_MASK, "mask = 9: other");
    reply->err.reason = (attnd_reason)9999;
    return FAKE_REPLY;
}

static void a_reason_this_library_does_not_know_keeps_its_status(void **state)
{
    fake_server server;
    attnd_err err;
    attnd_client *client = ping_refused(&server, unknown_reason, &err);
    assert_string_equal(err.text, "mask = 9: other");
    assert_int_equal(err.status, ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_NO_REASON);
    leave(client, &server);
}

/* ---- Threads ---- */

static void *ping_often(void *client)
{
    size_t n_ok = 0;
    for (int i = 0; i < 100; i++)
        n_ok += attnd_ping(client, 0, NULL) == ATTND_OK;
    return (void *)n_ok;
}

static void threads_share_a_client(void **state)
{
    fake_server server = {0};
    attnd_client *client = connected(&server);
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ping_often, client), 0);
    for (int i = 0; i < 8; i++) {
        void *n_ok;
        pthread_join(threads[i], &n_ok);
        assert_int_equal((size_t)n_ok, 100);
    }
    assert_int_equal(fake_n_requests(&server, MSG_OP_ping), 800);
    leave(client, &server);
}

static void closing_nothing_does_nothing(void **state)
{
    attnd_close(NULL);
    assert_int_equal(attnd_free_buffer(NULL, 0, NULL), ATTND_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_is_opened_leased_and_ended),
        cmocka_unit_test(the_name_is_sent_and_may_be_missing),
        cmocka_unit_test(a_missing_socket_is_named),
        cmocka_unit_test(a_socket_nobody_listens_on_is_named),
        cmocka_unit_test(a_path_too_long_for_a_socket_is_named),
        cmocka_unit_test(a_socket_that_greets_nobody_is_left_in_time),
        cmocka_unit_test(a_hello_without_reply_ends_in_time),
        cmocka_unit_test(a_refusal_arrives_unchanged),
        cmocka_unit_test(a_hello_without_session_is_broken),
        cmocka_unit_test(without_a_lease_there_is_no_session),
        cmocka_unit_test(a_refused_lease_arrives_unchanged),
        cmocka_unit_test(a_lease_without_reply_ends_in_time),
        cmocka_unit_test(the_directory_is_looked_for_in_order),
        cmocka_unit_test(a_request_whose_connection_breaks_is_repeated_once_with_its_id),
        cmocka_unit_test(a_request_that_breaks_two_connections_is_not_sent_a_third_time),
        cmocka_unit_test(a_hello_is_not_repeated),
        cmocka_unit_test(a_reply_that_does_not_come_ends_in_time),
        cmocka_unit_test(a_dead_daemon_is_said_and_left_quickly),
        cmocka_unit_test(a_daemon_that_died_meanwhile_is_said_and_left_quickly),
        cmocka_unit_test(a_lease_that_broke_is_taken_again),
        cmocka_unit_test(a_session_that_ended_meanwhile_is_over),
        cmocka_unit_test(a_daemon_that_does_not_know_the_session_any_more_ends_it),
        cmocka_unit_test(a_daemon_that_does_not_listen_any_more_is_named),
        cmocka_unit_test(another_instance_is_noticed),
        cmocka_unit_test(replies_that_make_no_sense_are_broken),
        cmocka_unit_test(bytes_that_are_no_message_end_the_connection),
        cmocka_unit_test(replies_come_in_pieces_of_any_size),
        cmocka_unit_test(a_request_nobody_reads_ends_in_time_and_the_connection_with_it),
        cmocka_unit_test(a_reason_this_library_does_not_know_keeps_its_status),
        cmocka_unit_test(threads_share_a_client),
        cmocka_unit_test(closing_nothing_does_nothing),
    };
    return cmocka_run_group_tests_name("client_session", tests, NULL, NULL);
}
