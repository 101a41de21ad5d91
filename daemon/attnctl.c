/* attnctl.c: the operator's client of the control socket: flags → one JSON-RPC call → a table, or
 * one object a line.
 *
 * Knows no method by itself: commands, their parameters and their help are the rows of methods.def,
 * and what comes back is printed by its shape. What is more than one method is a row of
 * attnctl.def.
 */
#include "daemon/attnctl.h"

#include <stdio.h>
#include <stdlib.h>

static int watch(const ctl_options *o, ctl_connection *c)
{
    for (int64_t round = 0; !o->count || round < o->count; round++) {
        if (round)
            ctl_sleep_ms(o->interval_ms);
        cJSON *result = ctl_get(c, o, ctl_commands[o->command].method);
        ctl_begin_round(o, round);
        if (o->json)
            ctl_print_json(result);
        else
            ctl_print_human(o->command, result);
        cJSON_Delete(result);
    }
    return CTL_OK;
}

static int ask_once(ctl_options *o, ctl_connection *c, const char *method)
{
    cJSON *answer = ctl_call(c, o, method, o->params);
    cJSON *result = cJSON_GetObjectItemCaseSensitive(answer, "result");
    int code = CTL_OK;
    o->params = NULL;
    if (!cJSON_IsObject(result)) {
        code = ctl_print_error(o, c, cJSON_GetObjectItemCaseSensitive(answer, "error"));
    } else {
        if (o->command == CTL_server_ready &&
            !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(result, "ready")))
            code = CTL_REFUSED;
        if (o->json)
            ctl_print_json(result);
        else
            ctl_print_human(o->command, result);
        if (o->wait)
            ctl_wait_until_gone(c, o);
    }
    cJSON_Delete(answer);
    return code;
}

int ctl_run_method(ctl_options *o)
{
    ctl_connection c;
    ctl_open(&c, o);
    int code = o->watch ? watch(o, &c) : ask_once(o, &c, ctl_commands[o->command].method);
    ctl_close(&c);
    return code;
}

int ctl_run_call(ctl_options *o)
{
    ctl_connection c;
    if (o->n_words == 0)
        ctl_usage("call: a method is missing");
    if (o->n_words == 2) {
        cJSON_Delete(o->params);
        o->params = cJSON_ParseWithOpts(o->words[1], NULL, true);
        if (!cJSON_IsObject(o->params))
            ctl_usage("%s: a JSON object with the method's parameters", o->words[1]);
    }
    ctl_open(&c, o);
    int code = ask_once(o, &c, o->words[0]);
    ctl_close(&c);
    return code;
}

int ctl_run_version(ctl_options *o)
{
    printf(o->json ? "{\"version\":\"%s\",\"commit\":\"%s\"}\n" : "attnctl %s (%s)\n",
           ATTND_VERSION, ATTND_COMMIT);
    return CTL_OK;
}

int main(int argc, char **argv)
{
    ctl_options o;
    ctl_read_options(&o, argc, argv);
    int code = ctl_commands[o.command].run(&o);
    cJSON_Delete(o.params);
    free(o.words);
    return code;
}
