/* reload.h: the config read again while the daemon runs. On the loop thread.
 *
 * File, environment and flags are read as at the start. A refusal changes nothing. The live keys of
 * what was read are then in force: the log's at once, the engine's as soon as its thread has taken
 * the event; all other keys stay as they are until the next start. The service manager is told
 * before anything is read, and again when all of it is in force or nothing is.
 */
#ifndef ATTND_DAEMON_RELOAD_H
#define ATTND_DAEMON_RELOAD_H

#include "daemon/engine.h"

typedef struct srv_reload {
    /* Reads everything again into *out, checked. */
    attnd_status (*read)(void *arg, cfg *out, attnd_err *err);
    void *arg;
    cfg *config; /* what the loop thread shows: in force, but for keys that wait for a start */
    srv_engine *engine;
} srv_reload;

/* One key whose value is not what is in force; is_applied: now it is. */
typedef void srv_change_fn(void *arg, const char *key, bool is_applied, const char *was,
                           const char *now);

/* Reads, applies, logs one line for each change and calls each (may be NULL) for it. Refuses what
 * read refuses, and NO_ROOM. */
attnd_status srv_reload_run(srv_reload *reload, srv_change_fn *each, void *arg, attnd_err *err);

#endif
