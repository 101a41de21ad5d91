/* socket.h: the unix sockets of the runtime directory: made the user's own, open to him and root.
 *
 * Whoever calls holds the directory's lock.
 */
#ifndef ATTND_DAEMON_SOCKET_H
#define ATTND_DAEMON_SOCKET_H

#include <stdbool.h>

#include "proto/err.h"

/* Listens at path with mode 0600, close-on-exec and non-blocking; type: SOCK_STREAM or
 * SOCK_SEQPACKET. A socket there already is a dead daemon's and is replaced. The caller closes *out
 * and unlinks path. Refuses UNREACHABLE: a path too long, a file there that is no socket, errno's
 * text. */
attnd_status srv_socket_listen(int *out, int type, const char *path, attnd_err *err);

/* Removes a socket at path; nothing there is fine. Anything else stays: UNREACHABLE. */
attnd_status srv_socket_remove(const char *path, attnd_err *err);

/* Whether the peer of a connection is this user or root; any other is logged and counted. */
bool srv_socket_is_ours(int fd);

/* Takes a connection that waits, close-on-exec and non-blocking; -1: there is none, or it was not
 * let in. A process without a descriptor left hangs up on it, so that a poll is not woken for it
 * for ever: with *spare, a descriptor kept for that (-1 at first; the caller closes it). */
int srv_socket_accept(int listener, int *spare);

/* What a socket may have of connections: most, or less where the process may have few descriptors,
 * a share-th of which is left to it. */
int64_t srv_socket_room(int64_t most, int64_t share);

/* Whether bytes of the peer wait to be read. */
bool srv_socket_has_unread(int fd);

#endif
