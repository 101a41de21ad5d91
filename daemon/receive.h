/* receive.h: the data socket: bytes in and out, in nng's framing (proto/protocol.md).
 *
 * A slot is one request from receipt to reply, so the number of slots bounds what is in flight. One
 * transport thread receives and decodes, nothing else. A connection that does not read its replies,
 * or sends more than there are slots for, is not read until it has caught up: it holds up nobody
 * but itself. At most 4096 connections (fewer where the process may have few descriptors). One more
 * is let in for one that has asked nothing; when all have, its requests are refused NO_ROOM.
 */
#ifndef ATTND_DAEMON_RECEIVE_H
#define ATTND_DAEMON_RECEIVE_H

#include "daemon/engine.h"

typedef struct srv_receive srv_receive;

/* Makes the slots and starts the thread. Borrows engine until closed. Refuses NO_ROOM. */
attnd_status srv_receive_open(srv_receive **out, srv_engine *engine, attnd_err *err);

/* Listens on path (0600, only this uid and root), once. Refuses UNREACHABLE. */
attnd_status srv_receive_listen(srv_receive *receive, const char *path, attnd_err *err);

/* Takes no more requests, waits until those there are have their replies and these are sent (at
 * most timeout_ms), and closes. Accepts NULL. */
void srv_receive_close(srv_receive *receive, int timeout_ms);

/* srv_transport.is_connected. */
bool srv_receive_is_connected(void *receive, uint32_t connection);

#endif
