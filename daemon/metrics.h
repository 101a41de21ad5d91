/* metrics.h: every number as Prometheus text 0.0.4. From any thread.
 */
#ifndef ATTND_DAEMON_METRICS_H
#define ATTND_DAEMON_METRICS_H

#include "daemon/snapshot.h"
#include "kernels/attention.h"

typedef struct srv_metrics {
    const char *version, *commit;
    const ker_device_info *device;
    double started_s; /* since the epoch */
    const srv_snapshot
        *snapshot; /* NULL: the engine thread did not answer, and pools are left out */
} srv_metrics;

/* The whole page, *n bytes; the caller frees it. NULL when there is no memory. */
char *srv_metrics_text(const srv_metrics *metrics, size_t *n);

#endif
