/* stale.h: what a daemon that died left in the runtime directory. Whoever calls holds the lock. */
#ifndef ATTND_DAEMON_STALE_H
#define ATTND_DAEMON_STALE_H

#include "proto/err.h"

/* Removes a socket at path; nothing there is fine. Anything else stays: UNREACHABLE. */
attnd_status srv_stale_remove(const char *path, attnd_err *err);

#endif
