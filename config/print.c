/* print.c: the keys for people: --help, and the config file with every default. */
#include <string.h>

#include "config/keys.h"
#include "config/value.h"

enum { COLUMNS = 100 };

/* Words of text, wrapped, each line behind prefix. */
static void print_wrapped(FILE *out, const char *prefix, const char *text)
{
    size_t column = COLUMNS;
    const char *lead = "";
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column + 1 + n > COLUMNS) {
            fprintf(out, "%s%s", lead, prefix);
            column = strlen(prefix);
            lead = "\n";
        } else {
            fputc(' ', out);
            column++;
        }
        fwrite(text, 1, n, out);
        column += n;
        text += n + (text[n] == ' ');
    }
    fputc('\n', out);
}

static void print_range(FILE *out, const char *prefix, const cfg_key *key)
{
    char range[CFG_VALUE_TEXT];
    cfg_value_range(key, range);
    if (range[0] || key->live)
        fprintf(out, "%s%s%s%s\n", prefix, range, range[0] && key->live ? "; " : "",
                key->live ? "can change while attnd runs" : "");
}

void cfg_help(FILE *out)
{
    cfg defaults;
    cfg_defaults(&defaults);
    for (size_t i = 0; i < cfg_n_keys; i++) {
        char value[CFG_VALUE_TEXT];
        cfg_value_text(&defaults, &cfg_keys[i], value);
        fprintf(out, "  --%s=%s\n", cfg_keys[i].name, value[0] ? value : "\"\"");
        print_wrapped(out, "        ", cfg_keys[i].help);
        print_range(out, "        ", &cfg_keys[i]);
    }
}

/* What scdoc would read as markup: an underscore underlines, a backslash escapes. */
static void print_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (strchr("_*\\#<", *text))
            fputc('\\', out);
        fputc(*text, out);
    }
}

void cfg_print_man(FILE *out)
{
    cfg defaults;
    cfg_defaults(&defaults);
    for (size_t i = 0; i < cfg_n_keys; i++) {
        const cfg_key *key = &cfg_keys[i];
        char value[CFG_VALUE_TEXT], range[CFG_VALUE_TEXT];
        cfg_value_text(&defaults, key, value);
        cfg_value_range(key, range);
        fputs("*", out);
        print_escaped(out, key->name);
        fputs("*\n\t", out);
        print_escaped(out, key->help);
        fputs(range[0] ? " Values: " : "", out);
        print_escaped(out, range);
        fputs(range[0] ? ". Default: " : " Default: ", out);
        print_escaped(out, value[0] ? value : "empty");
        fputs(key->live ? ". Can change while attnd runs.\n\n" : ".\n\n", out);
    }
}

/* Numbers stand bare, all else in quotes. No default holds what JSON would escape. */
static void print_key(FILE *out, const cfg *defaults, const cfg_key *key, bool last)
{
    char value[CFG_VALUE_TEXT];
    cfg_value_text(defaults, key, value);
    bool bare =
        key->type == CFG_TYPE_FLAG || (key->type != CFG_TYPE_TEXT && key->type != CFG_TYPE_CHOICE &&
                                       value[strspn(value, "0123456789")] == '\0');
    const char *quote = bare ? "" : "\"";
    print_wrapped(out, "        // ", key->help);
    print_range(out, "        // ", key);
    fprintf(out, "        \"%s\": %s%s%s%s\n", key->name + key->n_section + 1, quote, value, quote,
            last ? "" : ",");
}

void cfg_print_defaults(FILE *out)
{
    cfg defaults;
    cfg_defaults(&defaults);
    print_wrapped(out, "// ",
                  "attnd.json: every key at its default. A key may be left out; an unknown one is "
                  "refused. Bytes are a number or text with KiB, MiB, GiB, TiB (or K, M, G, T: the "
                  "same); times are a number of milliseconds or text with ms, s, min, h. The key "
                  "data.contexts is also the flag --data.contexts=N and the variable "
                  "ATTND_DATA_CONTEXTS; flags come before variables, variables before this file.");
    fputs("{\n", out);
    for (size_t i = 0; i < cfg_n_keys; i++) {
        const cfg_key *key = &cfg_keys[i], *next = i + 1 < cfg_n_keys ? key + 1 : NULL;
        bool first = i == 0 || strncmp(key[-1].name, key->name, key->n_section + 1) != 0;
        bool last = !next || strncmp(next->name, key->name, key->n_section + 1) != 0;
        if (first)
            fprintf(out, "    \"%.*s\": {\n", (int)key->n_section, key->name);
        print_key(out, &defaults, key, last);
        if (last)
            fprintf(out, "    }%s\n", next ? "," : "");
    }
    fputs("}\n", out);
}
