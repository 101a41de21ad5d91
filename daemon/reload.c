/* reload.c: the config read again while the daemon runs. */
#include "daemon/reload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/store.h"

/* What the engine thread is told. */
typedef struct news {
    srv_event event;
    cfg next;
} news;

/* Under a keeper it is the keeper that the service manager listens to. */
static void announce(const srv_engine *engine, srv_news what)
{
    attnd_err err;
    if (!engine->store && what == SRV_NEWS_RELOADING)
        srv_notify_reloading();
    else if (!engine->store)
        srv_notify("READY=1");
    else if (srv_store_tell(engine->store, what, &err) != ATTND_OK)
        srv_log(SRV_WARN, "service manager not told  why=\"%s\"", err.text);
}

/* On the engine thread, the only one that reads the live keys of its own copy. */
static void take_live(srv_engine *engine, srv_event *event)
{
    news *n = (news *)((char *)event - offsetof(news, event));
    cfg_take_live(&engine->own, &n->next);
    free(n);
    announce(engine, SRV_NEWS_RELOADED);
}

static void tell(const char *key, const char *was, const char *now, srv_change_fn *each, void *arg)
{
    bool is_live = cfg_is_live(key);
    srv_log(is_live ? SRV_INFO : SRV_WARN, "config changed  key=%s was=\"%s\" now=\"%s\"%s", key,
            was, now, is_live ? "" : " why=\"takes effect at the next start\"");
    if (each)
        each(arg, key, is_live, was, now);
}

static size_t tell_changes(const cfg *before, const cfg *next, srv_change_fn *each, void *arg)
{
    size_t n = 0;
    for (size_t i = 0; cfg_key_at(i); i++) {
        cfg_text was, now;
        cfg_get(before, cfg_key_at(i), was, sizeof was);
        cfg_get(next, cfg_key_at(i), now, sizeof now);
        if (strcmp(was, now) == 0)
            continue;
        tell(cfg_key_at(i), was, now, each, arg);
        n++;
    }
    return n;
}

attnd_status srv_reload_run(srv_reload *reload, srv_change_fn *each, void *arg, attnd_err *err)
{
    announce(reload->engine, SRV_NEWS_RELOADING);
    news *n = calloc(1, sizeof *n);
    attnd_status status = n ? reload->read(reload->arg, &n->next, err)
                            : attnd_fail(err, ATTND_NO_ROOM, "config: no memory to read it");
    if (status != ATTND_OK) {
        srv_log(SRV_WARN, "config not reloaded  why=\"%s\"", err->text);
        free(n);
        announce(reload->engine, SRV_NEWS_RELOADED);
        return status;
    }
    cfg before = *reload->config;
    /* log.level the method may have set another one. */
    snprintf(before.log_level, sizeof before.log_level, "%s", srv_log_level_name(srv_log_level()));
    cfg_take_live(reload->config, &n->next);
    srv_log_set_level(n->next.log_level);
    srv_log_set_rate(n->next.log_rate);
    size_t n_changed = tell_changes(&before, &n->next, each, arg);
    srv_log(SRV_INFO, "config reloaded  changed=%zu", n_changed);
    n->event.run = take_live;
    srv_queue_post(&reload->engine->queue, &n->event);
    return ATTND_OK;
}
