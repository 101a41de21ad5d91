/* fds.h: the buffer socket: descriptors out, a connection is a lease. On the loop thread.
 *
 * AF_UNIX seqpacket, one FdRequest and one FdReply a packet, the descriptor beside the reply. At
 * most 1024 connections (fewer where the process may have few descriptors). One more is let in for
 * one that has named no session; when all are leases, its first packet is answered NO_ROOM.
 */
#ifndef ATTND_DAEMON_FDS_H
#define ATTND_DAEMON_FDS_H

#include <uv.h>

#include "daemon/engine.h"

typedef struct srv_fds srv_fds;

/* Listens on path (0600; peers of another uid are refused). Refuses UNREACHABLE. */
attnd_status srv_fds_open(srv_fds **out, uv_loop_t *loop, const char *path, srv_engine *engine,
                          attnd_err *err);

/* Closes the handles; frees itself once the loop has run their close callbacks and the engine
 * thread has answered what it was asked. The engine must still run. Accepts NULL. */
void srv_fds_close(srv_fds *fds);

#endif
