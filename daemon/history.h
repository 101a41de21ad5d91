/* history.h: the last requests of a session, with their replies.
 *
 * A request's id is new and higher than those before it, give or take what overtook it on the way.
 * One that comes again gets the first reply again and does not run twice; one lower than all that
 * are remembered cannot be told from a repeat and is refused. Plain data; allocates only for
 * replies longer than SRV_HISTORY_INLINE. Owner: the engine thread.
 */
#ifndef ATTND_DAEMON_HISTORY_H
#define ATTND_DAEMON_HISTORY_H

#include <stdbool.h>

#include "daemon/request.h"

enum { SRV_HISTORY = 64, SRV_HISTORY_INLINE = 256 };

typedef enum srv_progress {
    SRV_PROGRESS_ACCEPTED, /* on the road, not launched */
    SRV_PROGRESS_LAUNCHED, /* the device has it, or it is answered */
    SRV_PROGRESS_REFUSED,  /* answered with another status than OK before it was launched */
} srv_progress;

struct srv_past {
    uint64_t id;    /* 0: empty */
    uint64_t order; /* of arrival */
    srv_progress progress;
    bool is_answered;
    size_t n_reply;
    uint8_t *reply; /* n_reply bytes: in own, or allocated */
    uint8_t own[SRV_HISTORY_INLINE];
    srv_request *repeats; /* that wait for the first reply, by repeat_next */
};

typedef struct srv_history {
    srv_past past[SRV_HISTORY];
    uint64_t n_arrived;
} srv_history;

/* The entry of an id, or NULL. */
srv_past *srv_history_find(srv_history *history, uint64_t id);

/* Lower than every remembered id, with SRV_HISTORY of them. */
bool srv_history_is_too_old(const srv_history *history, uint64_t id);

/* Remembers a new id; forgets the oldest that is answered. NULL when none is: then more are on the
 * road than are remembered. */
srv_past *srv_history_add(srv_history *history, uint64_t id);

/* Keeps a copy of the reply; false when there was no memory: the entry is forgotten. */
bool srv_history_answer(srv_past *past, const uint8_t *reply, size_t n);

void srv_history_fini(srv_history *history);

#endif
