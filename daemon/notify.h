/* notify.h: tells the service manager how things stand: one datagram to $NOTIFY_SOCKET. */
#ifndef ATTND_DAEMON_NOTIFY_H
#define ATTND_DAEMON_NOTIFY_H

/* "READY=1\nSTATUS=serves", by the rules of sd_notify(3). Nothing without $NOTIFY_SOCKET; a manager
 * that cannot be told is not waited for. */
void srv_notify(const char *state);

/* "RELOADING=1" with the time, which tells the manager which of its requests it answers; READY=1
 * follows when what was read is in force. */
void srv_notify_reloading(void);

#endif
