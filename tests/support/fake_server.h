/* fake_server.h: a daemon for tests of the client: both sockets, answers by script, nng nowhere.
 *
 * One thread speaks the SP framing and the buffer socket's packets by hand. A test's answer()
 * decides what happens to each request; it and fd_answer() run on that thread, under lock.
 */
#ifndef ATTND_TESTS_SUPPORT_FAKE_SERVER_H
#define ATTND_TESTS_SUPPORT_FAKE_SERVER_H

#include <pthread.h>

#include "proto/message.h"

typedef enum fake_action {
    FAKE_REPLY,   /* what the reply says */
    FAKE_SILENT,  /* nothing, ever */
    FAKE_HOLD,    /* the reply, when the next request that is not held is answered: before it */
    FAKE_BREAK,   /* the connection is closed */
    FAKE_GARBAGE, /* a reply of bytes that do not decode */
    FAKE_JUNK,    /* bytes that are no message of SP */
    FAKE_DIE,     /* all connections are closed, and nobody listens any more */
} fake_action;

enum { FAKE_SESSION = 42, FAKE_INSTANCE = 7, FAKE_ORDINAL = 3, FAKE_MAX = 64 };

typedef struct fake_server fake_server;
typedef struct fake_frame fake_frame;

struct fake_server {
    /* Set before fake_open. NULL: fake_answer. */
    fake_action (*answer)(fake_server *server, const msg_request *request, msg_reply *reply);
    fake_action (*fd_answer)(fake_server *server, const msg_fd_request *request,
                             msg_fd_reply *reply);
    bool is_mute;         /* accepts on the data socket and greets nobody */
    bool is_unleased;     /* there is no buffer socket */
    unsigned n_extra_fds; /* descriptors beside the one that was asked for */
    size_t piece;         /* bytes of a reply sent at a time; 0: all */
    void *arg;            /* the test's */

    char dir[64]; /* of the sockets */

    pthread_mutex_t lock; /* guards what follows */
    unsigned n_requests[MSG_OP_END];
    unsigned n_connections, n_fd_requests;
    unsigned n_leases;      /* connections of the buffer socket now */
    uint64_t ids[FAKE_MAX]; /* of the requests, in order of arrival */
    unsigned n_ids;
    uint32_t last_timeout_ms;
    int memory; /* memfd of the last buffer, or -1 */
    uint64_t memory_bytes;
    bool is_dead;

    /* The thread's. */
    pthread_t thread;
    int wake[2];
    int listeners[2];
    struct fake_connection *connections;
    fake_frame *held;
    msg_arena arena;
};

/* Starts it in a fresh directory; *server is what the test set, else zero. */
void fake_open(fake_server *server);
void fake_close(fake_server *server);

/* Everything is granted. */
fake_action fake_answer(fake_server *server, const msg_request *request, msg_reply *reply);
fake_action fake_fd_answer(fake_server *server, const msg_fd_request *request, msg_fd_reply *reply);

/* So far: of one op, of the buffer socket, of the data socket. */
unsigned fake_n_requests(fake_server *server, msg_op op);
unsigned fake_n_fd_requests(fake_server *server);
unsigned fake_n_connections(fake_server *server);

/* The ids of the requests so far, in order of arrival; their number. */
unsigned fake_copy_ids(fake_server *server, uint64_t ids[FAKE_MAX]);

/* Waits until that many leases are held; false after two seconds. */
bool fake_wait_leases(fake_server *server, unsigned n);

/* Ends every connection of the buffer socket. */
void fake_end_leases(fake_server *server);

#endif
