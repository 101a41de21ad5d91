/* capture.h: live requests become case files (tests/cases/format.md).
 *
 * A request is copied on the engine thread when the device is done with it and its client does not
 * know yet: inputs, outputs and the rows of the pool that it saw lie still then. Encoding and
 * writing happen on libuv's worker threads. Files are whole or not there, 0600, and name no session
 * but by its ordinal.
 */
#ifndef ATTND_DAEMON_CAPTURE_H
#define ATTND_DAEMON_CAPTURE_H

#include <uv.h>

#include "daemon/request.h"

typedef struct srv_capture srv_capture;

/* What to record: at least one request of those that attend or merge and succeed. */
typedef struct srv_capture_order {
    uint32_t n;       /* requests, 1 .. SRV_CAPTURE_MOST */
    uint32_t session; /* ordinal; 0: all */
    bool with_data;   /* else hashes of tensors, and no rows of pools */
    const char *dir;  /* an absolute path to a directory; NULL: "captures" in the runtime directory,
                         which is made */
} srv_capture_order;

enum { SRV_CAPTURE_MOST = 100000, SRV_CAPTURE_DIR = 512 };

typedef struct srv_capture_counts {
    uint32_t left;    /* still to be recorded */
    uint32_t written; /* files, since the start */
    uint32_t pending; /* recorded and not yet written */
    uint32_t dropped; /* requests that were too large, or came faster than files are written */
    uint32_t failed;  /* files that could not be written: the log says why */
    char dir[SRV_CAPTURE_DIR];
} srv_capture_counts;

/* Borrows loop and runtime_dir until closed; most_bytes bounds what is copied and not yet written.
 * Refuses NO_ROOM. Of the loop thread, as all but srv_capture_take. */
attnd_status srv_capture_open(srv_capture **out, uv_loop_t *loop, const char *runtime_dir,
                              const ker_device_info *device, uint64_t most_bytes, attnd_err *err);

/* Stops and closes its handle; what is copied is still written while the loop runs. Then, when the
 * loop and the engine have ended, free. Both accept NULL. */
void srv_capture_close(srv_capture *capture);
void srv_capture_free(srv_capture *capture);

/* Refuses BAD_MESSAGE (dir, n), and BAD_COMBINATION while requests of the last order are to come.
 */
attnd_status srv_capture_start(srv_capture *capture, const srv_capture_order *order,
                               srv_capture_counts *counts, attnd_err *err);

/* Records no more; what is copied is still written. */
void srv_capture_stop(srv_capture *capture, srv_capture_counts *counts);

/* Engine thread, after completion and before the reply. capture NULL, or nothing to record: does
 * nothing. */
void srv_capture_take(srv_capture *capture, const srv_request *request);

#endif
