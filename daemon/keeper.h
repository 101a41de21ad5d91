/* keeper.h: the process that is started. It holds the lock and the store of named descriptors,
 * starts the engine and starts it again when it dies. It never touches a device.
 */
#ifndef ATTND_DAEMON_KEEPER_H
#define ATTND_DAEMON_KEEPER_H

#include "config/config.h"

/* Own exit codes beside those of sysexits.h. */
enum {
    /* Two signals to stop within this time are one: whoever signals a process group, or a process
     * and then its group, sends each of us more than one. */
    SRV_SAME_SIGNAL_MS = 100,
};

enum {
    SRV_EXIT_DEVICE = 10,  /* the engine: a device error that stays */
    SRV_EXIT_CRASHES = 11, /* the keeper: the engine crashed too often */
};

/* Makes the runtime directory (0700, this user's own) and takes DIR/lock; the descriptor stays open
 * for the life of the process. Refuses UNREACHABLE: another daemon holds it, the directory is
 * another user's or cannot be made. */
attnd_status srv_lock_take(const char *dir, int *fd, attnd_err *err);

/* Runs the engine (/proc/self/exe with argv and --engine-socket N added) until it leaves by itself
 * or crashed too often. Returns the exit code. An engine that leaves with 0, or with a sysexits
 * code before it was ready, ends the keeper with the same code; one that dies by a signal, with
 * SRV_EXIT_DEVICE or with any other code is started again at once, with an empty store.
 *
 * Forwards TERM, INT, and once the engine is ready HUP, USR1, USR2. After TERM or INT nothing is
 * started again; a second one kills the engine and returns 128 + its number. Sockets that a killed
 * engine left are removed. */
int srv_keeper_run(const cfg *c, const char *runtime_dir, char *const argv[]);

#endif
