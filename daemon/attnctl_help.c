/* attnctl_help.c: what the tables of commands say to a reader: help, the manual page, completion.
 */
#include "daemon/attnctl.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

void ctl_print_help(void)
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
    for (size_t i = 0; i < CTL_N_COMMANDS; i++)
        if (*ctl_commands[i].name)
            printf("  %-10s  %s\n", ctl_commands[i].name, ctl_commands[i].summary);
    printf("\nExit status: 0 ok, 1 refused (or not ready), 2 usage, 3 no daemon, 4 no answer in "
           "time.\n");
}

/* "--watch[=S]", "--count N". */
static void flag_text(const ctl_flag *f, char *out, size_t bytes)
{
    if (f->value == no_argument)
        snprintf(out, bytes, "--%s", f->name);
    else if (f->value == required_argument)
        snprintf(out, bytes, "--%s %s", f->name, f->shape);
    else
        snprintf(out, bytes, "--%s[=%s]", f->name, f->shape);
}

void ctl_print_command_help(ctl_command_id id)
{
    static const char *const shapes[] = {
        [HANDLE] = "HANDLE", [INT] = "N", [INTS] = "N,N,...", [TEXT] = "TEXT"};
    printf("Usage: attnctl %s [ARGUMENT]...\n%s\n", ctl_commands[id].name,
           ctl_commands[id].summary);
    for (size_t i = 0; i < CTL_N_PARAMS; i++)
        if (ctl_params[i].command == id)
            printf("  --%-11s %-8s %s\n", ctl_params[i].name, shapes[ctl_params[i].type],
                   ctl_params[i].summary);
    for (size_t i = 0; i < CTL_N_FLAGS; i++)
        if (ctl_flags[i].command == id) {
            char flag[32];
            flag_text(&ctl_flags[i], flag, sizeof flag);
            printf("  %-22s %s\n", flag, ctl_flags[i].summary);
        }
}

/* The commands as scdoc markup: what attnctl(1) says of them. */
void ctl_print_man(void)
{
    for (size_t i = 0; i < CTL_N_COMMANDS; i++) {
        if (!*ctl_commands[i].name)
            continue;
        printf("*%s*", ctl_commands[i].name);
        for (size_t j = 0; j < CTL_N_FLAGS; j++)
            if (ctl_flags[j].command == (ctl_command_id)i) {
                char flag[32];
                flag_text(&ctl_flags[j], flag, sizeof flag);
                printf(" [%s]", flag);
            }
        printf("\n\t%s\n", ctl_commands[i].summary);
        for (size_t j = 0; j < CTL_N_FLAGS; j++)
            if (ctl_flags[j].command == (ctl_command_id)i)
                printf("\t*--%s*: %s.\n", ctl_flags[j].name, ctl_flags[j].summary);
        for (size_t j = 0; j < CTL_N_PARAMS; j++)
            if (ctl_params[j].command == (ctl_command_id)i) {
                printf("\t*--");
                for (const char *c = ctl_params[j].name; *c; c++)
                    printf(*c == '_' ? "\\_" : "%c", *c);
                printf("*: %s.\n", ctl_params[j].summary);
            }
        printf("\n");
    }
}

/* ---- Completion -------------------------------------------------------------------------------
 */

static void print_words(ctl_command_id id)
{
    printf("--json --timeout --help");
    for (size_t i = 0; i < CTL_N_PARAMS; i++)
        if (ctl_params[i].command == id)
            printf(" --%s", ctl_params[i].name);
    for (size_t i = 0; i < CTL_N_FLAGS; i++)
        if (ctl_flags[i].command == id)
            printf(" --%s", ctl_flags[i].name);
    if (id == CTL_completion)
        printf(" bash");
    if (id == CTL_log_level)
        printf(" error warn info debug");
    for (size_t i = 0; i < CTL_N_COMMANDS && id == CTL_call; i++)
        if (*ctl_commands[i].method)
            printf(" %s", ctl_commands[i].method);
}

int ctl_run_completion(ctl_options *o)
{
    const char *shell = o->n_words ? o->words[0] : "absent";
    if (strcmp(shell, "bash") != 0)
        ctl_usage("completion = %s: bash", shell);
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
    for (size_t i = 0; i < CTL_N_COMMANDS; i++)
        if (*ctl_commands[i].name)
            printf(" %s", ctl_commands[i].name);
    printf("' ;;\n");
    for (size_t i = 0; i < CTL_N_COMMANDS; i++) {
        if (!*ctl_commands[i].name)
            continue;
        printf("    %s) words='", ctl_commands[i].name);
        print_words((ctl_command_id)i);
        printf("' ;;\n");
    }
    printf("    esac\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
           "}\n"
           "complete -F _attnctl attnctl\n");
    return CTL_OK;
}
