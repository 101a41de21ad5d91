/* attnctl.h: what attnctl's files share: the tables of commands, the options of one run, the
 * connection, printing.
 */
#ifndef ATTND_DAEMON_ATTNCTL_H
#define ATTND_DAEMON_ATTNCTL_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

enum {
    CTL_OK = 0,
    CTL_REFUSED = 1,
    CTL_USAGE = 2,
    CTL_NO_DAEMON = 3,
    CTL_TIMED_OUT = 4,
};

/* ---- The tables, from methods.def and attnctl.def: attnctl_commands.c ------------------------ */

typedef enum ctl_command_id {
#define METHOD(id, method, command, ask, summary) CTL_##id,
#define PARAM(id, name, type, presence, summary)
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
#define LOCAL(id, command, max_words, summary) CTL_##id,
#define FLAG(command, name, value, shape, id, summary)
#include "daemon/attnctl.def"
#undef LOCAL
#undef FLAG
    CTL_N_COMMANDS,
} ctl_command_id;

typedef struct ctl_options ctl_options;

typedef struct ctl_command {
    const char *name;   /* "": reached by another one's flag */
    const char *method; /* "": none, or several */
    size_t max_words;   /* kept in ctl_options.words; a method's words are its parameters */
    const char *summary;
    int (*run)(ctl_options *o); /* returns the exit status */
} ctl_command;

extern const ctl_command ctl_commands[CTL_N_COMMANDS];

typedef enum ctl_param_type { HANDLE, INT, INTS, TEXT } ctl_param_type;

typedef struct ctl_param {
    ctl_command_id command;
    const char *name;
    ctl_param_type type;
    const char *summary;
} ctl_param;

enum {
    CTL_N_PARAMS = 0
#define METHOD(id, method, command, ask, summary)
#define PARAM(id, name, type, presence, summary) +1
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
};

extern const ctl_param ctl_params[CTL_N_PARAMS];

typedef enum ctl_flag_id {
    CTL_FLAG_SOCKET = 2000, /* beyond every parameter's number and every letter */
    CTL_FLAG_DIR,
    CTL_FLAG_JSON,
    CTL_FLAG_TIMEOUT,
    CTL_FLAG_MAN,
    CTL_FLAG_RESET,
    CTL_FLAG_WATCH,
    CTL_FLAG_INTERVAL,
    CTL_FLAG_COUNT,
    CTL_FLAG_WAIT,
    CTL_FLAG_PLANS,
    CTL_FLAG_EXACT,
    CTL_FLAG_ORACLE,
} ctl_flag_id;

/* What attnctl itself adds to a command. */
typedef struct ctl_flag {
    ctl_command_id command;
    const char *name;
    int value;         /* as getopt_long says it */
    const char *shape; /* of its value, for a reader */
    ctl_flag_id id;
    const char *summary;
} ctl_flag;

enum {
    CTL_N_FLAGS = 0
#define LOCAL(id, command, max_words, summary)
#define FLAG(command, name, value, shape, id, summary) +1
#include "daemon/attnctl.def"
#undef LOCAL
#undef FLAG
};

extern const ctl_flag ctl_flags[CTL_N_FLAGS];

/* The commands that are no method. */
#define LOCAL(id, command, max_words, summary) int ctl_run_##id(ctl_options *o);
#define FLAG(command, name, value, shape, id, summary)
#include "daemon/attnctl.def"
#undef LOCAL
#undef FLAG

/* Every method: one call, or with --watch one a round. */
int ctl_run_method(ctl_options *o);

/* ---- Options: attnctl_options.c -------------------------------------------------------------- */

struct ctl_options {
    const char *socket, *dir;
    bool json, reset, wait, watch;
    bool plans, exact, oracle; /* of check */
    int64_t timeout_ms;        /* -1: not given */
    int64_t interval_ms;
    bool has_interval;
    int64_t count; /* rounds of watch and top; 0: until interrupted */
    ctl_command_id command;
    const char *
        *words; /* of a command that is no method: words[0 .. n_words), n_words <= max_words */
    size_t n_words;
    cJSON *params; /* object */
};

/* Reads the command line, or ends the process with CTL_USAGE; the caller deletes o->params and
 * frees o->words, whose texts are argv's. */
void ctl_read_options(ctl_options *o, int argc, char **argv);

/* Says what is wrong on the command line and ends the process with CTL_USAGE. */
_Noreturn void ctl_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- Help: attnctl_help.c -------------------------------------------------------------------- */

void ctl_print_help(void);
void ctl_print_command_help(ctl_command_id id);

/* The commands as scdoc markup: what attnctl(1) says of them. */
void ctl_print_man(void);

/* ---- The connection: attnctl_call.c ---------------------------------------------------------- */

typedef struct ctl_connection {
    int fd;
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    uint64_t deadline_ms;
    char *text; /* received */
    size_t n;
} ctl_connection;

/* Connects to the first place that has a socket, or names every one tried and ends the process with
 * CTL_NO_DAEMON. */
void ctl_open(ctl_connection *c, const ctl_options *o);
void ctl_close(ctl_connection *c);

/* One call; returns the answer, an object with result or error, or ends the process. Takes params;
 * the caller deletes the answer. */
cJSON *ctl_call(ctl_connection *c, const ctl_options *o, const char *method, cJSON *params);

/* The result of a call without parameters that has no reason to be refused, or ends the process;
 * the caller deletes it. */
cJSON *ctl_get(ctl_connection *c, const ctl_options *o, const char *method);

/* Returns when the daemon hangs up, or ends the process with CTL_TIMED_OUT. */
void ctl_wait_until_gone(ctl_connection *c, const ctl_options *o);

/* Between two rounds of what repeats. */
void ctl_sleep_ms(int64_t ms);

/* ---- Printing: attnctl_print.c --------------------------------------------------------------- */

enum { CTL_CELL = 512 };

/* A scalar, or scalars side by side, as people read them; into buf, cut to fit. */
void ctl_cell_text(const cJSON *item, char *buf, size_t bytes);

void ctl_print_json_line(const cJSON *item);

/* One object a line: the items of the one list that a result is, or the result. */
void ctl_print_json(const cJSON *result);

/* Columns as wide as what is in them; numbers to the right, words to the left. */
void ctl_print_table(const cJSON *rows, int indent);

/* A command's result for people; rearranges it. */
void ctl_print_human(ctl_command_id id, cJSON *result);

/* The error of an answer, to stderr; returns CTL_REFUSED. */
int ctl_print_error(const ctl_options *o, const ctl_connection *c, const cJSON *error);

/* A round begins: on a terminal in place of the last one, else below it. */
void ctl_begin_round(const ctl_options *o, int64_t round);

#endif
