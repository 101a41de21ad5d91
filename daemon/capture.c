/* capture.c: what is to be recorded, and the way of a copy from the engine thread to its file.
 *
 *   engine thread: copy ──▶ list ──▶ loop thread ──▶ worker thread: encode, write, rename
 */
#include "daemon/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/capture_record.h"
#include "daemon/log.h"
#include "daemon/session.h"

/* Where the files of an order go: its order and the copies of it that are on their way hold it. */
typedef struct folder {
    int fd;
    uint32_t n_held; /* under the lock */
} folder;

/* One copy on its way to its file. */
typedef struct job {
    struct job *next;
    srv_capture *capture;
    srv_record *record;
    uv_work_t work;
    uint64_t bytes; /* that count against the bound until it is written */
    folder *folder; /* held; NULL: not yet */
    char name[64];
    attnd_err err;
} job;

/* Copies that wait for their file: each has a mapping of its own, and a process may not have many
 * more than 2^16. */
enum { MOST_PENDING = 4096 };

struct srv_capture {
    uv_loop_t *loop;
    const char *runtime_dir;
    const ker_device_info *device;
    uint64_t most_bytes;
    uv_async_t arrived;

    _Atomic uint32_t left;
    pthread_mutex_t lock; /* guards what follows; no other lock is taken under it */
    bool is_closed;       /* arrived must not be used any more */
    uint32_t session;
    bool with_data;
    folder *folder;   /* held; NULL: none */
    uint32_t n_named; /* since the start: with the process's id, a name is never taken again */
    char stamp[32];
    uint64_t bytes; /* copied and not yet written */
    job *first, **last;
    srv_capture_counts counts;
};

/* ---- Files: a worker thread -------------------------------------------------------------------
 */

static attnd_status refuse(const job *j, const char *what, attnd_err *err)
{
    return attnd_fail(err, ATTND_NO_ROOM, "capture = %s: %s: %s", j->name, what, strerror(errno));
}

/* Under another name first: a file of its own name is whole. */
static attnd_status write_file(const job *j, attnd_err *err)
{
    char part[80];
    snprintf(part, sizeof part, ".%s.part", j->name);
    int dir = j->folder->fd;
    int fd = openat(dir, part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file) {
        if (fd >= 0)
            close(fd);
        return refuse(j, "open", err);
    }
    srv_record_print(file, j->record, j->capture->device);
    bool is_whole = fflush(file) == 0 && !ferror(file) && fsync(fd) == 0;
    attnd_status status = is_whole ? ATTND_OK : refuse(j, "write", err);
    if (fclose(file) != 0 && status == ATTND_OK)
        status = refuse(j, "close", err);
    if (status == ATTND_OK && renameat(dir, part, dir, j->name) != 0)
        status = refuse(j, "rename", err);
    if (status != ATTND_OK)
        unlinkat(dir, part, 0);
    return status;
}

static void work(uv_work_t *request)
{
    job *j = request->data;
    write_file(j, &j->err);
}

/* ---- The loop thread --------------------------------------------------------------------------
 */

/* Under the lock. Accepts NULL. */
static void let_go(folder *f)
{
    if (f && --f->n_held == 0) {
        close(f->fd);
        free(f);
    }
}

static void worked(uv_work_t *request, int status)
{
    job *j = request->data;
    srv_capture *c = j->capture;
    bool failed = status != 0 || j->err.status != ATTND_OK;
    pthread_mutex_lock(&c->lock);
    c->bytes -= j->bytes;
    c->counts.pending--;
    c->counts.written += !failed;
    c->counts.failed += failed;
    pthread_mutex_unlock(&c->lock);
    if (failed)
        srv_log(SRV_WARN, "capture not written  \"%s\"", j->err.text);
    else
        srv_log(SRV_DEBUG, "captured  file=%s", j->name);
    srv_record_free(j->record);
    pthread_mutex_lock(&c->lock);
    let_go(j->folder);
    pthread_mutex_unlock(&c->lock);
    free(j);
}

/* Copies have arrived. */
static void send_to_workers(uv_async_t *async)
{
    srv_capture *c = async->data;
    pthread_mutex_lock(&c->lock);
    job *j = c->first, *next;
    c->first = NULL;
    c->last = &c->first;
    pthread_mutex_unlock(&c->lock);
    for (; j; j = next) {
        next = j->next;
        j->work.data = j;
        if (uv_queue_work(c->loop, &j->work, work, worked) != 0)
            worked(&j->work, UV_ECANCELED);
    }
}

attnd_status srv_capture_open(srv_capture **out, uv_loop_t *loop, const char *runtime_dir,
                              const ker_device_info *device, uint64_t most_bytes, attnd_err *err)
{
    srv_capture *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return attnd_fail(err, ATTND_NO_ROOM, "capture: no memory");
    *c = (srv_capture){
        .loop = loop, .runtime_dir = runtime_dir, .device = device, .most_bytes = most_bytes};
    c->last = &c->first;
    pthread_mutex_init(&c->lock, NULL);
    if (uv_async_init(loop, &c->arrived, send_to_workers) != 0) {
        pthread_mutex_destroy(&c->lock);
        free(c);
        return attnd_fail(err, ATTND_NO_ROOM, "capture: no handle");
    }
    c->arrived.data = c;
    *out = c;
    return ATTND_OK;
}

void srv_capture_close(srv_capture *c)
{
    if (!c)
        return;
    atomic_store(&c->left, 0);
    pthread_mutex_lock(&c->lock);
    c->is_closed = true;
    pthread_mutex_unlock(&c->lock);
    send_to_workers(&c->arrived);
    uv_close((uv_handle_t *)&c->arrived, NULL);
}

void srv_capture_free(srv_capture *c)
{
    if (!c)
        return;
    let_go(c->folder);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- Start and stop: the loop thread ----------------------------------------------------------
 */

static attnd_status open_folder(const srv_capture *c, const char *dir, char path[SRV_CAPTURE_DIR],
                                folder **out, attnd_err *err)
{
    if (dir && dir[0] != '/')
        return attnd_fail(err, ATTND_BAD_MESSAGE, "params.into = %.200s: a path from the root",
                          dir);
    int n = dir ? snprintf(path, SRV_CAPTURE_DIR, "%s", dir)
                : snprintf(path, SRV_CAPTURE_DIR, "%s/captures", c->runtime_dir);
    if (n >= SRV_CAPTURE_DIR)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "params.into = %.100s...: at most %d bytes", path,
                          SRV_CAPTURE_DIR - 1);
    if (!dir && mkdir(path, 0700) != 0 && errno != EEXIST)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "params.into = %.200s: %s", path,
                          strerror(errno));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || faccessat(fd, ".", W_OK, 0) != 0) {
        attnd_fail(err, ATTND_BAD_MESSAGE, "params.into = %.200s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return err->status;
    }
    *out = malloc(sizeof **out);
    if (!*out) {
        close(fd);
        return attnd_fail(err, ATTND_NO_ROOM, "params.into = %.200s: no memory", path);
    }
    **out = (folder){.fd = fd, .n_held = 1};
    return ATTND_OK;
}

attnd_status srv_capture_start(srv_capture *c, const srv_capture_order *order,
                               srv_capture_counts *counts, attnd_err *err)
{
    char path[SRV_CAPTURE_DIR];
    folder *into = NULL;
    struct tm tm;
    time_t now = time(NULL);
    if (order->n < 1 || order->n > SRV_CAPTURE_MOST)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "params.n = %u: 1..%d requests", order->n,
                          SRV_CAPTURE_MOST);
    if (atomic_load(&c->left))
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "capture: %u requests of the last one are still to come; stop it first",
                          atomic_load(&c->left));
    TRY(open_folder(c, order->dir, path, &into, err));
    pthread_mutex_lock(&c->lock);
    let_go(c->folder);
    c->folder = into;
    c->session = order->session;
    c->with_data = order->with_data;
    c->counts = (srv_capture_counts){.pending = c->counts.pending};
    snprintf(c->counts.dir, sizeof c->counts.dir, "%s", path);
    strftime(c->stamp, sizeof c->stamp, "%Y%m%d-%H%M%S", gmtime_r(&now, &tm));
    *counts = c->counts;
    counts->left = order->n;
    pthread_mutex_unlock(&c->lock);
    atomic_store(&c->left, order->n);
    return ATTND_OK;
}

void srv_capture_stop(srv_capture *c, srv_capture_counts *counts)
{
    uint32_t left = atomic_exchange(&c->left, 0);
    pthread_mutex_lock(&c->lock);
    *counts = c->counts;
    pthread_mutex_unlock(&c->lock);
    counts->left = left;
}

/* ---- The engine thread ------------------------------------------------------------------------
 */

/* Copies into *j, whose folder and name are set. */
static attnd_status copy(job *j, const srv_request *request, bool with_data, uint64_t room,
                         attnd_err *err)
{
    TRY(srv_record_make(&j->record, request, with_data, room, err));
    j->bytes = j->record->arena.used;
    return ATTND_OK;
}

/* False when the loop takes nothing more. */
static bool give_to_loop(srv_capture *c, job *j)
{
    pthread_mutex_lock(&c->lock);
    bool is_open = !c->is_closed;
    if (is_open) {
        c->bytes += j->bytes;
        c->counts.pending++;
        *c->last = j;
        c->last = &j->next;
        uv_async_send(&c->arrived);
    }
    pthread_mutex_unlock(&c->lock);
    return is_open;
}

/* One of those that are left; false when somebody has stopped. */
static bool claim(srv_capture *c)
{
    uint32_t left = atomic_load(&c->left);
    while (left && !atomic_compare_exchange_weak(&c->left, &left, left - 1))
        ;
    return left > 0;
}

static void take(srv_capture *c, const srv_request *request)
{
    attnd_err err = {0};
    job *j = calloc(1, sizeof *j);
    pthread_mutex_lock(&c->lock);
    bool is_of_another =
        c->session && (!request->session || request->session->ordinal != c->session);
    if (is_of_another || !claim(c)) {
        pthread_mutex_unlock(&c->lock);
        free(j);
        return;
    }
    uint64_t room = c->most_bytes > c->bytes ? c->most_bytes - c->bytes : 0;
    bool with_data = c->with_data, is_behind = c->counts.pending >= MOST_PENDING;
    if (j) {
        j->capture = c;
        j->folder = c->folder;
        j->folder->n_held++;
        snprintf(j->name, sizeof j->name, "capture-%s-%d-%06u.json", c->stamp, (int)getpid(),
                 ++c->n_named);
    }
    pthread_mutex_unlock(&c->lock);
    if (j && !is_behind && copy(j, request, with_data, room, &err) == ATTND_OK &&
        give_to_loop(c, j))
        return;
    pthread_mutex_lock(&c->lock);
    c->counts.dropped++;
    if (j)
        let_go(j->folder);
    pthread_mutex_unlock(&c->lock);
    srv_log(SRV_INFO, "capture dropped  request=%" PRIu64 " \"%s\"", request->msg.id,
            is_behind   ? "files are written more slowly"
            : *err.text ? err.text
                        : "no memory");
    if (j)
        srv_record_free(j->record);
    free(j);
}

void srv_capture_take(srv_capture *capture, const srv_request *request)
{
    if (!capture || atomic_load_explicit(&capture->left, memory_order_relaxed) == 0)
        return;
    if (request->n_problems || request->merge)
        take(capture, request);
}
