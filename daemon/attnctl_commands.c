/* attnctl_commands.c: attnctl's tables: its commands, their parameters and flags.
 */
#include "daemon/attnctl.h"

#include <assert.h>
#include <getopt.h>

const ctl_command ctl_commands[CTL_N_COMMANDS] = {
#define METHOD(id, method, command, ask, summary) {command, method, 0, summary, ctl_run_method},
#define PARAM(id, name, type, presence, summary)
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
#define LOCAL(id, command, max_words, summary) {command, "", max_words, summary, ctl_run_##id},
#define FLAG(command, name, value, shape, id, summary)
#include "daemon/attnctl.def"
#undef LOCAL
#undef FLAG
};

const ctl_param ctl_params[CTL_N_PARAMS] = {
#define METHOD(id, method, command, ask, summary)
#define PARAM(id, name, type, presence, summary) {CTL_##id, #name, type, summary},
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
};

const ctl_flag ctl_flags[CTL_N_FLAGS] = {
#define LOCAL(id, command, max_words, summary)
#define FLAG(command, name, value, shape, id, summary)                                             \
    {CTL_##command, name, value, shape, CTL_FLAG_##id, summary},
#include "daemon/attnctl.def"
#undef LOCAL
#undef FLAG
};

static_assert(CTL_N_PARAMS < 'h', "a parameter's number is an option's");
