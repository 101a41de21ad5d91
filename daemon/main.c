/* main.c: flags → config → keeper, or engine: open the parts in order, run, close them in reverse.
 */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sysexits.h>
#include <unistd.h>

#include "daemon/capture.h"
#include "daemon/control.h"
#include "daemon/fds.h"
#include "daemon/footprint.h"
#include "daemon/http.h"
#include "daemon/keeper.h"
#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/notify.h"
#include "daemon/receive.h"
#include "daemon/shm.h"

extern char **environ;

/* A decoded request and its plan may take this many times the largest message. */
enum { ARENA_TIMES = 32 };

/* What captured requests may take until they are written. */
enum { CAPTURE_BYTES = 256 << 20 };

enum {
    MAX_KEYS = 256,
    OPT_CONFIG = 1000,
    OPT_CHECK,
    OPT_NO_KEEPER,
    OPT_SOCKET,
    OPT_DEFAULTS,
    OPT_MAN
};

typedef struct options {
    const char *config_file;
    bool only_checks, no_keeper;
    int engine_socket; /* -1: this is the process that was started */
} options;

/* ---- Options ----------------------------------------------------------------------------------
 */

static void print_help(void)
{
    printf(
        "Usage: attnd [OPTION]... [--SECTION.KEY=VALUE]...\n"
        "Serves paged attention to other processes of this user. Needs no options and no file.\n\n"
        "  --config FILE         read this file (also $ATTND_CONFIG)\n"
        "  --check-config FILE   only say whether the file is right and what its models take\n"
        "  --print-defaults      print a file with every key at its default\n"
        "  --no-keeper           run the engine alone, for debuggers\n"
        "  --version, --help\n\n"
        "A key may be given as --SECTION.KEY=VALUE, as $ATTND_SECTION_KEY or in the file, in this\n"
        "order of precedence:\n\n");
    cfg_help(stdout);
}

/* Exit code, or -1 to go on. */
static int refuse(const attnd_err *err, int code)
{
    fprintf(stderr, "attnd: %s\n", err->text);
    return code;
}

/* What getopt_long reads: our own options, then one for every key of the config. */
static size_t make_long_options(struct option *out)
{
    static const struct option OWN[] = {
        {"config", required_argument, NULL, OPT_CONFIG},
        {"check-config", required_argument, NULL, OPT_CHECK},
        {"print-defaults", no_argument, NULL, OPT_DEFAULTS},
        {"print-man-keys", no_argument, NULL, OPT_MAN},
        {"no-keeper", no_argument, NULL, OPT_NO_KEEPER},
        {"engine-socket", required_argument, NULL, OPT_SOCKET},
        {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},
    };
    size_t n = sizeof OWN / sizeof *OWN;
    memcpy(out, OWN, sizeof OWN);
    for (size_t i = 0; cfg_key_at(i) && n < MAX_KEYS; i++)
        out[n++] = (struct option){cfg_key_at(i), required_argument, NULL, (int)i};
    out[n] = (struct option){0};
    return n;
}

/* A flag that names a key. */
typedef struct key_flag {
    const char *key, *text;
} key_flag;

/* Reads flags; keys are put aside, since a file and the environment come before them. Exit code, or
 * -1. */
static int read_options(int argc, char **argv, options *o, key_flag *keys, size_t *n_keys)
{
    static struct option longs[MAX_KEYS + 1];
    make_long_options(longs);
    *n_keys = 0;
    for (int found; (found = getopt_long(argc, argv, "hV", longs, NULL)) != -1;) {
        switch (found) {
        case 'h':
            print_help();
            return 0;
        case 'V':
            printf("attnd %s (%s)\n", ATTND_VERSION, ATTND_COMMIT);
            return 0;
        case OPT_CHECK:
            o->only_checks = true;
            o->config_file = optarg;
            break;
        case OPT_CONFIG:
            o->config_file = optarg;
            break;
        case OPT_DEFAULTS:
            cfg_print_defaults(stdout);
            return 0;
        case OPT_MAN:
            cfg_print_man(stdout);
            return 0;
        case OPT_NO_KEEPER:
            o->no_keeper = true;
            break;
        case OPT_SOCKET:
            o->engine_socket = atoi(optarg);
            break;
        case '?':
            fprintf(stderr, "attnd: see attnd --help\n");
            return EX_USAGE;
        default:
            if (*n_keys == MAX_KEYS) {
                fprintf(stderr, "attnd: too many options\n");
                return EX_USAGE;
            }
            keys[(*n_keys)++] = (key_flag){cfg_key_at((size_t)found), optarg};
        }
    }
    if (optind == argc)
        return -1;
    fprintf(stderr, "attnd: %s: takes no arguments; see attnd --help\n", argv[optind]);
    return EX_USAGE;
}

/* All that makes a config, so that it can be read again. */
typedef struct sources {
    const options *options;
    const key_flag *keys;
    size_t n_keys;
} sources;

static const char *file_of(const options *o)
{
    return o->config_file ? o->config_file : getenv("ATTND_CONFIG");
}

/* File, environment, flags. models NULL: the file must have none. */
static attnd_status read_all(const sources *from, cfg *c, cfg_models *models, attnd_err *err)
{
    const char *file = file_of(from->options);
    cfg_defaults(c);
    if (file)
        TRY(cfg_read_models(c, models, file, err));
    TRY(cfg_read_env(c, environ, err));
    for (size_t i = 0; i < from->n_keys; i++)
        if (cfg_set(c, from->keys[i].key, from->keys[i].text, err) != ATTND_OK) {
            attnd_err_prefix(err, "--");
            return err->status;
        }
    TRY(cfg_check(c, err));
    return srv_http_check(c, err);
}

static attnd_status read_sources(void *arg, cfg *c, attnd_err *err)
{
    return read_all(arg, c, NULL, err);
}

/* Says whether the file is right and what its models would take. */
static attnd_status check_file(const sources *from, cfg *c, attnd_err *err)
{
    cfg_models models = {0};
    char *text = NULL;
    size_t n = 0;
    /* All of it or nothing: a file whose second model is wrong is not half right. */
    FILE *out = open_memstream(&text, &n);
    attnd_status status =
        out ? read_all(from, c, &models, err)
            : attnd_fail(err, ATTND_NO_ROOM, "%s: no memory", file_of(from->options));
    for (size_t m = 0; m < models.n_models && status == ATTND_OK; m++)
        status = srv_footprint_print(out, &models.models[m], m, err);
    cfg_models_fini(&models);
    if (out)
        fclose(out);
    if (status == ATTND_OK)
        printf("%s: ok\n%s", file_of(from->options), text);
    free(text);
    return status;
}

/* Exit code, or -1. */
static int read_config(sources *from, cfg *c)
{
    attnd_err err = {.status = ATTND_OK};
    const char *file = file_of(from->options);
    bool only_checks = from->options->only_checks;
    if (file && access(file, R_OK)) {
        fprintf(stderr, "attnd: %s: %s\n", file, strerror(errno));
        return EX_NOINPUT;
    }
    if ((only_checks ? check_file(from, c, &err) : read_sources(from, c, &err)) != ATTND_OK)
        return refuse(&err, strncmp(err.text, "--", 2) == 0 ? EX_USAGE : EX_CONFIG);
    return only_checks ? 0 : -1;
}

/* ---- The engine process -----------------------------------------------------------------------
 */

/* The parts, in the order they are opened. */
typedef struct parts {
    srv_store *store;
    srv_engine engine;
    bool engine_runs;
    srv_receive *receive;
    srv_loop loop;
    bool has_loop;
    srv_capture *capture;
    srv_control_deps deps;
    srv_control *control;
    srv_fds *fds;
    srv_http *http;
} parts;

static void path_in(char path[CFG_TEXT + 16], const char *dir, const char *name)
{
    snprintf(path, CFG_TEXT + 16, "%s/%s", dir, name);
}

static attnd_status open_device(parts *p, const cfg *c, attnd_err *err)
{
    ker_device_options device = {
        .backend = strcmp(c->device_backend, "auto") ? c->device_backend : NULL,
        .n_threads = (uint32_t)c->device_threads,
        .n_slots = (uint32_t)c->device_slots,
        .workspace_bytes = (size_t)c->device_workspace,
        .isa = strcmp(c->device_isa, "auto") ? c->device_isa : NULL,
    };
    return ker_device_open(&p->engine.device, &device, err);
}

static attnd_status open_http(parts *p, const cfg *c, attnd_err *err)
{
    srv_http_deps deps = {
        .version = ATTND_VERSION,
        .commit = ATTND_COMMIT,
        .device = &p->engine.device_info,
        .engine = &p->engine.queue,
        .snapshot_fill = srv_engine_snapshot,
        .server = &p->loop,
        .is_ready = srv_loop_is_ready,
        .silent_ms = srv_loop_silent_ms,
    };
    TRY(srv_http_open(&p->http, c, &deps, err));
    if (p->http)
        srv_log(SRV_INFO, "http  address=%s port=%u", c->http_address, srv_http_port(p->http));
    return ATTND_OK;
}

static attnd_status open_parts(parts *p, cfg *c, const options *o, sources *from, const char *dir,
                               attnd_err *err)
{
    char path[CFG_TEXT + 16];
    srv_engine *engine = &p->engine;
    srv_shm_clean();
    if (o->engine_socket >= 0)
        TRY(srv_store_open(&p->store, o->engine_socket, err));
    TRY(open_device(p, c, err));
    engine->own = *c;
    engine->config = &engine->own;
    engine->store = p->store;
    engine->arena_bytes = (size_t)c->data_max_message * ARENA_TIMES;
    if (getrandom(&engine->instance, sizeof engine->instance, 0) != sizeof engine->instance)
        return attnd_fail(err, ATTND_BROKEN, "instance: no random number");
    TRY(srv_loop_init(&p->loop, engine, err));
    p->has_loop = true;
    p->loop.reload = (srv_reload){.read = read_sources, .arg = from, .config = c, .engine = engine};
    TRY(srv_capture_open(&p->capture, &p->loop.uv, dir, &engine->device_info, CAPTURE_BYTES, err));
    engine->capture = p->capture;
    TRY(srv_receive_open(&p->receive, engine, err));
    engine->transport = (srv_transport){srv_receive_is_connected, p->receive};
    TRY(srv_engine_start(engine, err));
    p->engine_runs = true;
    p->deps = (srv_control_deps){
        .config = c,
        .device = engine->device,
        .instance = engine->instance,
        .runtime_dir = dir,
        .engine = &engine->queue,
        .snapshot_fill = srv_engine_snapshot,
        .capture = p->capture,
        .server = &p->loop,
        .is_ready = srv_loop_is_ready,
        .reload = srv_loop_reload,
        .drain = srv_loop_drain,
        .shutdown = srv_loop_shutdown,
    };
    path_in(path, dir, "control");
    TRY(srv_control_open(&p->control, &p->loop.uv, path, &p->deps, err));
    path_in(path, dir, "buf");
    TRY(srv_fds_open(&p->fds, &p->loop.uv, path, engine, err));
    path_in(path, dir, "data");
    TRY(srv_receive_listen(p->receive, path, err));
    TRY(open_http(p, c, err));
    return p->store ? srv_store_tell(p->store, SRV_NEWS_READY, err) : ATTND_OK;
}

/* In reverse; every part may be missing. */
static void close_parts(parts *p)
{
    srv_http_close(p->http);
    srv_control_close(p->control);
    srv_fds_close(p->fds);
    srv_capture_close(p->capture);
    if (p->has_loop)
        srv_loop_fini(&p->loop);
    srv_receive_close(p->receive, 1000);
    if (p->engine_runs)
        srv_engine_stop(&p->engine);
    srv_capture_free(p->capture);
    ker_device_close(p->engine.device);
    srv_store_close(p->store);
}

/* Signals go to the loop alone: threads that are started inherit the block, and this
 * thread lifts it before it runs the loop. */
static void block_signals(bool block)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

static void log_ready(const ker_device_info *info, const char *dir)
{
    bool has_better = *info->passed_over;
    srv_log(SRV_INFO, "ready  dir=%s version=%s backend=%s device=\"%s\" isa=%s threads=%u%s%s%s",
            dir, ATTND_VERSION, info->backend, info->name, info->isa, info->n_threads,
            has_better ? " passed_over=\"" : "", info->passed_over, has_better ? "\"" : "");
}

static int run_engine(cfg *c, const options *o, sources *from, const char *dir)
{
    static parts p;
    attnd_err err = {.status = ATTND_OK};
    if (open_parts(&p, c, o, from, dir, &err) != ATTND_OK) {
        srv_log(SRV_ERROR, "start failed  why=\"%s\"", err.text);
        close_parts(&p);
        /* A device that this machine has not is no fault of the file. */
        bool is_wrong = attnd_status_mender(err.status) == ATTND_MENDER_CALLER &&
                        err.status != ATTND_UNIMPLEMENTED;
        return is_wrong ? EX_CONFIG : EX_UNAVAILABLE;
    }
    log_ready(&p.engine.device_info, dir);
    p.loop.is_ready = true;
    /* Under a keeper it is the keeper that the service manager listens to. */
    if (o->engine_socket < 0)
        srv_notify("READY=1\nSTATUS=serves");
    block_signals(false);
    srv_loop_run(&p.loop);
    if (o->engine_socket < 0)
        srv_notify("STOPPING=1");
    p.loop.is_ready = false;
    close_parts(&p);
    srv_log(SRV_INFO, "stopped");
    srv_log_flush(true);
    return 0;
}

int main(int argc, char **argv)
{
    static cfg c;
    static key_flag keys[MAX_KEYS];
    options o = {.engine_socket = -1};
    size_t n_keys;
    cfg_text dir;
    attnd_err err = {.status = ATTND_OK};
    int code = read_options(argc, argv, &o, keys, &n_keys);
    sources from = {.options = &o, .keys = keys, .n_keys = n_keys};
    if (code < 0)
        code = read_config(&from, &c);
    if (code >= 0)
        return code;
    srv_log_set_level(c.log_level);
    srv_log_set_rate(c.log_rate);
    cfg_runtime_dir(&c, dir);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    int lock;
    if (o.engine_socket < 0 && srv_lock_take(dir, &lock, &err) != ATTND_OK)
        return refuse(&err, EX_CANTCREAT);
    if (o.engine_socket < 0 && !o.no_keeper)
        return srv_keeper_run(&c, dir, argv);
    block_signals(true);
    return run_engine(&c, &o, &from, dir);
}
