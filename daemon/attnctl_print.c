/* attnctl_print.c: results as JSON lines or, by their shape, as tables.
 */
#include "daemon/attnctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ctl_print_json_line(const cJSON *item)
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

void ctl_print_json(const cJSON *result)
{
    const cJSON *list = only_list(result), *item;
    if (!list) {
        ctl_print_json_line(result);
        return;
    }
    cJSON_ArrayForEach(item, list) ctl_print_json_line(item);
}

/* A scalar, or scalars side by side, as people read them; into buf, cut to fit. */
void ctl_cell_text(const cJSON *item, char *buf, size_t bytes)
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
            ctl_cell_text(part, one, sizeof one);
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

enum { MAX_COLUMNS = 24 };

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
void ctl_print_table(const cJSON *rows, int indent)
{
    const char *names[MAX_COLUMNS];
    char cell[CTL_CELL];
    int widths[MAX_COLUMNS];
    size_t n = list_columns(rows, names);
    const cJSON *row;
    for (size_t i = 0; i < n; i++) {
        bool is_number = true;
        widths[i] = text_width(names[i]);
        cJSON_ArrayForEach(row, rows)
        {
            ctl_cell_text(cJSON_GetObjectItemCaseSensitive(row, names[i]), cell, sizeof cell);
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
            ctl_cell_text(cJSON_GetObjectItemCaseSensitive(row, names[i]), cell, sizeof cell);
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
        ctl_print_table(rows, indent);
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
    char cell[CTL_CELL];
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
        ctl_cell_text(member, cell, sizeof cell);
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
                char codes[CTL_CELL];
                next = member->next;
                if (!cJSON_IsObject(member))
                    continue;
                ctl_cell_text(member, codes, sizeof codes);
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
        char cell[CTL_CELL];
        cJSON_ArrayForEach(p, cJSON_GetObjectItemCaseSensitive(row, "params"))
        {
            const cJSON *name = cJSON_GetObjectItemCaseSensitive(p, "name");
            cJSON_AddItemToArray(names, cJSON_CreateString(cJSON_GetStringValue(name)));
        }
        ctl_cell_text(names, cell, sizeof cell);
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
            ctl_print_table(list, 2);
    }
}

void ctl_print_human(ctl_command_id id, cJSON *result)
{
    const cJSON *list;
    if (id == CTL_call) {
        ctl_print_json_line(result);
        return;
    }
    if (id == CTL_config_reload) {
        print_lists(result);
        return;
    }
    if (id == CTL_stats_get)
        reshape_stats(result);
    if (id == CTL_rpc_discover)
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

int ctl_print_error(const ctl_options *o, const ctl_connection *c, const cJSON *error)
{
    char cell[CTL_CELL];
    if (o->json) {
        char *text = cJSON_PrintUnformatted(error);
        fprintf(stderr, "%s\n", text ? text : "");
        cJSON_free(text);
        return CTL_REFUSED;
    }
    ctl_cell_text(cJSON_GetObjectItemCaseSensitive(error, "message"), cell, sizeof cell);
    fprintf(stderr, "attnctl: %s: %s\n", c->path, *cell ? cell : "refused without a word");
    return CTL_REFUSED;
}

/* A round begins: on a terminal in place of the last one, else below it. */
void ctl_begin_round(const ctl_options *o, int64_t round)
{
    if (!o->json && isatty(STDOUT_FILENO))
        printf("\033[H\033[2J");
    else if (!o->json && round)
        printf("\n");
}
