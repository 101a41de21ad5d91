/* watchdog.h: pings the daemon's own data socket and has it opened anew when the ping fails.
 *
 * An nng 1.5.2 ipc listener stops for good, without a sign, when a peer connects and closes at
 * once; only a whole exchange over a fresh connection shows it.
 */
#ifndef ATTND_DAEMON_WATCHDOG_H
#define ATTND_DAEMON_WATCHDOG_H

#include "proto/err.h"

typedef struct srv_watchdog srv_watchdog;

/* Every interval_ms: one Ping over a connection of its own to path; on failure calls repair from
 * the watchdog's thread. Refuses NO_ROOM. */
attnd_status srv_watchdog_open(srv_watchdog **out, const char *path, int64_t interval_ms,
                               void (*repair)(void *arg), void *arg, attnd_err *err);

/* Accepts NULL. */
void srv_watchdog_close(srv_watchdog *watchdog);

/* One Ping over a fresh connection, in at most timeout_ms. */
int srv_watchdog_ping(const char *path, int timeout_ms);

#endif
