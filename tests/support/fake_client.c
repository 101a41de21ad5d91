/* fake_client.c: a client of the fake daemon. */
#include "tests/support/fake_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <time.h>

attnd_client *connected(fake_server *server)
{
    attnd_client *client;
    attnd_err err = {0};
    fake_open(server);
    attnd_status status = attnd_connect(&client, server->dir, "test", 5000, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, ATTND_OK);
    return client;
}

attnd_buffer *made_buffer(attnd_client *client)
{
    attnd_buffer *buffer;
    assert_int_equal(attnd_create_buffer(client, 4096, 0, &buffer, NULL), ATTND_OK);
    return buffer;
}

void leave(attnd_client *client, fake_server *server)
{
    attnd_close(client);
    fake_close(server);
}

void assert_refusal(const attnd_err *err, attnd_reason reason, const char *fmt, ...)
{
    char text[ATTND_ERR_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    assert_string_equal(err->text, text);
    assert_int_equal(err->reason, reason);
    assert_int_equal(err->status, attnd_reason_status(reason));
}

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void assert_timed(int64_t begin_ms, int64_t timeout_ms)
{
    int64_t took_ms = now_ms() - begin_ms;
    assert_true(took_ms >= timeout_ms - 10 && took_ms < timeout_ms + 1200);
}
