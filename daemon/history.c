/* history.c: the last requests of a session, with their replies. */
#include "daemon/history.h"

#include <stdlib.h>
#include <string.h>

srv_past *srv_history_find(srv_history *history, uint64_t id)
{
    for (size_t i = 0; i < SRV_HISTORY; i++)
        if (history->past[i].id == id)
            return &history->past[i];
    return NULL;
}

bool srv_history_is_too_old(const srv_history *history, uint64_t id)
{
    for (size_t i = 0; i < SRV_HISTORY; i++)
        if (history->past[i].id <= id) /* an empty entry too: then nothing was forgotten */
            return false;
    return true;
}

static void forget(srv_past *past)
{
    if (past->reply != past->own)
        free(past->reply);
    past->id = 0;
    past->reply = NULL;
}

srv_past *srv_history_add(srv_history *history, uint64_t id)
{
    srv_past *oldest = NULL;
    for (size_t i = 0; i < SRV_HISTORY; i++) {
        srv_past *past = &history->past[i];
        if (!past->id) {
            oldest = past;
            break;
        }
        if (past->is_answered && (!oldest || past->order < oldest->order))
            oldest = past;
    }
    if (!oldest)
        return NULL;
    if (oldest->id)
        forget(oldest);
    oldest->id = id;
    oldest->order = ++history->n_arrived;
    oldest->progress = SRV_PROGRESS_ACCEPTED;
    oldest->is_answered = false;
    oldest->n_reply = 0;
    oldest->repeats = NULL;
    return oldest;
}

bool srv_history_answer(srv_past *past, const uint8_t *reply, size_t n)
{
    past->is_answered = true;
    past->reply = n <= sizeof past->own ? past->own : malloc(n);
    if (!past->reply) {
        forget(past);
        return false;
    }
    if (n)
        memcpy(past->reply, reply, n);
    past->n_reply = n;
    return true;
}

void srv_history_fini(srv_history *history)
{
    for (size_t i = 0; i < SRV_HISTORY; i++)
        if (history->past[i].id)
            forget(&history->past[i]);
}
