/* store.h: named file descriptors that outlive the engine, kept by the keeper.
 *
 * Three verbs, those of systemd's store: put, get all, drop. A seqpacket pair joins the two
 * processes; descriptors go beside the packets. Names are at most SRV_STORE_NAME-1 bytes,
 * printable, unique: a put of a name that is there replaces it.
 */
#ifndef ATTND_DAEMON_STORE_H
#define ATTND_DAEMON_STORE_H

#include <stdbool.h>

#include "proto/err.h"

enum { SRV_STORE_NAME = 96 };

/* What the engine tells the keeper. */
typedef enum srv_news {
    SRV_NEWS_READY,     /* its sockets listen */
    SRV_NEWS_RELOADING, /* it is about to read its config again */
    SRV_NEWS_RELOADED,  /* what it read is in force, or was refused */
} srv_news;

/* ---- The engine's side. From any thread; one exchange at a time. ---- */

typedef struct srv_store srv_store;

/* Takes the socket (closed by srv_store_close). */
attnd_status srv_store_open(srv_store **out, int socket, attnd_err *err);
void srv_store_close(srv_store *store);

/* Returns when the keeper holds a duplicate of fd. Refuses NO_ROOM (the store is full), UNREACHABLE
 * (the keeper is gone). */
attnd_status srv_store_put(srv_store *store, const char *name, int fd, attnd_err *err);

/* Forgets a name; OK when there is none. Refuses UNREACHABLE. */
attnd_status srv_store_drop(srv_store *store, const char *name, attnd_err *err);

/* Calls each for every descriptor kept; each owns fd and asks nothing of the store. Refuses
 * UNREACHABLE, and NO_ROOM when this process may open no more files. */
attnd_status srv_store_get_all(srv_store *store, void (*each)(void *arg, const char *name, int fd),
                               void *arg, attnd_err *err);

/* Returns when the keeper has heard it. Refuses UNREACHABLE. */
attnd_status srv_store_tell(srv_store *store, srv_news news, attnd_err *err);

/* ---- The keeper's side. ---- */

typedef struct srv_shelf srv_shelf;

attnd_status srv_shelf_open(srv_shelf **out, attnd_err *err);
void srv_shelf_close(srv_shelf *shelf);

/* Drops everything. */
void srv_shelf_clear(srv_shelf *shelf);
size_t srv_shelf_count(const srv_shelf *shelf);

/* Answers one packet of the engine's; false at end of file. hear is called for news, before the
 * engine has its answer. */
bool srv_shelf_answer(srv_shelf *shelf, int socket, void (*hear)(void *arg, srv_news news),
                      void *arg);

#endif
