/* fuzz_config.c: the text of a config file → a checked struct and models, or a refusal that names a
 * place in it and changes nothing.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A file may have a mebibyte; room for one costs more than all the rest of a run. */
enum { ROOM = 1 << 16 };
#define malloc(bytes) malloc((bytes) < ROOM ? (bytes) : ROOM)
#include "config/source.c" /* NOLINT */
#undef malloc

#include "daemon/footprint.h"
#include "tests/fuzz/world.h"

static int file;
static char path[64];
static FILE *nowhere;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    file = memfd_create("config", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    nowhere = fopen("/dev/null", "we");
    FUZZ_CHECK(file >= 0 && nowhere);
    return 0;
}

/* Every value that was taken is one that its own text gives again. */
static void check_texts(const cfg *c)
{
    char text[512], again[512];
    attnd_err err;
    for (size_t i = 0; cfg_key_at(i); i++) {
        cfg other = *c;
        FUZZ_CHECK(cfg_get(c, cfg_key_at(i), text, sizeof text));
        FUZZ_CHECK(cfg_set(&other, cfg_key_at(i), text, &err) == ATTND_OK);
        FUZZ_CHECK(cfg_get(&other, cfg_key_at(i), again, sizeof again) && !strcmp(text, again));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    cfg c, before;
    cfg_models models;
    attnd_err err = {.status = ATTND_OK};
    if (n >= ROOM)
        return 0;
    FUZZ_CHECK(!ftruncate(file, 0) && pwrite(file, data, n, 0) == (ssize_t)n);
    memset(&c, 0, sizeof c);
    cfg_defaults(&c);
    memcpy(&before, &c, sizeof c); /* padding included */
    attnd_status status = cfg_read_models(&c, &models, path, &err);
    FUZZ_CHECK(status == err.status);
    if (status == ATTND_OK) {
        check_texts(&c);
        cfg_check(&c, &err);
        for (size_t m = 0; m < models.n_models; m++)
            srv_footprint_print(nowhere, &models.models[m], m, &err);
    } else {
        FUZZ_CHECK(!strncmp(err.text, path, strlen(path)) && attnd_status_mender(status) != 0);
        const void *now = &c, *then = &before;
        FUZZ_CHECK(!memcmp(now, then, sizeof c));
    }
    cfg_models_fini(&models);
    return 0;
}
