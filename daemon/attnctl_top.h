/* attnctl_top.h: what happened between two looks at a daemon, as rates. */
#ifndef ATTND_DAEMON_ATTNCTL_TOP_H
#define ATTND_DAEMON_ATTNCTL_TOP_H

#include <cjson/cJSON.h>

/* One look: results of stats.get and sessions.list. */
typedef struct ctl_look {
    cJSON *stats, *sessions;
    double at_s; /* CLOCK_MONOTONIC */
} ctl_look;

/* An object that the caller deletes: interval_s, rates (a second), gauges (as they are), and lists
 * ops, kernels and sessions, without the ops and kernels that did nothing meanwhile. A number that
 * fell was set to zero in between and counts from there. */
cJSON *ctl_top(const ctl_look *before, const ctl_look *after);

#endif
