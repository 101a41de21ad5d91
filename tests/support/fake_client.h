/* fake_client.h: a client of the fake daemon, and what tests say of what it is told.
 */
#ifndef ATTND_TESTS_SUPPORT_FAKE_CLIENT_H
#define ATTND_TESTS_SUPPORT_FAKE_CLIENT_H

#include "proto/client/attnd.h"
#include "tests/support/fake_server.h"

/* Starts the server, as the test has set it, and connects; the caller ends both. */
attnd_client *connected(fake_server *server);

/* A buffer of 4096 bytes. */
attnd_buffer *made_buffer(attnd_client *client);

/* Closes the client, then the server. */
void leave(attnd_client *client, fake_server *server);

/* The refusal has that reason, the status that goes with it, and that text. */
void assert_refusal(const attnd_err *err, attnd_reason reason, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Monotonic. */
int64_t now_ms(void);

/* What began then ends after timeout_ms, and not long after. */
void assert_timed(int64_t begin_ms, int64_t timeout_ms);

#endif
