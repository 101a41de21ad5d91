/* attnctl.c: the operator's client of the control socket: flags → one JSON-RPC call → a table, or
 * one object a line.
 *
 * Knows no method by itself: commands, their parameters and their help are the rows of methods.def,
 * and what comes back is printed by its shape.
 */
#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/attnctl_top.h"

enum { EXIT_OK = 0, EXIT_REFUSED = 1, EXIT_USAGE = 2, EXIT_NO_DAEMON = 3, EXIT_TIMED_OUT = 4 };

enum {
    CALL_TIMEOUT_MS = 5000,
    WAIT_TIMEOUT_MS = 60000,
    INTERVAL_MS = 1000,
    MAX_ANSWER = 64 << 20,
    MAX_PLACES = 4,
};

/* ---- The table of commands --------------------------------------------------------------------
 */

typedef enum param_type { HANDLE, INT, INTS, TEXT } param_type;

typedef enum command_id {
#define METHOD(id, method, command, ask, summary) CMD_##id,
#define PARAM(id, name, type, presence, summary)
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
    CMD_top,
    CMD_call,
    CMD_completion,
    CMD_version,
    N_COMMANDS,
} command_id;

typedef struct command {
    const char *name; /* "": reached by another one's flag */
    const char *method;
    const char *summary;
} command;

static const command commands[N_COMMANDS] = {
#define METHOD(id, method, command, ask, summary) {command, method, summary},
#define PARAM(id, name, type, presence, summary)
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
    [CMD_top] = {"top", "", "What happens now: rates of ops, kernels and sessions, every second."},
    [CMD_call] = {"call", "", "METHOD [JSON]: any method, its result as it comes."},
    [CMD_completion] = {"completion", "", "bash: prints what completes attnctl's words in bash."},
    [CMD_version] = {"version", "", "The version of attnctl; info has the daemon's."},
};

typedef struct param {
    command_id command;
    const char *name;
    param_type type;
    const char *summary;
} param;

static const param params[] = {
#define METHOD(id, method, command, ask, summary)
#define PARAM(id, name, type, presence, summary) {CMD_##id, #name, type, summary},
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
};

enum { N_PARAMS = sizeof params / sizeof *params };

/* What attnctl itself adds to a command. */
typedef struct extra {
    command_id command;
    const char *name;
    int has_value; /* as getopt_long says it */
    int flag;
    const char *summary;
} extra;

enum {
    FLAG_RESET = 2000,
    FLAG_WATCH,
    FLAG_INTERVAL,
    FLAG_COUNT,
    FLAG_WAIT,
    FLAG_SOCKET,
    FLAG_DIR,
    FLAG_JSON,
    FLAG_TIMEOUT,
    FLAG_MAN,
};

static const extra extras[] = {
    {CMD_stats_get, "reset", no_argument, FLAG_RESET, "set all but the gauges to zero instead"},
    {CMD_stats_get, "watch", optional_argument, FLAG_WATCH,
     "again every S seconds, 1 when not given, until interrupted"},
    {CMD_stats_get, "count", required_argument, FLAG_COUNT, "with --watch: N times"},
    {CMD_top, "interval", required_argument, FLAG_INTERVAL, "every S seconds instead of 1"},
    {CMD_top, "count", required_argument, FLAG_COUNT, "N times, not until interrupted"},
    {CMD_server_drain, "wait", no_argument, FLAG_WAIT,
     "return when the daemon has left (60 s at most, or --timeout)"},
};

enum { N_EXTRAS = sizeof extras / sizeof *extras };

/* ---- Options ----------------------------------------------------------------------------------
 */

typedef struct options {
    const char *socket, *dir;
    bool json, reset, wait, watch;
    int64_t timeout_ms; /* -1: not given */
    int64_t interval_ms;
    bool has_interval;
    int64_t count;     /* rounds of watch and top; 0: until interrupted */
    const char *shell; /* of completion */
    command_id command;
    const char *method; /* of call */
    cJSON *params;      /* object */
} options;

static _Noreturn void usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static _Noreturn void usage(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "attnctl: ");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "; see attnctl --help\n");
    va_end(args);
    exit(EXIT_USAGE);
}

static void print_help(void)
{
    printf("Usage: attnctl [OPTION]... COMMAND [ARGUMENT]...\n"
           "Asks a running attnd over its control socket.\n\n"
           "  --socket PATH   the control socket itself\n"
           "  --dir DIR       the daemon's runtime directory; default: the first of "
           "$RUNTIME_DIRECTORY,\n"
           "                  $XDG_RUNTIME_DIR/attnd, /run/attnd, /tmp/attnd-UID with a control "
           "socket\n"
           "  --json          one JSON object a line\n"
           "  --timeout S     seconds to wait for an answer; default 5\n"
           "  --help          this text; COMMAND --help: its arguments\n\nCommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (*commands[i].name)
            printf("  %-10s  %s\n", commands[i].name, commands[i].summary);
    printf("\nExit status: 0 ok, 1 refused (or not ready), 2 usage, 3 no daemon, 4 no answer in "
           "time.\n");
}

/* "--watch[=S]", "--count N". */
static void extra_text(const extra *e, char *out, size_t bytes)
{
    const char *value = e->flag == FLAG_COUNT ? "N" : "S";
    if (e->has_value == no_argument)
        snprintf(out, bytes, "--%s", e->name);
    else if (e->has_value == required_argument)
        snprintf(out, bytes, "--%s %s", e->name, value);
    else
        snprintf(out, bytes, "--%s[=%s]", e->name, value);
}

static void print_command_help(command_id id)
{
    static const char *const shapes[] = {
        [HANDLE] = "HANDLE", [INT] = "N", [INTS] = "N,N,...", [TEXT] = "TEXT"};
    printf("Usage: attnctl %s [ARGUMENT]...\n%s\n", commands[id].name, commands[id].summary);
    for (size_t i = 0; i < N_PARAMS; i++)
        if (params[i].command == id)
            printf("  --%-11s %-8s %s\n", params[i].name, shapes[params[i].type],
                   params[i].summary);
    for (size_t i = 0; i < N_EXTRAS; i++)
        if (extras[i].command == id) {
            char flag[32];
            extra_text(&extras[i], flag, sizeof flag);
            printf("  %-22s %s\n", flag, extras[i].summary);
        }
}

/* The commands as scdoc markup: what attnctl(1) says of them. */
static void print_man(void)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (!*commands[i].name)
            continue;
        printf("*%s*", commands[i].name);
        for (size_t j = 0; j < N_EXTRAS; j++)
            if (extras[j].command == (command_id)i) {
                char flag[32];
                extra_text(&extras[j], flag, sizeof flag);
                printf(" [%s]", flag);
            }
        printf("\n\t%s\n", commands[i].summary);
        for (size_t j = 0; j < N_EXTRAS; j++)
            if (extras[j].command == (command_id)i)
                printf("\t*--%s*: %s.\n", extras[j].name, extras[j].summary);
        for (size_t j = 0; j < N_PARAMS; j++)
            if (params[j].command == (command_id)i) {
                printf("\t*--");
                for (const char *c = params[j].name; *c; c++)
                    printf(*c == '_' ? "\\_" : "%c", *c);
                printf("*: %s.\n", params[j].summary);
            }
        printf("\n");
    }
}

/* ---- Completion -------------------------------------------------------------------------------
 */

static void print_words(command_id id)
{
    printf("--json --timeout --help");
    for (size_t i = 0; i < N_PARAMS; i++)
        if (params[i].command == id)
            printf(" --%s", params[i].name);
    for (size_t i = 0; i < N_EXTRAS; i++)
        if (extras[i].command == id)
            printf(" --%s", extras[i].name);
    if (id == CMD_completion)
        printf(" bash");
    if (id == CMD_log_level)
        printf(" error warn info debug");
    for (size_t i = 0; i < N_COMMANDS && id == CMD_call; i++)
        if (*commands[i].method)
            printf(" %s", commands[i].method);
}

static void print_completion(void)
{
    printf(
        "# attnctl's words in bash, from its table of commands: source <(attnctl completion bash)\n"
        "_attnctl()\n"
        "{\n"
        "    local word=${COMP_WORDS[COMP_CWORD]} command= words i\n"
        "    COMPREPLY=()\n"
        "    case ${COMP_WORDS[COMP_CWORD - 1]} in\n"
        "    --socket) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n"
        "    --dir) COMPREPLY=($(compgen -d -- \"$word\")); return ;;\n"
        "    --timeout | --count | --interval) return ;;\n"
        "    esac\n"
        "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
        "        case ${COMP_WORDS[i]} in\n"
        "        --socket | --dir | --timeout) ((i++)) ;;\n"
        "        -*) ;;\n"
        "        *) command=${COMP_WORDS[i]}; break ;;\n"
        "        esac\n"
        "    done\n"
        "    case $command in\n"
        "    '') words='--socket --dir --json --timeout --help");
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (*commands[i].name)
            printf(" %s", commands[i].name);
    printf("' ;;\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (!*commands[i].name)
            continue;
        printf("    %s) words='", commands[i].name);
        print_words((command_id)i);
        printf("' ;;\n");
    }
    printf("    esac\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
           "}\n"
           "complete -F _attnctl attnctl\n");
}

static int64_t read_seconds(const char *flag, const char *text)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds > 0 && seconds <= 86400))
        usage("--%s = %s: seconds, more than 0 and at most 86400", flag, text);
    return (int64_t)ceil(seconds * 1000);
}

static int64_t read_count(const char *text)
{
    size_t n = strspn(text, "0123456789");
    if (n == 0 || n > 9 || text[n] || atoi(text) == 0)
        usage("--count = %s: how often, 1 .. 999999999", text);
    return atoi(text);
}

/* A whole number as JSON; the daemon says whether it is in range. */
static cJSON *read_number(const char *name, const char *text, size_t n)
{
    char digits[16];
    if (n == 0 || n >= sizeof digits || strspn(text, "0123456789") < n)
        usage("--%s = %s: a whole number%s", name, text, strchr(text, ',') ? "s list" : "");
    snprintf(digits, sizeof digits, "%.*s", (int)n, text);
    return cJSON_CreateRaw(digits);
}

static cJSON *read_list(const char *name, const char *text)
{
    cJSON *list = cJSON_CreateArray();
    for (const char *s = text;; s++) {
        size_t n = strcspn(s, ",");
        cJSON_AddItemToArray(list, read_number(name, s, n));
        s += n;
        if (!*s)
            return list;
    }
}

static void set_param(options *o, const param *p, const char *text)
{
    cJSON *value;
    if (cJSON_GetObjectItemCaseSensitive(o->params, p->name))
        usage("--%s = %s: given twice", p->name, text);
    if (p->type == INT)
        value = read_number(p->name, text, strlen(text));
    else if (p->type == INTS)
        value = read_list(p->name, text);
    else
        value = cJSON_CreateString(text);
    cJSON_AddItemToObject(o->params, p->name, value);
}

/* A flag that is none of the command's parameters. */
static void set_flag(options *o, int flag, command_id id)
{
    switch (flag) {
    case FLAG_SOCKET:
        o->socket = optarg;
        break;
    case FLAG_DIR:
        o->dir = optarg;
        break;
    case FLAG_JSON:
        o->json = true;
        break;
    case FLAG_TIMEOUT:
        o->timeout_ms = read_seconds("timeout", optarg);
        break;
    case FLAG_WATCH:
        o->watch = true;
        o->has_interval = optarg != NULL;
        if (optarg)
            o->interval_ms = read_seconds("watch", optarg);
        break;
    case FLAG_INTERVAL:
        o->interval_ms = read_seconds("interval", optarg);
        break;
    case FLAG_COUNT:
        o->count = read_count(optarg);
        break;
    case FLAG_MAN:
        print_man();
        exit(EXIT_OK);
    case FLAG_RESET:
        o->reset = true;
        break;
    case FLAG_WAIT:
        o->wait = true;
        break;
    case 'h':
        if (id == N_COMMANDS)
            print_help();
        else
            print_command_help(id);
        exit(EXIT_OK);
    }
}

/* Reads flags up to the first other word; id N_COMMANDS: those before the command. Returns the
 * place of that word. */
static int read_flags(options *o, int argc, char **argv, command_id id)
{
    static const struct option own[] = {{"socket", required_argument, NULL, FLAG_SOCKET},
                                        {"dir", required_argument, NULL, FLAG_DIR},
                                        {"json", no_argument, NULL, FLAG_JSON},
                                        {"timeout", required_argument, NULL, FLAG_TIMEOUT},
                                        {"print-man", no_argument, NULL, FLAG_MAN},
                                        {"help", no_argument, NULL, 'h'}};
    enum { N_OWN = sizeof own / sizeof *own };
    struct option longs[N_OWN + N_PARAMS + N_EXTRAS + 1] = {{0}};
    size_t n = N_OWN;
    memcpy(longs, own, sizeof own);
    for (size_t i = 0; i < N_PARAMS; i++)
        if (params[i].command == id)
            longs[n++] = (struct option){params[i].name, required_argument, NULL, (int)i};
    for (size_t i = 0; i < N_EXTRAS; i++)
        if (extras[i].command == id)
            longs[n++] = (struct option){extras[i].name, extras[i].has_value, NULL, extras[i].flag};
    optind = 0;
    opterr = 0;
    /* "+": the first word that is no flag ends them. */
    for (int found; (found = getopt_long(argc, argv, "+h", longs, NULL)) != -1;) {
        if (found >= 0 && found < N_PARAMS)
            set_param(o, &params[found], optarg);
        else if (found == '?')
            usage("%s: unknown option, or its value is missing", argv[optind - 1]);
        else
            set_flag(o, found, id);
    }
    return optind;
}

static_assert(N_PARAMS < 'h', "a parameter's number is an option's");

static command_id find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (*commands[i].name && strcmp(commands[i].name, name) == 0)
            return (command_id)i;
    usage("%s: no such command", name);
}

/* A word without a flag: the command's next parameter that is not given yet. */
static void set_word(options *o, const char *word)
{
    if (o->command == CMD_call && !o->method) {
        o->method = word;
        return;
    }
    if (o->command == CMD_call && !o->params->child) {
        cJSON_Delete(o->params);
        o->params = cJSON_ParseWithOpts(word, NULL, true);
        if (!cJSON_IsObject(o->params))
            usage("%s: a JSON object with the method's parameters", word);
        return;
    }
    if (o->command == CMD_completion && !o->shell) {
        o->shell = word;
        return;
    }
    /* "--watch 2": getopt takes an optional value only behind "=". */
    if (o->watch && !o->has_interval) {
        o->interval_ms = read_seconds("watch", word);
        o->has_interval = true;
        return;
    }
    for (size_t i = 0; i < N_PARAMS; i++)
        if (params[i].command == o->command &&
            !cJSON_GetObjectItemCaseSensitive(o->params, params[i].name)) {
            set_param(o, &params[i], word);
            return;
        }
    usage("%s: %s takes no more arguments", word, commands[o->command].name);
}

static void read_options(options *o, int argc, char **argv)
{
    *o = (options){.timeout_ms = -1, .interval_ms = INTERVAL_MS, .params = cJSON_CreateObject()};
    int at = read_flags(o, argc, argv, N_COMMANDS);
    if (at >= argc)
        usage("a command is missing");
    o->command = find_command(argv[at]);
    while (at < argc) {
        /* argv[at] stands where getopt expects the program's name. */
        at += read_flags(o, argc - at, argv + at, o->command);
        if (at < argc)
            set_word(o, argv[at]);
    }
    if (o->command == CMD_call && !o->method)
        usage("call: a method is missing");
    if (o->command == CMD_completion && (!o->shell || strcmp(o->shell, "bash") != 0))
        usage("completion = %s: bash", o->shell ? o->shell : "absent");
    if (o->command == CMD_stats_get && o->count && !o->watch)
        usage("--count = %lld: goes with --watch", (long long)o->count);
    if (o->reset && o->watch)
        usage("--reset = given: not with --watch");
    if (o->reset)
        o->command = CMD_stats_reset;
}

/* ---- The connection ---------------------------------------------------------------------------
 */

typedef struct connection {
    int fd;
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    uint64_t deadline_ms;
    char *text; /* received */
    size_t n;
} connection;

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static _Noreturn void leave(const connection *c, int code, const char *what)
{
    fprintf(stderr, "attnctl: %s: %s\n", c->path, what);
    exit(code);
}

static void wait_for(const connection *c, short events)
{
    struct pollfd p = {.fd = c->fd, .events = events};
    uint64_t now = now_ms();
    int n = now < c->deadline_ms ? poll(&p, 1, (int)(c->deadline_ms - now)) : 0;
    if (n == 0)
        leave(c, EXIT_TIMED_OUT, "no answer in time");
}

/* 0, or errno. */
static int try_connect(connection *c)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, c->path, sizeof address.sun_path);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        return errno;
    /* EAGAIN: others are waiting to be accepted. */
    while (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0) {
        int error = errno;
        if (error != EAGAIN || now_ms() >= c->deadline_ms) {
            close(c->fd);
            return error;
        }
        usleep(10000);
    }
    return 0;
}

static bool set_path(connection *c, const char *dir, const char *below)
{
    return snprintf(c->path, sizeof c->path, "%s%s", dir, below) < (int)sizeof c->path;
}

/* The directories a daemon may have made its own, in order, with what to add to each. */
static size_t list_places(const options *o, const char *dirs[MAX_PLACES],
                          const char *below[MAX_PLACES])
{
    static char last[64];
    const char *own = getenv("RUNTIME_DIRECTORY"), *xdg = getenv("XDG_RUNTIME_DIR");
    size_t n = 0;
    for (size_t i = 0; i < MAX_PLACES; i++)
        below[i] = "/control";
    if (o->socket || o->dir) {
        dirs[0] = o->socket ? o->socket : o->dir;
        below[0] = o->socket ? "" : "/control";
        return 1;
    }
    if (own && *own)
        dirs[n++] = own;
    if (xdg && *xdg) {
        dirs[n] = xdg;
        below[n++] = "/attnd/control";
    }
    snprintf(last, sizeof last, "/tmp/attnd-%u", (unsigned)getuid());
    dirs[n++] = "/run/attnd";
    dirs[n++] = last;
    return n;
}

static void set_deadline(connection *c, const options *o)
{
    c->deadline_ms = now_ms() + (uint64_t)(o->timeout_ms < 0 ? CALL_TIMEOUT_MS : o->timeout_ms);
}

/* Connects to the first place that has a socket; the refusal names every one tried. */
static void open_connection(connection *c, const options *o)
{
    const char *dirs[MAX_PLACES], *below[MAX_PLACES];
    size_t n = list_places(o, dirs, below);
    int errors[MAX_PLACES];
    set_deadline(c, o);
    for (size_t i = 0; i < n; i++) {
        errors[i] = set_path(c, dirs[i], below[i]) ? try_connect(c) : ENAMETOOLONG;
        if (errors[i] == 0)
            return;
    }
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, "attnctl: %s%s: %s\n", dirs[i], below[i], strerror(errors[i]));
    fprintf(stderr, "attnctl: no daemon answers; is attnd running?\n");
    exit(EXIT_NO_DAEMON);
}

/* A daemon that hangs up first may have said why: then there is an answer all the same. */
static void send_text(connection *c, const char *text)
{
    for (size_t n = strlen(text), done = 0; done < n;) {
        wait_for(c, POLLOUT);
        ssize_t sent = send(c->fd, text + done, n - done, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
            return;
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            leave(c, EXIT_NO_DAEMON, strerror(errno));
        if (sent > 0)
            done += (size_t)sent;
    }
}

/* Receives more into c->text; false at the end of file. */
static bool receive_more(connection *c)
{
    char chunk[16384];
    wait_for(c, POLLIN);
    ssize_t n = recv(c->fd, chunk, sizeof chunk, 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return false;
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR)
            return true;
        leave(c, EXIT_NO_DAEMON, strerror(errno));
    }
    char *grown = c->n + (size_t)n < MAX_ANSWER ? realloc(c->text, c->n + (size_t)n + 1) : NULL;
    if (!grown)
        leave(c, EXIT_REFUSED, "the answer is too large");
    c->text = grown;
    memcpy(c->text + c->n, chunk, (size_t)n);
    c->n += (size_t)n;
    c->text[c->n] = '\0';
    return true;
}

/* One call; returns the answer, an object with result or error. Takes call_params; the caller
 * deletes the answer. */
static cJSON *call(connection *c, const options *o, const char *method, cJSON *call_params)
{
    cJSON *request = cJSON_CreateObject();
    cJSON_AddStringToObject(request, "jsonrpc", "2.0");
    cJSON_AddNumberToObject(request, "id", 1);
    cJSON_AddStringToObject(request, "method", method);
    cJSON_AddItemToObject(request, "params", call_params);
    char *text = cJSON_PrintUnformatted(request), *line;
    set_deadline(c, o);
    c->n = 0;
    if (c->text)
        *c->text = '\0';
    cJSON_Delete(request);
    if (!text || asprintf(&line, "%s\n", text) < 0)
        leave(c, EXIT_REFUSED, "no memory");
    send_text(c, line);
    free(line);
    cJSON_free(text);
    while (!c->text || !strchr(c->text, '\n'))
        if (!receive_more(c))
            leave(c, EXIT_NO_DAEMON, "the daemon hung up without an answer");
    cJSON *answer = cJSON_Parse(c->text);
    if (!cJSON_IsObject(answer))
        leave(c, EXIT_REFUSED, "the answer is no JSON object");
    return answer;
}

/* ---- Printing ---------------------------------------------------------------------------------
 */

/* cJSON prints whole numbers beyond 15 digits as powers of ten. */
static void keep_digits(cJSON *item)
{
    for (; item; item = item->next) {
        char digits[32];
        keep_digits(item->child);
        if (!cJSON_IsNumber(item) || fabs(item->valuedouble) < 1e15 ||
            fabs(item->valuedouble) > 1e18)
            continue;
        snprintf(digits, sizeof digits, "%.0f", item->valuedouble);
        item->valuestring = strdup(digits);
        item->type = cJSON_Raw;
    }
}

static void print_json_line(const cJSON *item)
{
    char *text = cJSON_PrintUnformatted(item);
    printf("%s\n", text ? text : "");
    cJSON_free(text);
}

/* The one list that a result is, or NULL. */
static cJSON *only_list(const cJSON *result)
{
    return result->child && !result->child->next && cJSON_IsArray(result->child) ? result->child
                                                                                 : NULL;
}

static void print_json(const cJSON *result)
{
    const cJSON *list = only_list(result), *item;
    if (!list) {
        print_json_line(result);
        return;
    }
    cJSON_ArrayForEach(item, list) print_json_line(item);
}

/* A scalar, or scalars side by side, as people read them; into buf, cut to fit. */
static void cell_text(const cJSON *item, char *buf, size_t bytes)
{
    buf[0] = '\0';
    if (cJSON_IsString(item)) {
        snprintf(buf, bytes, "%s", item->valuestring);
    } else if (cJSON_IsArray(item) || cJSON_IsObject(item)) {
        const cJSON *part;
        size_t n = 0;
        cJSON_ArrayForEach(part, item)
        {
            char one[256];
            cell_text(part, one, sizeof one);
            int added = snprintf(buf + n, bytes - n, "%s%s%s%s", n ? " " : "",
                                 part->string ? part->string : "", part->string ? "=" : "", one);
            n = n + (size_t)added < bytes ? n + (size_t)added : bytes - 1;
        }
    } else if (item && !cJSON_IsNull(item)) {
        char *text = cJSON_PrintUnformatted(item);
        snprintf(buf, bytes, "%s", text ? text : "");
        cJSON_free(text);
    }
    /* A client names itself: nothing of that reaches the terminal as a command. */
    for (char *s = buf; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?';
}

static bool is_number_text(const char *text)
{
    return *text && strspn(text, "-0123456789.") == strlen(text);
}

enum { MAX_COLUMNS = 24, CELL = 512 };

/* Names of the columns: every member of any row, in the order of their first appearance. */
static size_t list_columns(const cJSON *rows, const char *names[MAX_COLUMNS])
{
    const cJSON *row, *member;
    size_t n = 0;
    cJSON_ArrayForEach(row, rows)
    {
        cJSON_ArrayForEach(member, row)
        {
            size_t i = 0;
            while (i < n && strcmp(names[i], member->string) != 0)
                i++;
            if (i == n && n < MAX_COLUMNS)
                names[n++] = member->string;
        }
    }
    return n;
}

/* Characters of a text. */
static int text_width(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* A text in its column: to the right of width, to the left of -width. *blanks are owed before the
 * next text, so that no line ends in them. */
static void print_cell(const char *text, int width, int *blanks)
{
    int pad = abs(width) - text_width(text);
    pad = pad > 0 ? pad : 0;
    *blanks += width > 0 ? pad : 0;
    if (*text) {
        printf("%*s%s", *blanks, "", text);
        *blanks = 0;
    }
    *blanks += width > 0 ? 0 : pad;
}

/* Columns as wide as what is in them; numbers to the right, words to the left. */
static void print_table(const cJSON *rows, int indent)
{
    const char *names[MAX_COLUMNS];
    char cell[CELL];
    int widths[MAX_COLUMNS];
    size_t n = list_columns(rows, names);
    const cJSON *row;
    for (size_t i = 0; i < n; i++) {
        bool is_number = true;
        widths[i] = text_width(names[i]);
        cJSON_ArrayForEach(row, rows)
        {
            cell_text(cJSON_GetObjectItemCaseSensitive(row, names[i]), cell, sizeof cell);
            widths[i] = text_width(cell) > widths[i] ? text_width(cell) : widths[i];
            is_number &= !*cell || is_number_text(cell);
        }
        widths[i] = is_number ? widths[i] : -widths[i];
    }
    int blanks = indent;
    for (size_t i = 0; i < n; i++, blanks += 2)
        print_cell(names[i], widths[i], &blanks);
    printf("\n");
    cJSON_ArrayForEach(row, rows)
    {
        blanks = indent;
        for (size_t i = 0; i < n; i++, blanks += 2) {
            cell_text(cJSON_GetObjectItemCaseSensitive(row, names[i]), cell, sizeof cell);
            print_cell(cell, widths[i], &blanks);
        }
        printf("\n");
    }
}

static bool is_nested(const cJSON *item)
{
    const cJSON *part;
    cJSON_ArrayForEach(part, item) if (cJSON_IsObject(part) || cJSON_IsArray(part)) return true;
    return false;
}

static void print_members(const cJSON *object, int indent);

/* A list of objects: a table, or one block after the other when they hold lists themselves. */
static void print_rows(const cJSON *rows, int indent)
{
    const cJSON *row;
    bool nested = false;
    cJSON_ArrayForEach(row, rows) nested |= is_nested(row);
    if (!nested) {
        print_table(rows, indent);
        return;
    }
    cJSON_ArrayForEach(row, rows)
    {
        print_members(row, indent);
        if (row->next)
            printf("\n");
    }
}

static void print_members(const cJSON *object, int indent)
{
    const cJSON *member;
    char cell[CELL];
    int width = 0;
    cJSON_ArrayForEach(member, object)
    {
        int n = (int)strlen(member->string);
        width = n > width ? n : width;
    }
    cJSON_ArrayForEach(member, object)
    {
        bool rows = cJSON_IsArray(member) && is_nested(member);
        if (rows || (cJSON_IsObject(member) && member->child)) {
            printf("%*s%s\n", indent, "", member->string);
            if (rows)
                print_rows(member, indent + 2);
            else
                print_members(member, indent + 2);
            continue;
        }
        int blanks = indent;
        cell_text(member, cell, sizeof cell);
        print_cell(member->string, -width - 2, &blanks);
        print_cell(cell, 0, &blanks);
        printf("\n");
    }
}

static void copy_member(cJSON *to, const cJSON *from, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, name);
    if (item)
        cJSON_AddItemToObject(to, name, cJSON_Duplicate(item, true));
}

/* Every object inside one row becomes a row of its own, named after it. */
static void spread_times(cJSON *result, const char *list, const char *subject)
{
    const cJSON *row, *times;
    cJSON *rows = cJSON_CreateArray();
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(result, list))
    {
        cJSON_ArrayForEach(times, row)
        {
            size_t n = strlen(times->string);
            static const char *const parts[] = {"count", "p50", "p90", "p99", "max", "sum"};
            if (!cJSON_IsObject(times) || n < 4 || strcmp(times->string + n - 3, "_us") != 0)
                continue;
            cJSON *out = cJSON_CreateObject();
            copy_member(out, row, subject);
            cJSON_AddStringToObject(out, "time_us", times->string);
            for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
                copy_member(out, times, parts[i]);
            cJSON_AddItemToArray(rows, out);
        }
    }
    char name[32];
    snprintf(name, sizeof name, "%s_times", list);
    cJSON_AddItemToObject(result, name, rows);
}

/* Times of ops and kernels leave their rows for tables of their own. */
static void reshape_stats(cJSON *result)
{
    static const char *const lists[] = {"ops", "kernels"}, *const subjects[] = {"op", "kernel"};
    for (int i = 0; i < 2; i++) {
        cJSON *row, *member, *next;
        spread_times(result, lists[i], subjects[i]);
        cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(result, lists[i]))
        {
            for (member = row->child; member; member = next) {
                char codes[CELL];
                next = member->next;
                if (!cJSON_IsObject(member))
                    continue;
                cell_text(member, codes, sizeof codes);
                if (strcmp(member->string, "codes") == 0)
                    cJSON_ReplaceItemInObjectCaseSensitive(row, "codes", cJSON_CreateString(codes));
                else
                    cJSON_Delete(cJSON_DetachItemViaPointer(row, member));
            }
        }
    }
}

/* Parameters become words of one cell. */
static void reshape_methods(cJSON *result)
{
    cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(result, "methods"))
    {
        const cJSON *p;
        cJSON *names = cJSON_CreateArray();
        char cell[CELL];
        cJSON_ArrayForEach(p, cJSON_GetObjectItemCaseSensitive(row, "params"))
        {
            const cJSON *name = cJSON_GetObjectItemCaseSensitive(p, "name");
            cJSON_AddItemToArray(names, cJSON_CreateString(cJSON_GetStringValue(name)));
        }
        cell_text(names, cell, sizeof cell);
        cJSON_Delete(names);
        cJSON_DeleteItemFromObjectCaseSensitive(row, "summary");
        cJSON_ReplaceItemInObjectCaseSensitive(row, "params", cJSON_CreateString(cell));
    }
}

/* Lists with a name above each; an empty one says so. */
static void print_lists(const cJSON *result)
{
    const cJSON *list;
    cJSON_ArrayForEach(list, result)
    {
        printf(list->child ? "%s\n" : "%s  nothing\n", list->string);
        if (list->child)
            print_table(list, 2);
    }
}

static void print_human(command_id id, cJSON *result)
{
    const cJSON *list;
    if (id == CMD_call) {
        print_json_line(result);
        return;
    }
    if (id == CMD_config_reload) {
        print_lists(result);
        return;
    }
    if (id == CMD_stats_get)
        reshape_stats(result);
    if (id == CMD_rpc_discover)
        reshape_methods(result);
    list = only_list(result);
    if (list && !list->child)
        printf("no %s\n", list->string);
    else if (list)
        print_rows(list, 0);
    else if (result->child && !result->child->next && cJSON_IsObject(result->child))
        print_members(result->child, 0);
    else
        print_members(result, 0);
}

/* ---- One command ------------------------------------------------------------------------------
 */

static int print_error(const options *o, const connection *c, const cJSON *error)
{
    char cell[CELL];
    if (o->json) {
        char *text = cJSON_PrintUnformatted(error);
        fprintf(stderr, "%s\n", text ? text : "");
        cJSON_free(text);
        return EXIT_REFUSED;
    }
    cell_text(cJSON_GetObjectItemCaseSensitive(error, "message"), cell, sizeof cell);
    fprintf(stderr, "attnctl: %s: %s\n", c->path, *cell ? cell : "refused without a word");
    return EXIT_REFUSED;
}

/* The daemon holds its end until it leaves. */
static void wait_until_gone(connection *c, const options *o)
{
    c->deadline_ms = now_ms() + (uint64_t)(o->timeout_ms < 0 ? WAIT_TIMEOUT_MS : o->timeout_ms);
    for (;;) {
        char byte;
        wait_for(c, POLLIN);
        ssize_t n = recv(c->fd, &byte, 1, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return;
    }
}

/* The result of a call without parameters that has no reason to be refused; or ends the process. */
static cJSON *get(connection *c, const options *o, const char *method)
{
    cJSON *answer = call(c, o, method, cJSON_CreateObject());
    cJSON *result = cJSON_DetachItemFromObjectCaseSensitive(answer, "result");
    if (!result)
        exit(print_error(o, c, cJSON_GetObjectItemCaseSensitive(answer, "error")));
    cJSON_Delete(answer);
    keep_digits(result);
    return result;
}

/* A round begins: on a terminal in place of the last one, else below it. */
static void begin_round(const options *o, int64_t round)
{
    if (!o->json && isatty(STDOUT_FILENO))
        printf("\033[H\033[2J");
    else if (!o->json && round)
        printf("\n");
}

static void sleep_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    fflush(stdout);
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}

static int watch(options *o, connection *c)
{
    for (int64_t round = 0; !o->count || round < o->count; round++) {
        if (round)
            sleep_ms(o->interval_ms);
        cJSON *result = get(c, o, commands[o->command].method);
        begin_round(o, round);
        if (o->json)
            print_json(result);
        else
            print_human(o->command, result);
        cJSON_Delete(result);
    }
    return EXIT_OK;
}

/* ---- top --------------------------------------------------------------------------------------
 */

static ctl_look look(connection *c, const options *o)
{
    ctl_look out = {.stats = get(c, o, "stats.get"), .sessions = get(c, o, "sessions.list")};
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    out.at_s = (double)t.tv_sec + (double)t.tv_nsec / 1e9;
    return out;
}

static void look_fini(ctl_look *l)
{
    cJSON_Delete(l->stats);
    cJSON_Delete(l->sessions);
}

/* "attnd 0.1.0  cpu avx2  2 threads  ready  up 75 s". */
static void print_daemon(const cJSON *info)
{
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(info, "device");
    const cJSON *why = cJSON_GetObjectItemCaseSensitive(info, "why");
    const char *waits = cJSON_GetStringValue(why);
    char version[64], backend[32], isa[32], threads[32], uptime[32];
    cell_text(cJSON_GetObjectItemCaseSensitive(info, "version"), version, sizeof version);
    cell_text(cJSON_GetObjectItemCaseSensitive(device, "backend"), backend, sizeof backend);
    cell_text(cJSON_GetObjectItemCaseSensitive(device, "isa"), isa, sizeof isa);
    cell_text(cJSON_GetObjectItemCaseSensitive(device, "n_threads"), threads, sizeof threads);
    cell_text(cJSON_GetObjectItemCaseSensitive(info, "uptime_ms"), uptime, sizeof uptime);
    printf("attnd %s  %s %s  %s threads  %s  up %lld s\n", version, backend, isa, threads,
           waits && *waits ? waits : "ready", strtoll(uptime, NULL, 10) / 1000);
}

/* Members side by side: "requests/s 20.1  refused/s 0". */
static void print_pairs(const cJSON *object, const char *suffix)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        char cell[64];
        cell_text(item, cell, sizeof cell);
        printf("%s%s%s %s", item == object->child ? "" : "  ", item->string, suffix, cell);
    }
    printf("\n");
}

static void print_top(const cJSON *info, const cJSON *view)
{
    static const char *const lists[] = {"ops", "kernels", "sessions"};
    print_daemon(info);
    print_pairs(cJSON_GetObjectItemCaseSensitive(view, "rates"), "/s");
    print_pairs(cJSON_GetObjectItemCaseSensitive(view, "gauges"), "");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(view, lists[i]);
        printf("\n");
        if (list->child)
            print_table(list, 0);
        else
            printf("no %s\n", lists[i]);
    }
}

static int top(options *o, connection *c)
{
    ctl_look before = look(c, o);
    for (int64_t round = 0; !o->count || round < o->count; round++) {
        sleep_ms(o->interval_ms);
        ctl_look after = look(c, o);
        cJSON *info = get(c, o, "server.info"), *view = ctl_top(&before, &after);
        begin_round(o, round);
        if (o->json)
            print_json_line(view);
        else
            print_top(info, view);
        cJSON_Delete(view);
        cJSON_Delete(info);
        look_fini(&before);
        before = after;
    }
    look_fini(&before);
    return EXIT_OK;
}

/* ---- Run --------------------------------------------------------------------------------------
 */

static int ask_once(options *o, connection *c)
{
    cJSON *answer = call(c, o, o->method ? o->method : commands[o->command].method, o->params);
    cJSON *result = cJSON_GetObjectItemCaseSensitive(answer, "result");
    int code = EXIT_OK;
    o->params = NULL;
    keep_digits(answer);
    if (!cJSON_IsObject(result)) {
        code = print_error(o, c, cJSON_GetObjectItemCaseSensitive(answer, "error"));
    } else {
        if (o->command == CMD_server_ready &&
            !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(result, "ready")))
            code = EXIT_REFUSED;
        if (o->json)
            print_json(result);
        else
            print_human(o->command, result);
        if (o->wait)
            wait_until_gone(c, o);
    }
    cJSON_Delete(answer);
    return code;
}

static int run(options *o)
{
    connection c = {.fd = -1};
    open_connection(&c, o);
    int code = o->command == CMD_top ? top(o, &c) : o->watch ? watch(o, &c) : ask_once(o, &c);
    free(c.text);
    close(c.fd);
    return code;
}

int main(int argc, char **argv)
{
    options o;
    int code = EXIT_OK;
    read_options(&o, argc, argv);
    if (o.command == CMD_completion)
        print_completion();
    else if (o.command == CMD_version)
        printf(o.json ? "{\"version\":\"%s\",\"commit\":\"%s\"}\n" : "attnctl %s (%s)\n",
               ATTND_VERSION, ATTND_COMMIT);
    else
        code = run(&o);
    cJSON_Delete(o.params);
    return code;
}
