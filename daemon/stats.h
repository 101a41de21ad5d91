/* stats.h: the numbers. Counters are relaxed atomics, written by one thread each, read by any.
 *
 * Durations go into log-linear histograms (6 significant bits: an error of at most 1.6 %), from
 * which stats.get derives count, sum, p50, p90, p99 and max in microseconds.
 */
#ifndef ATTND_DAEMON_STATS_H
#define ATTND_DAEMON_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/attention.h"
#include "proto/message.h"

/*  X(name, help). Plain counters. */
#define SRV_COUNTER_MAP(X)                                                                         \
    X(requests, "requests received that decoded to an op or were refused")                         \
    X(refused, "requests answered with another status than OK")                                    \
    X(repeats, "requests answered with the first reply to their id")                               \
    X(received_bytes, "bytes of requests")                                                         \
    X(sent_bytes, "bytes of replies")                                                              \
    X(connections, "connections accepted on the data socket")                                      \
    X(connections_refused, "connections refused: another user, or one too many")                   \
    X(connections_displaced, "idle connections closed to make room for new ones")                  \
    X(disconnects, "connections of the data socket that ended")                                    \
    X(send_timeouts, "replies a client did not read in time")                                      \
    X(sessions_opened, "sessions made by Hello")                                                   \
    X(sessions_ended, "sessions that ended")                                                       \
    X(appended_tokens, "tokens stored")                                                            \
    X(query_tokens, "query tokens attended")                                                       \
    X(launches, "plans launched on the device")                                                    \
    X(device_errors, "launches the device failed")

/*  X(name, help). Values that go up and down. */
#define SRV_GAUGE_MAP(X)                                                                           \
    X(sessions, "sessions open")                                                                   \
    X(in_flight, "requests accepted and not answered, Ping and Hello aside")                       \
    X(queued, "requests received and not taken up by the engine thread")                           \
    X(parked, "requests in flight that wait for other requests")                                   \
    X(models, "models open")                                                                       \
    X(plans, "plans held")                                                                         \
    X(buffers, "buffers held")                                                                     \
    X(buffer_bytes, "bytes of all buffers")                                                        \
    X(pool_bytes, "bytes of all pools")

typedef enum srv_counter {
#define X(name, help) SRV_COUNT_##name,
    SRV_COUNTER_MAP(X)
#undef X
        SRV_N_COUNTERS,
} srv_counter;

typedef enum srv_gauge {
#define X(name, help) SRV_GAUGE_##name,
    SRV_GAUGE_MAP(X)
#undef X
        SRV_N_GAUGES,
} srv_gauge;

/* The stages of style: where a request spends its time. */
typedef enum srv_stage {
    SRV_STAGE_DECODE,
    SRV_STAGE_QUEUE, /* from decoded to taken by the engine thread */
    SRV_STAGE_VALIDATE,
    SRV_STAGE_PLAN,
    SRV_STAGE_LAUNCH, /* from planned to completed on the device */
    SRV_STAGE_REPLY,
    SRV_STAGE_TOTAL, /* from receipt to the reply handed to the transport */
    SRV_N_STAGES,
} srv_stage;

const char *srv_stage_name(srv_stage stage); /* "decode" */

void srv_stats_add(srv_counter counter, uint64_t n);
void srv_stats_gauge(srv_gauge gauge, int64_t delta);
int64_t srv_stats_gauge_value(srv_gauge gauge);

/* One answered request: its op (MSG_OP_NONE when none was found), status, and ns of each stage (0:
 * did not happen). Engine thread only. */
void srv_stats_request(msg_op op, attnd_status status, const uint64_t stage_ns[SRV_N_STAGES]);

/* One launch: the kernel of each phase (NULL: none), ns on the device, floor of the problem. Engine
 * thread only. */
void srv_stats_launch(const ker_kernel *const kernels[2], uint64_t device_ns, ker_floor floor);

/* A copy for readers. */
typedef struct srv_quantiles {
    uint64_t count;
    double sum_us, p50_us, p90_us, p99_us, max_us;
} srv_quantiles;

uint64_t srv_stats_counter(srv_counter counter);
srv_quantiles srv_stats_op(msg_op op, srv_stage stage);
uint64_t srv_stats_op_status(msg_op op, attnd_status status);

/* By the kernel's place in kernels.def. */
typedef struct srv_kernel_stats {
    uint64_t launches;
    double bytes, flops;  /* floors added up */
    srv_quantiles device; /* a launch of both phases counts for both kernels */
} srv_kernel_stats;
srv_kernel_stats srv_stats_kernel(size_t kernel);

/* One launch's size: its sequences and its query tokens. Engine thread only. */
void srv_stats_batch(uint64_t n_rows, uint64_t n_tokens);

/* What a Prometheus histogram is made of: how many values lie at or below each bound. Counts read
 * one after the other while others write: upto never passes count. */
typedef struct srv_curve {
    uint64_t count;
    double sum; /* seconds; of sizes: plain */
} srv_curve;

/* bounds_ns[n] rise; fills upto[n]. A value within 1.6 % of a bound may count on its other side. */
srv_curve srv_stats_op_curve(msg_op op, srv_stage stage, const uint64_t *bounds_ns, size_t n,
                             uint64_t *upto);
srv_curve srv_stats_kernel_curve(size_t kernel, const uint64_t *bounds_ns, size_t n,
                                 uint64_t *upto);

/* The bounds of the sizes: 1, 8, 16, 32 … 16384, exact. */
enum { SRV_N_SIZES = 13 };
typedef enum srv_size { SRV_SIZE_TOKENS, SRV_SIZE_ROWS, SRV_N_SIZE_KINDS } srv_size;
uint64_t srv_stats_size_bound(size_t i);
srv_curve srv_stats_size_curve(srv_size size, uint64_t upto[SRV_N_SIZES]);

/* Everything but gauges to zero. */
void srv_stats_reset(void);

#endif
