/* client.h: what libattnd's files share. Not installed.
 *
 *     attend.c plan.c (parts.c) model.c buffer.c     structs of attnd.h → Request, Reply → structs
 *              │
 *     session.c                     the envelope: session, ids, statuses, the end of a session
 *              ├── buffer.c         the lease: connection to the buffer socket
 *              └── client.c         requests and replies on the data socket
 */
#ifndef ATTND_CLIENT_CLIENT_H
#define ATTND_CLIENT_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>

#include "attnd.pb-c.h"
#include "proto/client/attnd.h"

/* Milliseconds of CLOCK_MONOTONIC. Deadlines are such. */
int64_t cli_now_ms(void);

/* How long a connection that broke is tried anew: half of what the daemon lets a session linger, so
 * that the repeats come in time. */
enum { CLI_RECONNECT_MS = 1000 };

/* A condition that is waited for until a deadline; cli_cond_wait is false when that is reached. */
void cli_cond_init(pthread_cond_t *cond);
bool cli_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms);

/* Waits for events of poll(2), an end or an error; false at the deadline. */
bool cli_poll(int fd, short events, int64_t deadline_ms);

/* A moment, before what did not succeed is tried again: a daemon that begins anew listens again
 * soon. False, at once, when the time is up. */
bool cli_rest(int64_t until_ms);

/* A connected AF_UNIX socket that the caller closes; *out is -1 on refusal. Refuses UNREACHABLE and
 * TIMED_OUT with path as field's value, NO_ROOM. */
attnd_status cli_connect(const char *field, const char *path, int type, int64_t deadline_ms,
                         int *out, attnd_err *err);

/* ---- client.c: requests and replies ---- */

typedef struct cli_wire cli_wire;

/* Connects to the data socket. The caller closes *out; NULL on refusal. Refuses UNREACHABLE,
 * TIMED_OUT.
 */
attnd_status cli_wire_open(cli_wire **out, const char *path, int64_t deadline_ms, attnd_err *err);

/* Frees requests that nobody waited for as well. Accepts NULL. */
void cli_wire_close(cli_wire *wire);

/* Sends request; its reply is received once. Borrows request for the call. may_repeat: when its
 * connection breaks before the reply, it is sent once more over the next. client is what
 * cli_pending_client() gives back. *out is NULL on refusal. Refuses UNREACHABLE, TIMED_OUT. */
attnd_status cli_wire_send(cli_wire *wire, attnd_client *client, const Attnd__V1__Request *request,
                           bool may_repeat, int64_t deadline_ms, attnd_pending **out,
                           attnd_err *err);

/* Waits for the reply until the request's deadline and gives pending back in any case. The caller
 * frees *out. Refuses RESTARTED, TIMED_OUT, BROKEN. */
attnd_status cli_wire_receive(attnd_pending *pending, Attnd__V1__Reply **out, attnd_err *err);

attnd_client *cli_pending_client(const attnd_pending *pending);
uint32_t cli_pending_op(const attnd_pending *pending); /* its number in the oneof */
int64_t cli_pending_deadline_ms(const attnd_pending *pending);

/* ---- buffer.c: the lease ---- */

/* Owner: any thread. fd stays the same number as long as the client: a lease that must not go on is
 * shut down instead, and a new connection takes its number over. */
typedef struct cli_lease {
    int fd; /* -1: none yet */
    const char *path;
    pthread_mutex_t lock; /* guards is_busy; no other lock is taken under it */
    pthread_cond_t idle;
    bool is_busy; /* an exchange is on: there is one at a time */
} cli_lease;

void cli_lease_init(cli_lease *lease);

/* Closes the connection. */
void cli_lease_fini(cli_lease *lease);

/* Connects to the buffer socket at path (borrowed until closed) and names the session. Refuses
 * UNREACHABLE, TIMED_OUT and what the daemon refuses. */
attnd_status cli_lease_open(cli_lease *lease, const char *path, uint64_t session,
                            int64_t deadline_ms, attnd_err *err);

/* Has the daemon closed the connection, or this side shut it down? False before it is open. */
bool cli_lease_is_gone(const cli_lease *lease);

/* Takes the lease again if it is gone, for as long as CLI_RECONNECT_MS. Refuses RESTARTED,
 * TIMED_OUT and what the daemon refuses: UNREGISTERED when the session has ended. */
attnd_status cli_lease_hold(cli_lease *lease, uint64_t session, int64_t deadline_ms,
                            attnd_err *err);

/* Unmaps and frees the buffers of a client that closes. */
void cli_buffers_close(attnd_client *client);

/* ---- session.c: the envelope ---- */

struct attnd_client {
    char *data_path, *buf_path;
    uint32_t timeout_ms;
    uint64_t session;
    attnd_info info;
    Attnd__V1__Reply *hello; /* info's strings lie here */
    attnd_named_model *models;
    cli_wire *wire;
    cli_lease lease;
    atomic_uint_fast64_t last_id;
    atomic_bool is_over;          /* the session has ended without us */
    pthread_mutex_t buffers_lock; /* guards the list; no other lock is taken under it */
    attnd_buffer *buffers;
};

/* When a call that gives timeout_ms must be over. */
int64_t cli_deadline_ms(const attnd_client *client, uint32_t timeout_ms);

/* Takes the lease again if it is gone. Refuses RESTARTED when the session is over. */
attnd_status cli_hold(attnd_client *client, int64_t deadline_ms, attnd_err *err);

/* Fills the request's envelope and sends it. Borrows request for the call. */
attnd_status cli_start(attnd_client *client, Attnd__V1__Request *request, int64_t deadline_ms,
                       attnd_pending **out, attnd_err *err);

/* Waits for the reply and gives pending back in any case. Refuses what the reply's status says;
 * else *out holds the result of the request's op and the caller frees it. */
attnd_status cli_finish(attnd_pending *pending, Attnd__V1__Reply **out, attnd_err *err);

/* Both. */
attnd_status cli_call(attnd_client *client, Attnd__V1__Request *request, int64_t deadline_ms,
                      Attnd__V1__Reply **out, attnd_err *err);

/* Copies a refusal to the caller's err, which may be NULL, and returns its status. */
attnd_status cli_hand_on(const attnd_err *why, attnd_err *err);

/* The refusal a status carries, OK if it carries none; NULL is BROKEN. */
attnd_status cli_refusal(const Attnd__V1__Status *status, attnd_err *err);

#endif
