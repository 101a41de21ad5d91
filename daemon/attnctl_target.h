/* attnctl_target.h: a running daemon as what case files are run against, through libattnd. */
#ifndef ATTND_DAEMON_ATTNCTL_TARGET_H
#define ATTND_DAEMON_ATTNCTL_TARGET_H

#include "proto/client/attnd.h"
#include "tests/oracle/case_run.h"

typedef struct ctl_target {
    ora_target target; /* its self is this struct */
    attnd_client *client;
    attnd_buffer *buffer; /* NULL: none yet; for what has no buffer of its own */
    uint32_t timeout_ms;
} ctl_target;

/* dir NULL: where clients look. Refuses as attnd_connect does. The caller closes it. */
attnd_status ctl_target_open(ctl_target *t, const char *dir, uint32_t timeout_ms, attnd_err *err);
void ctl_target_close(ctl_target *t);

#endif
