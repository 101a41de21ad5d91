/* models.c: the models of a config file, field by field from tables of their names. */
#include "config/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/keys.h"
#include "config/models_read.h"

/* ---- Fields: what an object may have -----------------------------------------------------------
 */

enum { PATH = 96 };

typedef enum field_type {
    COUNT, /* a whole number into uint32_t */
    WIDE,  /* a whole number into uint64_t */
    REAL,  /* a number into double */
    NAME,  /* text into char[CFG_NAME] */
    WORD,  /* one of words into uint32_t, as its number */
    ROPE,  /* an object into cfg_rope */
    LIST,  /* read apart, by read_list */
} field_type;

typedef struct field {
    const char *name;
    field_type type;
    size_t offset;
    double lo, hi;
    const char *const *words; /* NULL ends them; "" is a number that nobody may write */
} field;

static const char *const PAIRINGS[] = {"none", "neox", "gptj", NULL};
static const char *const SCALINGS[] = {"none", "linear",   "dynamic_alpha", "dynamic_ntk", "llama3",
                                       "yarn", "longrope", "mrope",         NULL};
static const char *const LAYOUTS[] = {"hnd", "nhd", NULL};
static const char *const OWNERS[] = {"client", "server", NULL};
static const char *const DTYPES[] = {"", "f32", "f16", "bf16", NULL};
static const char *const KINDS[] = {
#define X(name, number, text) [number] = text,
    ATTND_LAYER_KIND_MAP(X)
#undef X
        NULL};

static const field ROPE_FIELDS[] = {
    {"pairing", WORD, offsetof(cfg_rope, pairing), 0, 0, PAIRINGS},
    {"dim", COUNT, offsetof(cfg_rope, dim), 2, 4096, NULL},
    {"theta", REAL, offsetof(cfg_rope, theta), 1, 1e12, NULL},
    {"scaling", WORD, offsetof(cfg_rope, scaling), 0, 0, SCALINGS},
    {0},
};

static const field LAYER_FIELDS[] = {
    {"kind", WORD, offsetof(cfg_layer, kind), 0, 0, KINDS},
    {"group", COUNT, offsetof(cfg_layer, group), 0, CFG_MAX_GROUPS - 1, NULL},
    {"n_heads", COUNT, offsetof(cfg_layer, n_heads), 1, 65535, NULL},
    {"n_kv_heads", COUNT, offsetof(cfg_layer, n_kv_heads), 1, 65535, NULL},
    {"head_dim", COUNT, offsetof(cfg_layer, head_dim), 1, 4096, NULL},
    {"head_dim_v", COUNT, offsetof(cfg_layer, head_dim_v), 1, 4096, NULL},
    {"sm_scale", REAL, offsetof(cfg_layer, sm_scale), 0, 1e6, NULL},
    {"q_scaling", REAL, offsetof(cfg_layer, q_scaling), 1e-6, 1e6, NULL},
    {"window", COUNT, offsetof(cfg_layer, window), 0, INT32_MAX, NULL},
    {"rope", ROPE, offsetof(cfg_layer, rope), 0, 0, NULL},
    {"softcap", REAL, offsetof(cfg_layer, softcap), 0, 1e6, NULL},
    {"chunk", COUNT, offsetof(cfg_layer, chunk), 0, INT32_MAX, NULL},
    {"count", COUNT, offsetof(cfg_layer, count), 1, CFG_MAX_LAYERS, NULL},
    {0},
};

static const field GROUP_FIELDS[] = {
    {"name", NAME, offsetof(cfg_group, name), 0, 0, NULL},
    {"block_size", COUNT, offsetof(cfg_group, block_size), 1, 1024, NULL},
    {"kv_dtype", WORD, offsetof(cfg_group, kv_dtype), 0, 0, DTYPES},
    {"layout", WORD, offsetof(cfg_group, layout), 0, 0, LAYOUTS},
    {"n_blocks", COUNT, offsetof(cfg_group, n_blocks), 1, INT32_MAX, NULL},
    {"bytes", WIDE, offsetof(cfg_group, bytes), 1, 1ll << 47, NULL},
    {"max_kv_len", COUNT, offsetof(cfg_group, max_kv_len), 1, INT32_MAX, NULL},
    {"window", COUNT, offsetof(cfg_group, window), 0, INT32_MAX, NULL},
    {0},
};

static const field MODEL_FIELDS[] = {
    {"name", NAME, offsetof(cfg_model, name), 0, 0, NULL},
    {"layers", LIST, 0, 0, 0, NULL},
    {"groups", LIST, 0, 0, 0, NULL},
    {"owner", WORD, offsetof(cfg_model, owner), 0, 0, OWNERS},
    {0},
};

/* ---- One value ---------------------------------------------------------------------------------
 */

/* "a whole number, 1..65535", "gqa | mla | cross | encoder". */
static void expected_text(const field *f, char *out, size_t bytes)
{
    size_t n = 0;
    switch (f->type) {
    case COUNT:
    case WIDE:
        snprintf(out, bytes, "a whole number, %.0f..%.0f", f->lo, f->hi);
        return;
    case REAL:
        snprintf(out, bytes, "a number, %g..%g", f->lo, f->hi);
        return;
    case NAME:
        snprintf(out, bytes, "text of 1..%d bytes", CFG_NAME - 1);
        return;
    case WORD:
        for (const char *const *word = f->words; *word; word++)
            if (**word)
                n += (size_t)snprintf(out + n, bytes - n, "%s%s", n ? " | " : "", *word);
        return;
    case ROPE:
        snprintf(out, bytes, "an object, {\"pairing\": \"neox\", \"theta\": 10000}");
        return;
    case LIST:
        snprintf(out, bytes, "an array of objects");
        return;
    }
}

static bool set_number(const field *f, const cJSON *value, void *place)
{
    double number = value->valuedouble;
    if (!cJSON_IsNumber(value) || !(number >= f->lo && number <= f->hi) ||
        (f->type != REAL && number != floor(number)))
        return false;
    if (f->type == COUNT)
        *(uint32_t *)place = (uint32_t)number;
    else if (f->type == WIDE)
        *(uint64_t *)place = (uint64_t)number;
    else
        *(double *)place = number;
    return true;
}

static bool set_word(const field *f, const cJSON *value, uint32_t *place)
{
    const char *text = cJSON_GetStringValue(value);
    for (uint32_t i = 0; text && *text && f->words[i]; i++)
        if (strcmp(f->words[i], text) == 0) {
            *place = i;
            return true;
        }
    return false;
}

static bool set_name(const cJSON *value, char place[CFG_NAME])
{
    const char *text = cJSON_GetStringValue(value);
    size_t n = text ? strlen(text) : 0;
    if (n == 0 || n >= CFG_NAME)
        return false;
    memcpy(place, text, n + 1);
    return true;
}

typedef struct reading {
    const cfg_source *source;
    cfg_models *out;
} reading;

static attnd_status refuse_value(const reading *r, const field *f, const char *path,
                                 cfg_member place, attnd_err *err)
{
    char expected[160];
    int n = (int)(place.end - place.value);
    expected_text(f, expected, sizeof expected);
    return cfg_source_fail(r->source, place.value, err, "%s.%s = %.*s: %s", path, f->name,
                           n < 60 ? n : 60, r->source->text + place.value, expected);
}

static attnd_status read_fields(const reading *r, const cJSON *object, size_t open,
                                const field *fields, const char *path, void *out, attnd_err *err);

static attnd_status read_field(const reading *r, const field *f, const cJSON *value,
                               cfg_member place, const char *path, void *out, attnd_err *err)
{
    void *at = (char *)out + f->offset;
    bool is_set = false;
    if (f->type == ROPE && cJSON_IsObject(value)) {
        char below[PATH];
        snprintf(below, sizeof below, "%.80s.rope", path);
        *(cfg_rope *)at = (cfg_rope){.pairing = ATTND_ROPE_NEOX, .theta = 10000};
        return read_fields(r, value, place.value, ROPE_FIELDS, below, at, err);
    }
    if (f->type == COUNT || f->type == WIDE || f->type == REAL)
        is_set = set_number(f, value, at);
    else if (f->type == WORD)
        is_set = set_word(f, value, at);
    else if (f->type == NAME)
        is_set = set_name(value, at);
    return is_set ? ATTND_OK : refuse_value(r, f, path, place, err);
}

static const field *find_field(const field *fields, const char *name, const char **nearest)
{
    size_t least = SIZE_MAX;
    for (; fields->name; fields++) {
        size_t distance = cfg_key_distance(name, fields->name);
        if (strcmp(name, fields->name) == 0)
            return fields;
        if (distance < least) {
            least = distance;
            *nearest = fields->name;
        }
    }
    return NULL;
}

/* Every member of an object that is no list. */
static attnd_status read_fields(const reading *r, const cJSON *object, size_t open,
                                const field *fields, const char *path, void *out, attnd_err *err)
{
    size_t i = 0;
    for (const cJSON *value = object->child; value; value = value->next, i++) {
        cfg_member place = cfg_source_member(r->source, open, i);
        const char *nearest = NULL;
        TRY(cfg_json_once(r->source, object, open, value, place, err));
        const field *f = find_field(fields, value->string, &nearest);
        if (!f)
            return cfg_source_fail(r->source, place.name, err,
                                   "%s.%.60s: no such field, nearest is %s", path, value->string,
                                   nearest);
        if (f->type != LIST)
            TRY(read_field(r, f, value, place, path, out, err));
    }
    return ATTND_OK;
}

/* ---- Lists -------------------------------------------------------------------------------------
 */

/* The member of an object and where its value stands; NULL: there is none. */
static const cJSON *member_of(const reading *r, const cJSON *object, size_t open, const char *name,
                              size_t *offset)
{
    size_t i = 0;
    for (const cJSON *item = object->child; item; item = item->next, i++)
        if (strcmp(item->string, name) == 0) {
            *offset = cfg_source_member(r->source, open, i).value;
            return item;
        }
    return NULL;
}

/* A list of objects of `bytes` each, zero but for what its fields say. */
typedef struct list {
    const char *name;
    const field *fields;
    size_t bytes;
    size_t most;
    void (*preset)(void *element);
} list;

static void preset_layer(void *element)
{
    *(cfg_layer *)element = (cfg_layer){.q_scaling = 1, .count = 1};
}

static void preset_group(void *element)
{
    *(cfg_group *)element = (cfg_group){.max_kv_len = INT32_MAX};
}

static const list LAYERS = {"layers", LAYER_FIELDS, sizeof(cfg_layer), CFG_MAX_LAYERS,
                            preset_layer};
static const list GROUPS = {"groups", GROUP_FIELDS, sizeof(cfg_group), CFG_MAX_GROUPS,
                            preset_group};

/* *out is malloc'ed at once and *n_out grows, so that what is half read can be freed. */
static attnd_status read_list(const reading *r, const list *l, const cJSON *array, size_t open,
                              const char *path, void **out, size_t *n_out, attnd_err *err)
{
    size_t n = cJSON_IsArray(array) ? (size_t)cJSON_GetArraySize(array) : SIZE_MAX;
    if (n > l->most)
        return cfg_source_fail(r->source, open, err, "%s.%s: an array of at most %zu objects", path,
                               l->name, l->most);
    *out = calloc(n + 1, l->bytes);
    if (!*out)
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory for its models", r->source->path);
    for (const cJSON *item = array->child; item; item = item->next, ++*n_out) {
        char below[PATH];
        size_t offset = cfg_source_element(r->source, open, *n_out);
        void *element = (char *)*out + *n_out * l->bytes;
        snprintf(below, sizeof below, "%.60s.%s[%zu]", path, l->name, *n_out);
        if (!cJSON_IsObject(item))
            return cfg_source_fail(r->source, offset, err, "%s: an object, {...}", below);
        l->preset(element);
        TRY(read_fields(r, item, offset, l->fields, below, element, err));
    }
    return ATTND_OK;
}

/* ---- What fields say together ------------------------------------------------------------------
 */

static attnd_status check_layer(const reading *r, const cfg_model *model, cfg_layer *layer,
                                size_t offset, const char *path, attnd_err *err)
{
    bool is_mla = layer->kind == ATTND_LAYER_MLA, is_encoder = layer->kind == ATTND_LAYER_ENCODER;
    if (!layer->n_heads || !layer->head_dim)
        return cfg_source_fail(r->source, offset, err, "%s.%s = absent: a layer needs it", path,
                               layer->n_heads ? "head_dim" : "n_heads");
    if (!layer->n_kv_heads)
        layer->n_kv_heads = is_mla ? 1 : layer->n_heads;
    if (layer->n_heads % layer->n_kv_heads)
        return cfg_source_fail(r->source, offset, err,
                               "%s.n_heads = %u: a multiple of n_kv_heads = %u", path,
                               layer->n_heads, layer->n_kv_heads);
    if (is_mla &&
        (layer->n_kv_heads != 1 || !layer->head_dim_v || layer->head_dim_v >= layer->head_dim))
        return cfg_source_fail(
            r->source, offset, err,
            "%s.head_dim_v = %u: mla has one kv head, whose row of head_dim = %u "
            "is head_dim_v latent channels and then the rotated ones",
            path, layer->head_dim_v, layer->head_dim);
    if (!layer->head_dim_v)
        layer->head_dim_v = layer->head_dim;
    if (!is_encoder && layer->group >= model->n_groups)
        return cfg_source_fail(r->source, offset, err, "%s.group = %u: the model has %zu groups",
                               path, layer->group, model->n_groups);
    if (!layer->rope.dim)
        layer->rope.dim = layer->head_dim;
    if (layer->rope.pairing && (layer->rope.dim % 2 || layer->rope.dim > layer->head_dim))
        return cfg_source_fail(r->source, offset, err,
                               "%s.rope.dim = %u: an even number up to head_dim = %u", path,
                               layer->rope.dim, layer->head_dim);
    if (!layer->window && !is_encoder)
        layer->window = model->groups[layer->group].window;
    return ATTND_OK;
}

static attnd_status check_group(const reading *r, const cfg_model *model, size_t g, size_t offset,
                                const char *path, attnd_err *err)
{
    cfg_group *group = &model->groups[g];
    bool is_used = false;
    if (!group->name[0])
        snprintf(group->name, sizeof group->name, "group%zu", g);
    if (!group->block_size || (group->block_size & (group->block_size - 1)))
        return cfg_source_fail(r->source, offset, err,
                               "%s.block_size = %u: a power of two, 1..1024", path,
                               group->block_size);
    if (!group->kv_dtype)
        return cfg_source_fail(r->source, offset, err, "%s.kv_dtype = absent: f32 | f16 | bf16",
                               path);
    if (!group->n_blocks == !group->bytes)
        return cfg_source_fail(r->source, offset, err,
                               "%s.n_blocks = %u: give n_blocks or bytes, one of them", path,
                               group->n_blocks);
    for (size_t l = 0; l < model->n_layers; l++)
        is_used |= model->layers[l].group == g && model->layers[l].kind != ATTND_LAYER_ENCODER;
    if (!is_used)
        return cfg_source_fail(r->source, offset, err, "%s: no layer keeps anything in it", path);
    return ATTND_OK;
}

/* Offsets of the lists' brackets. */
static attnd_status check_model(const reading *r, cfg_model *model, size_t layers, size_t groups,
                                const char *path, attnd_err *err)
{
    size_t n = 0;
    char below[PATH];
    for (size_t l = 0; l < model->n_layers; l++) {
        size_t offset = cfg_source_element(r->source, layers, l);
        snprintf(below, sizeof below, "%.40s.layers[%zu]", path, l);
        TRY(check_layer(r, model, &model->layers[l], offset, below, err));
        n += model->layers[l].count;
        if (n > CFG_MAX_LAYERS)
            return cfg_source_fail(r->source, offset, err, "%s.count = %u: at most %d layers",
                                   below, model->layers[l].count, CFG_MAX_LAYERS);
    }
    for (size_t g = 0; g < model->n_groups; g++) {
        snprintf(below, sizeof below, "%.40s.groups[%zu]", path, g);
        TRY(check_group(r, model, g, cfg_source_element(r->source, groups, g), below, err));
    }
    return ATTND_OK;
}

/* ---- Models ------------------------------------------------------------------------------------
 */

static attnd_status read_model(const reading *r, const cJSON *object, size_t open, size_t m,
                               attnd_err *err)
{
    char path[PATH];
    size_t layers = open, groups = open;
    cfg_model *model = &r->out->models[m];
    snprintf(path, sizeof path, "models[%zu]", m);
    if (!cJSON_IsObject(object))
        return cfg_source_fail(r->source, open, err, "%s: an object, {...}", path);
    TRY(read_fields(r, object, open, MODEL_FIELDS, path, model, err));
    if (!model->name[0])
        return cfg_source_fail(r->source, open, err, "%s.name = absent: a model of a file has one",
                               path);
    const cJSON *array = member_of(r, object, open, "layers", &layers);
    if (!array || !array->child)
        return cfg_source_fail(r->source, layers, err, "%s.layers = none: a model has at least one",
                               path);
    TRY(read_list(r, &LAYERS, array, layers, path, (void **)&model->layers, &model->n_layers, err));
    array = member_of(r, object, open, "groups", &groups);
    if (array)
        TRY(read_list(r, &GROUPS, array, groups, path, (void **)&model->groups, &model->n_groups,
                      err));
    return check_model(r, model, layers, groups, path, err);
}

attnd_status cfg_models_read(cfg_models *out, const cfg_source *source, const cJSON *models,
                             size_t offset, attnd_err *err)
{
    reading r = {source, out};
    *out = (cfg_models){0};
    if (!cJSON_IsArray(models))
        return cfg_source_fail(source, offset, err, "models = %.20s: an array of model specs",
                               source->text + offset);
    out->models = calloc((size_t)cJSON_GetArraySize(models) + 1, sizeof *out->models);
    if (!out->models)
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory for its models", source->path);
    for (const cJSON *model = models->child; model; model = model->next) {
        size_t m = out->n_models++;
        TRY(read_model(&r, model, cfg_source_element(source, offset, m), m, err));
        for (size_t other = 0; other < m; other++)
            if (strcmp(out->models[other].name, out->models[m].name) == 0)
                return cfg_source_fail(source, cfg_source_element(source, offset, m), err,
                                       "models[%zu].name = %s: models[%zu] has it already", m,
                                       out->models[m].name, other);
    }
    return ATTND_OK;
}

void cfg_models_fini(cfg_models *models)
{
    for (size_t m = 0; m < models->n_models; m++) {
        free(models->models[m].layers);
        free(models->models[m].groups);
    }
    free(models->models);
    *models = (cfg_models){0};
}
