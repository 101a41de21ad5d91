/* test_srv_control_methods.c: what each method of the control socket says and does. */
#include "tests/support/control.h"

/* ---- Methods ---- */

static void ready_says_why_not(void **state)
{
    fixture *f = *state;
    assert_string_equal(ask(f, CALL("server.ready", "{}")),
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"ready\":true,\"why\":\"\"}}");
    f->is_ready = false;
    assert_string_equal(
        ask(f, CALL("server.ready", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"ready\":false,\"why\":\"draining\"}}");
}

static void info_tells_who_answers(void **state)
{
    fixture *f = *state;
    cJSON *json, *result = result_of(f, CALL("server.info", "{}"), &json);
    ker_device_info info;
    ker_device_describe(f->device, &info);
    assert_true(strlen(text_at(result, "version")) > 0);
    assert_string_equal(text_at(result, "instance"), "18446744073709551614");
    assert_string_equal(text_at(result, "runtime_dir"), f->dir);
    assert_int_equal(number_at(result, "pid"), getpid());
    assert_true(number_at(result, "uptime_ms") < 60000);
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(result, "device");
    assert_string_equal(text_at(device, "backend"), info.backend);
    assert_string_equal(text_at(device, "isa"), info.isa);
    assert_string_equal(text_at(device, "workspace_bytes"), "1048576");
    assert_int_equal(number_at(device, "n_slots"), 1);
    const cJSON *ops = cJSON_GetObjectItemCaseSensitive(result, "ops");
    assert_string_equal(cJSON_GetArrayItem(ops, 0)->valuestring, "ping");
    cJSON_Delete(json);
}

static void drain_and_shutdown_act_once_their_answer_is_out(void **state)
{
    fixture *f = *state;
    assert_string_equal(ask(f, CALL("server.drain", "{}")),
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"draining\":true}}");
    assert_string_equal(ask(f, CALL("server.shutdown", "{}")),
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"leaving\":true}}");
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    for (int i = 0; i < 1000 && !f->n_shutdowns; i++)
        usleep(1000);
    assert_int_equal(f->n_drains, 1);
    assert_int_equal(f->n_shutdowns, 1);
    int fd = dial(f);
    say(fd, "{\"jsonrpc\":\"2.0\",\"method\":\"server.drain\"}\n" PING("2") "\n");
    assert_string_equal(hear(fd), PONG("2"));
    assert_int_equal(f->n_drains, 2);
    close(fd);
    assert_refused(f, CALL("server.drain", "{\"now\":1}"), -32602, "INVALID_ARGUMENT",
                   "BAD_MESSAGE", "params.now",
                   "params.now = given: server.drain takes no parameters");
    assert_int_equal(f->n_drains, 2);
}

static void discover_lists_every_method_with_its_parameters(void **state)
{
    cJSON *json, *result = result_of(*state, CALL("rpc.discover", "{}"), &json);
    const cJSON *methods = cJSON_GetObjectItemCaseSensitive(result, "methods"), *method;
    int n = 0, n_levels = 0;
    cJSON_ArrayForEach(method, methods)
    {
        n++;
        assert_true(strchr(text_at(method, "name"), '.') != NULL);
        assert_true(strlen(text_at(method, "summary")) > 0);
        const cJSON *params = cJSON_GetObjectItemCaseSensitive(method, "params");
        if (strcmp(text_at(method, "name"), "log.level") != 0)
            continue;
        n_levels++;
        assert_int_equal(cJSON_GetArraySize(params), 1);
        assert_string_equal(text_at(cJSON_GetArrayItem(params, 0), "name"), "level");
        assert_string_equal(text_at(cJSON_GetArrayItem(params, 0), "type"), "text");
    }
    int rows = 0;
#define METHOD(id, name, command, ask, summary) rows++;
#define PARAM(id, name, type, presence, summary)
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
    assert_int_equal(n, rows);
    assert_int_equal(n_levels, 1);
    cJSON_Delete(json);
}

static void lists_show_what_the_engine_owns_with_wide_numbers_as_strings(void **state)
{
    fixture *f = *state;
    assert_string_equal(
        ask(f, CALL("sessions.list", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"sessions\":[{\"session\":7,\"client\":"
        "\"bench\",\"age_ms\":1234,\"leased\":true,\"n_requests\":99,\"n_in_flight\":1,"
        "\"n_models\":1,\"n_buffers\":2,\"buffer_bytes\":\"18446744073709551615\",\"pool_bytes\":"
        "\"4096\"}]}}");
    assert_string_equal(
        ask(f, CALL("models.list", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"models\":[{\"model\":"
        "\"18446744073709551615\",\"name\":\"m\",\"session\":7,\"n_layers\":4,\"n_pools\":1}]}}");
    assert_string_equal(
        ask(f, CALL("pools.list", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"pools\":[{\"model\":\"18446744073709551615\","
        "\"name\":\"main\",\"session\":7,\"owner\":\"client\",\"dtype\":\"bf16\",\"layout\":"
        "\"hnd\",\"n_layers\":4,\"block_size\":16,\"n_blocks\":100,\"n_free\":90,\"max_kv_len\":"
        "2147483647,\"block_bytes\":\"65536\",\"bytes\":\"1152921504606846976\"}]}}");
}

static void stats_count_and_reset(void **state)
{
    fixture *f = *state;
    uint64_t stages[SRV_N_STAGES] = {0};
    cJSON *json, *result;
    stages[SRV_STAGE_TOTAL] = 50000;
    srv_stats_add(SRV_COUNT_requests, 3);
    srv_stats_add(SRV_COUNT_received_bytes, (uint64_t)1 << 60);
    srv_stats_request(MSG_OP_attend, ATTND_OK, stages);
    srv_stats_request(MSG_OP_attend, ATTND_INVALID_ARGUMENT, stages);
    srv_stats_gauge(SRV_GAUGE_buffer_bytes, 4096);
    result = result_of(f, CALL("stats.get", "{}"), &json);
    const cJSON *at = cJSON_GetObjectItemCaseSensitive(result, "counters");
    assert_int_equal(number_at(at, "requests"), 3);
    assert_string_equal(text_at(at, "received_bytes"), "1152921504606846976");
    at = cJSON_GetObjectItemCaseSensitive(result, "gauges");
    assert_string_equal(text_at(at, "buffer_bytes"), "4096");
    at = cJSON_GetObjectItemCaseSensitive(result, "ops");
    assert_int_equal(cJSON_GetArraySize(at), 1);
    at = cJSON_GetArrayItem(at, 0);
    assert_string_equal(text_at(at, "op"), "attend");
    assert_int_equal(number_at(at, "count"), 2);
    const cJSON *codes = cJSON_GetObjectItemCaseSensitive(at, "codes");
    assert_int_equal(cJSON_GetArraySize(codes), 2);
    assert_int_equal(number_at(codes, "INVALID_ARGUMENT"), 1);
    const cJSON *total = cJSON_GetObjectItemCaseSensitive(at, "total_us");
    assert_int_equal(number_at(total, "count"), 2);
    assert_true(number_at(total, "p50") > 49 && number_at(total, "p50") <= 50);
    assert_null(cJSON_GetObjectItemCaseSensitive(at, "plan_us"));
    cJSON_Delete(json);
    assert_string_equal(ask(f, CALL("stats.reset", "{}")),
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"reset\":true}}");
    result = result_of(f, CALL("stats.get", "{}"), &json);
    assert_int_equal(number_at(cJSON_GetObjectItemCaseSensitive(result, "counters"), "requests"),
                     0);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(result, "ops")), 0);
    assert_string_equal(text_at(cJSON_GetObjectItemCaseSensitive(result, "gauges"), "buffer_bytes"),
                        "4096");
    cJSON_Delete(json);
    srv_stats_gauge(SRV_GAUGE_buffer_bytes, -4096);
}

static void plans_are_listed_with_their_versions(void **state)
{
    assert_string_equal(
        ask(*state, CALL("plans.list", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"plans\":[{\"plan\":\"18446744073709551615\","
        "\"model\":\"18446744073709551614\",\"session\":7,\"version\":41,\"n_seqs\":3,"
        "\"n_versions\":2}]}}");
}

static void a_reload_lists_what_is_in_force_and_what_waits(void **state)
{
    fixture *f = *state;
    assert_string_equal(
        ask(f, CALL("config.reload", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"applied\":[{\"key\":\"log.slow\",\"was\":"
        "\"1s\",\"now\":\"5ms\"}],\"needs_restart\":[{\"key\":\"data.contexts\",\"was\":\"72\","
        "\"now\":\"80\"}]}}");
    f->config_is_broken = true;
    assert_string_equal(
        ask(f, CALL("config.reload", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32000,\"message\":\"attnd.json:3:5: "
        "log.slow = x: milliseconds\",\"data\":{\"code\":\"INVALID_ARGUMENT\",\"reason\":"
        "\"BAD_CONFIG\",\"field\":\"\",\"hint\":\"log.slow = x: "
        "milliseconds\"}}}");
}

static void config_and_log_level_tell_what_is_in_force(void **state)
{
    fixture *f = *state;
    cJSON *json, *result;
    assert_string_equal(
        ask(f, CALL("log.level", "{\"level\":\"warn\"}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"level\":\"warn\",\"was\":\"error\"}}");
    assert_string_equal(
        ask(f, CALL("log.level", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"level\":\"warn\",\"was\":\"warn\"}}");
    assert_string_equal(
        ask(f, CALL("config.get", "{\"key\":\"log.level\"}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"config\":{\"log.level\":\"warn\"}}}");
    result = result_of(f, CALL("config.get", "{}"), &json);
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(result, "config");
    int n = 0;
    while (cfg_key_at((size_t)n))
        n++;
    assert_int_equal(cJSON_GetArraySize(all), n);
    assert_string_equal(text_at(all, "device.slots"), "64");
    cJSON_Delete(json);
}

static void kernels_are_listed_with_what_they_serve(void **state)
{
    cJSON *json, *result = result_of(*state, CALL("kernels.list", "{}"), &json);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(result, "kernels");
    assert_int_equal(cJSON_GetArraySize(list), ker_n_kernels());
    for (size_t i = 0; i < ker_n_kernels(); i++) {
        const cJSON *at = cJSON_GetArrayItem(list, (int)i);
        assert_string_equal(text_at(at, "kernel"), ker_kernel_name(ker_kernel_at(i)));
        assert_true(strlen(text_at(at, "family")) > 0);
        assert_true(strlen(text_at(at, "needs")) > 0);
    }
    cJSON_Delete(json);
}

/* ---- kernels.explain ---- */

static const cJSON *phase_at(const cJSON *result, int i)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(result, "phases"), i);
}

static void explain_chooses_a_kernel_and_says_why_not_the_others(void **state)
{
    cJSON *json,
        *result =
            result_of(*state,
                      CALL("kernels.explain",
                           "{\"n_heads\":8,\"n_kv_heads\":2,\"head_dim\":64,\"dtype\":\"f32\","
                           "\"block_size\":16,\"q_lens\":[32,1,1],\"kv_lens\":[32,100,7]}"),
                      &json);
    const cJSON *problem = cJSON_GetObjectItemCaseSensitive(result, "problem");
    assert_int_equal(number_at(problem, "n_contexts"), 1);
    assert_int_equal(number_at(problem, "n_tokens"), 34);
    assert_int_equal(number_at(problem, "n_blocks"), 2 + 7 + 1);
    const cJSON *floor = cJSON_GetObjectItemCaseSensitive(result, "floor");
    /* K and V of 139 keys, 2 kv heads, 64 channels, and q and out of 34 tokens, 8 heads, in fp32.
     */
    assert_true(strtoull(text_at(floor, "bytes"), NULL, 10) >=
                (139 * 2 * 64 * 2 + 34 * 8 * 64 * 2) * 4);
    /* Visible pairs: 32·33/2 + 100 + 7. */
    assert_true(strtoull(text_at(floor, "flops"), NULL, 10) >= (528 + 107) * 8 * 2 * 128);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(result, "phases")), 2);
    for (int i = 0; i < 2; i++) {
        const cJSON *phase = phase_at(result, i), *verdict;
        const cJSON *all = cJSON_GetObjectItemCaseSensitive(phase, "kernels");
        const char *chosen = text_at(phase, "kernel");
        bool chosen_serves = false;
        assert_string_equal(text_at(phase, "phase"), i ? "generation" : "context");
        assert_int_equal(number_at(phase, "n_seqs"), i ? 2 : 1);
        assert_true(number_at(phase, "n_items") > 0);
        assert_true(number_at(phase, "n_splits") >= 1);
        assert_int_equal(cJSON_GetArraySize(all), ker_n_kernels());
        cJSON_ArrayForEach(verdict, all)
        {
            bool serves = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(verdict, "serves"));
            chosen_serves |= serves && strcmp(text_at(verdict, "kernel"), chosen) == 0;
            if (serves)
                assert_true(number_at(verdict, "cost_us") >= 0);
            else
                assert_true(strlen(text_at(verdict, "reason")) > 0);
        }
        assert_true(chosen_serves);
    }
    cJSON_Delete(json);
}

static void explain_takes_a_layer_of_an_open_model(void **state)
{
    cJSON *json, *result = result_of(*state,
                                     CALL("kernels.explain",
                                          "{\"model\":\"18446744073709551615\",\"layer\":3,"
                                          "\"n_seqs\":4,\"kv_len\":4096,\"n_splits\":4}"),
                                     &json);
    const cJSON *problem = cJSON_GetObjectItemCaseSensitive(result, "problem");
    assert_int_equal(number_at(problem, "n_heads"), 8);
    assert_string_equal(text_at(problem, "kv_dtype"), "f32");
    assert_int_equal(number_at(problem, "window"), 128);
    assert_int_equal(number_at(problem, "n_seqs"), 4);
    assert_int_equal(number_at(problem, "n_contexts"), 0);
    assert_string_equal(text_at(phase_at(result, 0), "phase"), "generation");
    cJSON_Delete(json);
    assert_refused(*state,
                   CALL("kernels.explain", "{\"model\":\"18446744073709551615\",\"layer\":4,"
                                           "\"kv_len\":1}"),
                   -32000, "NOT_FOUND", "NO_SUCH_HANDLE", "params.model",
                   "params.model = 18446744073709551615: no open model has this handle and a layer "
                   "4; models.list has those that are open");
}

static void explain_says_what_no_kernel_serves(void **state)
{
    cJSON *json, *result = result_of(*state,
                                     CALL("kernels.explain",
                                          "{\"n_heads\":2,\"head_dim\":64,\"dtype\":\"i8\","
                                          "\"kv_dtype\":\"f32\",\"kv_len\":10}"),
                                     &json);
    const cJSON *refused = cJSON_GetObjectItemCaseSensitive(result, "refused");
    assert_string_equal(text_at(refused, "code"), "UNIMPLEMENTED");
    assert_string_equal(text_at(refused, "reason"), "UNSUPPORTED");
    const cJSON *phase = phase_at(result, 0), *verdict;
    assert_null(cJSON_GetObjectItemCaseSensitive(phase, "kernel"));
    cJSON_ArrayForEach(verdict, cJSON_GetObjectItemCaseSensitive(phase, "kernels"))
        assert_true(strlen(text_at(verdict, "reason")) > 0);
    cJSON_Delete(json);
}

static void a_wrong_problem_is_refused_by_name(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *params, *reason, *text;
        int code;
    } cases[] = {
        {"{\"kv_len\":1}", "BAD_MESSAGE",
         "params.n_heads = absent: give a model, or n_heads and head_dim", -32602},
        {"{\"n_heads\":1,\"kv_len\":1}", "BAD_MESSAGE",
         "params.head_dim = absent: give a model, or n_heads and head_dim", -32602},
        {"{\"n_heads\":0,\"head_dim\":8,\"kv_len\":1}", "BAD_GEOMETRY",
         "params.n_heads = 0: 1..65535", -32000},
        {"{\"n_heads\":1,\"head_dim\":4097,\"kv_len\":1}", "BAD_GEOMETRY",
         "params.head_dim = 4097: 1..1024", -32000},
        {"{\"n_heads\":3,\"n_kv_heads\":2,\"head_dim\":8,\"kv_len\":1}", "BAD_GEOMETRY",
         "params.n_heads = 3: a multiple of n_kv_heads = 2", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"dtype\":\"f64\",\"kv_len\":1}", "BAD_MESSAGE",
         "params.dtype = f64: f32, f16, bf16, e4m3, e5m2, i8", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"layer\":1,\"kv_len\":1}", "BAD_MESSAGE",
         "params.layer = given: it needs a model", -32602},
        {"{\"model\":\"1\",\"head_dim\":8,\"kv_len\":1}", "BAD_MESSAGE",
         "params.head_dim = given: the model says it; leave one of the two out", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"mask\":\"tree\",\"kv_len\":1}", "BAD_MESSAGE",
         "params.mask = tree: causal or full", -32602},
        {"{\"n_heads\":1,\"head_dim\":8}", "BAD_MESSAGE",
         "params.kv_len = absent: give kv_len, or q_lens and kv_lens", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_lens\":[1]}", "BAD_MESSAGE",
         "params.kv_lens = absent: q_lens and kv_lens go together", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"kv_lens\":[1]}", "BAD_MESSAGE",
         "params.q_lens = absent: q_lens and kv_lens go together", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_lens\":[1],\"kv_lens\":[1],\"n_seqs\":1}",
         "BAD_MESSAGE", "params.n_seqs = given: q_lens says it; leave one of the two out", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_lens\":[1,1],\"kv_lens\":[1]}", "BAD_LENGTH",
         "params.kv_lens = 1 entries: q_lens has 2", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_lens\":[],\"kv_lens\":[]}", "BAD_LENGTH",
         "params.q_lens = 0 entries: 1..65536 sequences (limits.max_sequences)", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"n_seqs\":65537,\"kv_len\":1}", "TOO_LARGE",
         "params.n_seqs = 65537: 1..65536 sequences (limits.max_sequences)", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_len\":65537,\"kv_len\":65537}", "TOO_LARGE",
         "params.q_lens = 65537 tokens: at most 65536 (limits.max_tokens)", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"kv_len\":1,\"n_contexts\":2}", "BAD_PHASE",
         "params.n_contexts = 2: there are 1 sequences", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_len\":3,\"kv_len\":2,\"n_contexts\":0}", "BAD_LENGTH",
         "params.kv_lens[0] = 2: a generation of 3 query tokens sees them at least", -32000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[512], field[64];
        snprintf(line, sizeof line, CALL("kernels.explain", "%s"), cases[i].params);
        snprintf(field, sizeof field, "%.*s", (int)strcspn(cases[i].text, " "), cases[i].text);
        assert_refused(f, line, cases[i].code, "INVALID_ARGUMENT", cases[i].reason, field,
                       cases[i].text);
    }
}

static void a_block_size_that_no_pool_has_is_refused(void **state)
{
    const char *answer = ask(*state, CALL("kernels.explain", "{\"n_heads\":1,\"head_dim\":8,"
                                                             "\"block_size\":3,\"kv_len\":1}"));
    assert_non_null(strstr(answer, "\"params.block_size = 3: "));
    assert_non_null(strstr(answer, "\"BAD_GEOMETRY\""));
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVED(ready_says_why_not),
        SERVED(info_tells_who_answers),
        SERVED(drain_and_shutdown_act_once_their_answer_is_out),
        SERVED(discover_lists_every_method_with_its_parameters),
        SERVED(lists_show_what_the_engine_owns_with_wide_numbers_as_strings),
        SERVED(stats_count_and_reset),
        SERVED(plans_are_listed_with_their_versions),
        SERVED(a_reload_lists_what_is_in_force_and_what_waits),
        SERVED(config_and_log_level_tell_what_is_in_force),
        SERVED(kernels_are_listed_with_what_they_serve),
        SERVED(explain_chooses_a_kernel_and_says_why_not_the_others),
        SERVED(explain_takes_a_layer_of_an_open_model),
        SERVED(explain_says_what_no_kernel_serves),
        SERVED(a_wrong_problem_is_refused_by_name),
        SERVED(a_block_size_that_no_pool_has_is_refused),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("srv_control_methods", tests, NULL, NULL);
}
