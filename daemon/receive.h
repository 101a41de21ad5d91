/* receive.h: the data socket: bytes in and out. Every line of nng on the daemon's side is in
 * receive.c.
 *
 * One REP context is one request from receipt to reply, so the number of contexts bounds what is in
 * flight. Transport threads receive and decode, nothing else.
 */
#ifndef ATTND_DAEMON_RECEIVE_H
#define ATTND_DAEMON_RECEIVE_H

#include "daemon/engine.h"

typedef struct srv_receive srv_receive;

/* Makes the contexts. Borrows engine until closed. Refuses NO_ROOM, BROKEN. */
attnd_status srv_receive_open(srv_receive **out, srv_engine *engine, attnd_err *err);

/* Listens on path (0600, only this uid and root). Refuses UNREACHABLE. */
attnd_status srv_receive_listen(srv_receive *receive, const char *path, attnd_err *err);

/* Closes the listener and listens anew on the same path; connections made before go on. */
attnd_status srv_receive_relisten(srv_receive *receive, attnd_err *err);

/* Stops accepting, waits until replies handed over are sent (at most timeout_ms) and closes; the
 * engine's thread must have stopped, or be answering nothing any more. */
void srv_receive_close(srv_receive *receive, int timeout_ms);

/* srv_transport.is_connected. */
bool srv_receive_is_connected(void *receive, uint32_t connection);

#endif
