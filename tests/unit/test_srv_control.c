/* test_srv_control.c: a line in, a line out: envelopes, lines and clients that behave badly,
 * against a control socket on a real loop and an engine that is played.
 */
#include "tests/support/control.h"

/* ---- Envelopes ---- */

static void an_id_comes_back_as_it_was(void **state)
{
    fixture *f = *state;
    static const char *const ids[] = {
        "1",    "0",   "-7", "9007199254740992", "-9007199254740992", "\"a\\u00e9\\\"b\"",
        "\"\"", "null"};
    static const char *const back[] = {
        "1", "0", "-7", "9007199254740992", "-9007199254740992", "\"aé\\\"b\"", "\"\"", "null"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char line[256], wanted[256];
        snprintf(line, sizeof line, PING("%s"), ids[i]);
        snprintf(wanted, sizeof wanted, PONG("%s"), back[i]);
        assert_string_equal(ask(f, line), wanted);
    }
}

static void a_line_that_is_no_request_is_told_so(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *line, *field, *text;
        int code;
    } cases[] = {
        {"{", "line", "line = 1 bytes: not JSON from byte 0 on", -32700},
        {"{} x", "line", "line = 4 bytes: not JSON from byte 3 on", -32700},
        {"{\"a\":\"\\u0000\"}", "line",
         "line = 14 bytes: not UTF-8, or a zero character stands in it", -32700},
        {"\"\xff\"", "line", "line = 3 bytes: not UTF-8, or a zero character stands in it", -32700},
        {"\"\xed\xa0\x80\"", "line", "line = 5 bytes: not UTF-8, or a zero character stands in it",
         -32700},
        {"[]", "batch", "batch = 0 calls: 1..64", -32600},
        {"7", "request", "request = 7: an object", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"server.ping\",\"parms\":{}}", "parms",
         "parms = given: a request has jsonrpc, id, method, params", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"server.ping\"}", "id",
         "id = given twice: a request has jsonrpc, id, method, params", -32600},
        {"{\"id\":1,\"method\":\"server.ping\"}", "jsonrpc", "jsonrpc = absent: \"2.0\"", -32600},
        {"{\"jsonrpc\":\"1.0\",\"method\":\"server.ping\"}", "jsonrpc", "jsonrpc = other: \"2.0\"",
         -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1}", "method", "method = absent: a string", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}", "method", "method = other: a string",
         -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"server.ping\",\"params\":7}", "params",
         "params = other: an object", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"server.ping\"}", "id",
         "id = 1.5: a string, null or a whole number between -2^53 and 2^53", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"server.ping\"}", "id",
         "id = [1]: a string, null or a whole number between -2^53 and 2^53", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"server.ping\",\"params\":[1]}", "params",
         "params = an array: an object, by name", -32602},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(f, cases[i].line, cases[i].code, "INVALID_ARGUMENT", "BAD_MESSAGE",
                       cases[i].field, cases[i].text);
}

static void an_unknown_method_is_answered_with_the_nearest(void **state)
{
    assert_refused(*state, CALL("server.pingg", "{}"), -32601, "UNIMPLEMENTED", "UNSUPPORTED",
                   "method",
                   "method = server.pingg: there is none of this name; the nearest is server.ping");
    assert_refused(*state, CALL("Stats.get", "{}"), -32601, "UNIMPLEMENTED", "UNSUPPORTED",
                   "method",
                   "method = Stats.get: there is none of this name; the nearest is stats.get");
}

static void parameters_are_strict(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *line, *field, *text;
    } cases[] = {
        {CALL("server.ping", "{\"x\":1}"), "params.x",
         "params.x = given: server.ping takes no parameters"},
        {CALL("log.level", "{\"levle\":\"info\"}"), "params.levle",
         "params.levle = given: log.level takes none of this name; the nearest is level"},
        {CALL("log.level", "{\"level\":\"info\",\"level\":\"debug\"}"), "params.level",
         "params.level = given twice: once is right"},
        {CALL("log.level", "{\"level\":7}"), "params.level", "params.level = 7: a string"},
        {CALL("log.level", "{\"level\":\"loud\"}"), "params.level",
         "params.level = loud: error, warn, info or debug"},
        {CALL("config.get", "{\"key\":\"log.leval\"}"), "params.key",
         "params.key = log.leval: no such key; the nearest is log.level"},
        {CALL("kernels.explain", "{\"model\":\"12x\"}"), "params.model",
         "params.model = \"12x\": a 64-bit number as a string of digits"},
        {CALL("kernels.explain", "{\"model\":\"18446744073709551616\"}"), "params.model",
         "params.model = \"18446744073709551616\": a 64-bit number as a string of digits"},
        {CALL("kernels.explain", "{\"layer\":2147483648}"), "params.layer",
         "params.layer = 2147483648: a whole number, 0 .. 2147483647"},
        {CALL("kernels.explain", "{\"layer\":-1}"), "params.layer",
         "params.layer = -1: a whole number, 0 .. 2147483647"},
        {CALL("kernels.explain", "{\"q_lens\":3}"), "params.q_lens",
         "params.q_lens = 3: an array of whole numbers, 0 .. 2147483647"},
        {CALL("kernels.explain", "{\"q_lens\":[1,null]}"), "params.q_lens[1]",
         "params.q_lens[1] = null: a whole number, 0 .. 2147483647"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(f, cases[i].line, -32602, "INVALID_ARGUMENT", "BAD_MESSAGE", cases[i].field,
                       cases[i].text);
    assert_int_equal(srv_log_level(), SRV_ERROR);
}

static void a_text_that_is_cut_stays_utf8(void **state)
{
    /* The 48th byte falls into the two bytes of an e with an accent. */
    assert_string_equal(
        ask(*state, CALL("log.level", "{\"level\":\"12345678901234567890123456789012345678901234567"
                                      "éé\"}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32602,\"message\":\"params.level = "
        "12345678901234567890123456789012345678901234567?: error, warn, info or debug\",\"data\":{"
        "\"code\":\"INVALID_ARGUMENT\",\"reason\":\"BAD_MESSAGE\",\"field\":\"params.level\","
        "\"hint\":\"error, warn, info or debug\"}}}");
}

static void a_batch_is_answered_in_one_line_without_its_notifications(void **state)
{
    fixture *f = *state;
    assert_string_equal(
        ask(f, "[" PING("1") ",{\"jsonrpc\":\"2.0\",\"method\":\"server.ping\"},"
                             "{\"jsonrpc\":\"2.0\",\"id\":\"l\",\"method\":"
                             "\"buffers.list\"}," PING("2") ",7]"),
        "[" PONG("1") ",{\"jsonrpc\":\"2.0\",\"id\":\"l\",\"result\":{\"buffers\":"
                      "[{\"buffer\":\"12\",\"session\":7,\"bytes\":\"4096\","
                      "\"n_in_use\":1,\"freed\":true}]}}," PONG(
                          "2") ",{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,"
                               "\"message\":\"request = 7: an object\",\"data\":{\"code\":"
                               "\"INVALID_ARGUMENT\",\"reason\":\"BAD_MESSAGE\",\"field\":"
                               "\"request\",\"hint\":\"an object\"}}}]");
    char line[65 * 3 + 2] = "[";
    for (int i = 0; i < 65; i++)
        strcat(line, i ? ",{}" : "{}");
    strcat(line, "]");
    assert_refused(f, line, -32600, "INVALID_ARGUMENT", "BAD_MESSAGE", "batch",
                   "batch = 65 calls: 1..64");
}

static void a_notification_is_carried_out_and_not_answered(void **state)
{
    fixture *f = *state;
    int fd = dial(f);
    say(fd, "{\"jsonrpc\":\"2.0\",\"method\":\"log.level\",\"params\":{\"level\":\"debug\"}}\n"
            "{\"jsonrpc\":\"2.0\",\"method\":\"no.such\"}\n"
            "{\"jsonrpc\":\"2.0\",\"method\":\"pools.list\"}\n"
            "[{\"jsonrpc\":\"2.0\",\"method\":\"server.ping\"}]\n"
            "  \n\r\n" PING("9") "\r\n");
    assert_string_equal(hear(fd), PONG("9"));
    assert_int_equal(srv_log_level(), SRV_DEBUG);
    assert_int_equal(f->n_filled, 1);
    close(fd);
}

/* ---- Lines ---- */

static void answers_come_in_order_however_the_bytes_arrive(void **state)
{
    fixture *f = *state;
    int fd = dial(f);
    const char *text = PING("1") "\n" PING("2") "\n";
    for (const char *s = text; *s; s++)
        assert_int_equal(send(fd, s, 1, MSG_NOSIGNAL), 1);
    say(fd, PING("3") "\n" CALL("models.list", "{}") "\n" PING("4") "\n");
    assert_string_equal(hear(fd), PONG("1"));
    assert_string_equal(hear(fd), PONG("2"));
    assert_string_equal(hear(fd), PONG("3"));
    assert_non_null(strstr(hear(fd), "\"models\""));
    assert_string_equal(hear(fd), PONG("4"));
    close(fd);
}

static void a_peer_that_has_ended_its_side_still_gets_its_answers(void **state)
{
    fixture *f = *state;
    int fd = dial(f);
    say(fd, CALL("pools.list", "{}") "\n" PING("2")); /* the last line has no newline */
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    assert_non_null(strstr(hear(fd), "\"pools\""));
    assert_string_equal(hear(fd), PONG("2"));
    assert_string_equal(hear(fd), "");
    close(fd);
}

static void a_line_of_a_mebibyte_is_read_and_a_longer_one_is_refused_once(void **state)
{
    fixture *f = *state;
    int fd = dial(f);
    char *line = malloc(3 * LINE + 1);
    size_t n = strlen(PING("1"));
    memset(line, ' ', LINE);
    memcpy(line + LINE - n, PING("1"), n);
    line[LINE] = '\n';
    line[LINE + 1] = '\0';
    say(fd, line);
    assert_string_equal(hear(fd), PONG("1"));
    memset(line, 'x', 3 * LINE);
    line[3 * LINE] = '\0';
    say(fd, line);
    say(fd, "\n" PING("2") "\n");
    assert_string_equal(
        hear(fd), "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":"
                  "\"line = more than 1048576 bytes: a message has at most that many\","
                  "\"data\":{\"code\":\"INVALID_ARGUMENT\",\"reason\":\"TOO_LARGE\",\"field\":"
                  "\"line\",\"hint\":\"a message has at most that many\"}}}");
    assert_string_equal(hear(fd), PONG("2"));
    close(fd);
    free(line);
}

/* ---- Clients that behave badly ---- */

/* Whether a client that was let in still is. */
static bool is_served(int fd)
{
    ssize_t n = send(fd, PING("2") "\n", strlen(PING("2") "\n"), MSG_NOSIGNAL);
    return n > 0 && strcmp(hear(fd), PONG("2")) == 0;
}

static void assert_told(int fd, const char *what)
{
    const char *line = hear(fd);
    if (!strstr(line, what))
        fail_msg("%s\nis not in %s", what, line);
    assert_string_equal(hear(fd), "");
}

static void silent_clients_shut_nobody_out(void **state)
{
    fixture *f = *state;
    enum { N_SILENT = 64, N_ASKED = 20 };
    int silent[N_SILENT], asked[N_ASKED];
    for (int i = 0; i < N_ASKED; i++) {
        asked[i] = dial(f);
        say(asked[i], PING("1") "\n");
        assert_string_equal(hear(asked[i]), PONG("1"));
    }
    for (int i = 0; i < N_SILENT; i++) {
        silent[i] = dial(f);
        say(silent[i], i % 2 ? "{" : "\n\n");
    }
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    /* Who has asked stays, however long ago it was; the oldest of the others went. */
    for (int i = 0; i < N_ASKED; i++)
        assert_true(is_served(asked[i]));
    assert_told(silent[0],
                "\"clients = 64: the most at once; of them this one was idle for longest");
    say(silent[N_SILENT - 2], PING("2") "\n");
    assert_string_equal(hear(silent[N_SILENT - 2]), PONG("2"));
    assert_int_equal(srv_stats_counter(SRV_COUNT_connections_displaced), N_ASKED + 1);
    assert_int_equal(srv_stats_counter(SRV_COUNT_connections_refused), 0);
    for (int i = 0; i < N_SILENT; i++)
        close(silent[i]);
    for (int i = 0; i < N_ASKED; i++)
        close(asked[i]);
}

static void among_idle_clients_the_longest_idle_makes_room(void **state)
{
    fixture *f = *state;
    int fds[64];
    for (int i = 0; i < 64; i++) {
        fds[i] = dial(f);
        say(fds[i], PING("1") "\n");
        assert_string_equal(hear(fds[i]), PONG("1"));
    }
    usleep(5000);
    assert_true(is_served(fds[0]));
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    assert_told(fds[1], "idle for longest");
    for (int i = 0; i < 64; i++) {
        assert_true(i == 1 || is_served(fds[i]));
        close(fds[i]);
    }
}

static void one_too_many_is_told_so_while_all_others_are_at_work(void **state)
{
    fixture *f = *state;
    int fds[64];
    f->engine_is_silent = true;
    for (int i = 0; i < 64; i++) {
        fds[i] = dial(f);
        say(fds[i], CALL("pools.list", "{}") "\n");
    }
    for (int i = 0; i < 20; i++) {
        int fd = dial(f);
        assert_string_equal(
            hear(fd), "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":"
                      "\"clients = 64: the most at once, and all are at work\",\"data\":{\"code\":"
                      "\"RESOURCE_EXHAUSTED\",\"reason\":\"NO_ROOM\",\"field\":\"clients\","
                      "\"hint\":\"the most at once, and all are at work\"}}}");
        assert_string_equal(hear(fd), "");
        close(fd);
    }
    assert_int_equal(srv_stats_counter(SRV_COUNT_connections_refused), 20);
    f->engine_is_silent = false;
    for (int i = 0; i < 64; i++) {
        assert_non_null(strstr(hear(fds[i]), "\"main\""));
        close(fds[i]);
    }
}

/* 64 clients that read none of their replies are given up for one that does, after a second. */
static void who_does_not_read_makes_room_too(void **state)
{
    fixture *f = *state;
    int fds[64];
    char line[64 * 64 + 8] = "[";
    for (int i = 0; i < 64; i++)
        strcat(line, i ? ",{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"rpc.discover\"}"
                       : "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"rpc.discover\"}");
    strcat(line, "]\n");
    for (int i = 0; i < 64; i++) {
        fds[i] = dial(f);
        say(fds[i], line);
    }
    const char *answer = "";
    for (int i = 0; i < 300 && strcmp(answer, PONG("1")) != 0; i++) {
        usleep(10000);
        int fd = dial(f);
        if (send(fd, PING("1") "\n", strlen(PING("1") "\n"), MSG_NOSIGNAL) > 0)
            answer = hear(fd);
        close(fd);
    }
    assert_string_equal(answer, PONG("1"));
    for (int i = 0; i < 64; i++)
        close(fds[i]);
}

static void who_waits_for_the_end_keeps_its_place(void **state)
{
    fixture *f = *state;
    int waits = dial(f), fds[64];
    say(waits, CALL("server.drain", "{}") "\n");
    assert_non_null(strstr(hear(waits), "\"result\""));
    usleep(5000);
    for (int i = 0; i < 64; i++) {
        fds[i] = dial(f);
        say(fds[i], PING("2") "\n");
        assert_string_equal(hear(fds[i]), PONG("2"));
    }
    assert_true(is_served(waits));
    close(waits);
    for (int i = 0; i < 64; i++)
        close(fds[i]);
}

static int short_timeout(void **state)
{
    fixture *f = *state = open_fixture();
    f->config.data_send_timeout = 100;
    serve(f);
    return 0;
}

static void who_does_not_read_is_hung_up_on_and_holds_up_nobody(void **state)
{
    fixture *f = *state;
    int fd = dial(f), n_written = 0;
    char line[64 * 64 + 8] = "[";
    for (int i = 0; i < 64; i++)
        strcat(line, i ? ",{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"rpc.discover\"}"
                       : "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"rpc.discover\"}");
    strcat(line, "]\n");
    /* Its lines are taken only as its answers leave: soon there is no room to send another. */
    while (n_written < 1000 && send(fd, line, strlen(line), MSG_NOSIGNAL) == (ssize_t)strlen(line))
        n_written++;
    assert_true(n_written < 1000);
    assert_true(errno == EPIPE || errno == ECONNRESET);
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    close(fd);
}

static void a_client_that_leaves_while_the_engine_works_harms_nothing(void **state)
{
    fixture *f = *state;
    f->engine_is_silent = true;
    for (int i = 0; i < 20; i++) {
        int fd = dial(f);
        say(fd, CALL("sessions.list", "{}") "\n" PING("1") "\n");
        close(fd);
    }
    usleep(20000);
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    f->engine_is_silent = false;
    assert_non_null(strstr(ask(f, CALL("sessions.list", "{}")), "\"bench\""));
}

static void a_silent_engine_is_said_so_and_the_socket_answers_on(void **state)
{
    fixture *f = *state;
    f->engine_is_silent = true;
    int fd = dial(f);
    say(fd, CALL("pools.list", "{}") "\n");
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    assert_string_equal(hear(fd),
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32000,\"message\":"
                        "\"engine = silent: no answer in 2000 ms; it is held up\",\"data\":{"
                        "\"code\":\"DEADLINE_EXCEEDED\",\"reason\":\"TIMED_OUT\",\"field\":"
                        "\"engine\",\"hint\":\"no answer in 2000 ms; it is held up\"}}}");
    say(fd, PING("2") "\n");
    assert_string_equal(hear(fd), PONG("2"));
    f->engine_is_silent = false; /* the late answer finds nobody */
    say(fd, CALL("pools.list", "{}") "\n");
    assert_non_null(strstr(hear(fd), "\"main\""));
    close(fd);
}

static void an_engine_without_memory_is_said_so(void **state)
{
    fixture *f = *state;
    f->fill_status = ATTND_RESOURCE_EXHAUSTED;
    assert_refused(f, CALL("pools.list", "{}"), -32000, "RESOURCE_EXHAUSTED", "NO_ROOM", "snapshot",
                   "snapshot = too large: no memory");
}

static void another_user_is_hung_up_on(void **state)
{
    fixture *f = *state;
    int status;
    if (geteuid() != 0) {
        print_message("# only root can become another user\n");
        skip();
    }
    /* The mode would keep him out already: it is opened to see the second door. */
    assert_int_equal(chmod(f->dir, 0711), 0);
    assert_int_equal(chmod(f->path, 0666), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        if (setresuid(65534, 65534, 65534) < 0)
            _exit(2);
        int fd = dial(f);
        send(fd, PING("1") "\n", strlen(PING("1") "\n"), MSG_NOSIGNAL);
        _exit(recv(fd, &byte, 1, 0) > 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(srv_stats_counter(SRV_COUNT_connections_refused), 1);
    assert_string_equal(ask(f, PING("1")), PONG("1"));
}
/* ---- The socket ---- */

static void the_socket_is_the_users_own_and_replaces_a_stale_one(void **state)
{
    fixture *f = open_fixture();
    attnd_err err;
    struct stat st;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    strcpy(address.sun_path, f->path);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    assert_int_equal(srv_control_open(&f->control, &f->loop, f->path, &f->deps, &err), ATTND_OK);
    assert_int_equal(stat(f->path, &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(pthread_create(&f->engine_thread, NULL, engine_main, f), 0);
    assert_int_equal(pthread_create(&f->loop_thread, NULL, loop_main, &f->loop), 0);
    *state = f;
    teardown(state);
}

static void a_path_that_cannot_be_bound_is_refused(void **state)
{
    fixture *f = open_fixture();
    attnd_err err;
    char path[256], wanted[512];
    snprintf(path, sizeof path, "%s/%0100d", f->dir, 0);
    snprintf(wanted, sizeof wanted, "socket = %s: a socket's path has at most 107 bytes", path);
    assert_int_equal(srv_control_open(&f->control, &f->loop, path, &f->deps, &err),
                     ATTND_UNAVAILABLE);
    assert_null(f->control);
    assert_int_equal(err.reason, ATTND_UNREACHABLE);
    assert_string_equal(err.text, wanted);
    snprintf(wanted, sizeof wanted, "socket = %s: is there and is no socket; it is left alone",
             f->path);
    int fd = open(f->path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    close(fd);
    assert_int_equal(srv_control_open(&f->control, &f->loop, f->path, &f->deps, &err),
                     ATTND_UNAVAILABLE);
    assert_null(f->control);
    assert_string_equal(err.text, wanted);
    assert_int_equal(unlink(f->path), 0);
    snprintf(path, sizeof path, "%s/none/control", f->dir);
    snprintf(wanted, sizeof wanted, "socket = %s: No such file or directory", path);
    assert_int_equal(srv_control_open(&f->control, &f->loop, path, &f->deps, &err),
                     ATTND_UNAVAILABLE);
    assert_null(f->control);
    assert_string_equal(err.text, wanted);
    uv_close((uv_handle_t *)&f->stop, NULL);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    srv_control_close(NULL);
    srv_queue_fini(&f->queue);
    ker_device_close(f->device);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVED(an_id_comes_back_as_it_was),
        SERVED(a_line_that_is_no_request_is_told_so),
        SERVED(an_unknown_method_is_answered_with_the_nearest),
        SERVED(parameters_are_strict),
        SERVED(a_text_that_is_cut_stays_utf8),
        SERVED(a_batch_is_answered_in_one_line_without_its_notifications),
        SERVED(a_notification_is_carried_out_and_not_answered),
        SERVED(answers_come_in_order_however_the_bytes_arrive),
        SERVED(a_peer_that_has_ended_its_side_still_gets_its_answers),
        SERVED(a_line_of_a_mebibyte_is_read_and_a_longer_one_is_refused_once),
        SERVED(silent_clients_shut_nobody_out),
        SERVED(among_idle_clients_the_longest_idle_makes_room),
        SERVED(one_too_many_is_told_so_while_all_others_are_at_work),
        SERVED(who_does_not_read_makes_room_too),
        SERVED(who_waits_for_the_end_keeps_its_place),
        cmocka_unit_test_setup_teardown(who_does_not_read_is_hung_up_on_and_holds_up_nobody,
                                        short_timeout, teardown),
        SERVED(a_client_that_leaves_while_the_engine_works_harms_nothing),
        SERVED(a_silent_engine_is_said_so_and_the_socket_answers_on),
        SERVED(an_engine_without_memory_is_said_so),
        SERVED(another_user_is_hung_up_on),
        cmocka_unit_test(the_socket_is_the_users_own_and_replaces_a_stale_one),
        cmocka_unit_test(a_path_that_cannot_be_bound_is_refused),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("srv_control", tests, NULL, NULL);
}
