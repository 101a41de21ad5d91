/* fuzz_case.c: the text of a case file → its variants, or a refusal that names what is wrong. */
#include <string.h>

#include "tests/fuzz/world.h"
#include "tests/oracle/case.h"

enum { MOST_VARIANTS = 4 };

static void check(attnd_status status, const attnd_err *err)
{
    FUZZ_CHECK(status == err->status);
    FUZZ_CHECK(err->text[0] && memchr(err->text, 0, sizeof err->text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    ora_case_file *file;
    attnd_err err = {.status = ATTND_OK};
    char *text = malloc(n + 1);
    memcpy(text, data, n);
    text[n] = 0;
    attnd_status status = ora_case_file_open(&file, text, &err);
    free(text);
    if (status != ATTND_OK) {
        check(status, &err);
        FUZZ_CHECK(!file);
        return 0;
    }
    size_t n_variants = ora_case_n_variants(file);
    FUZZ_CHECK(n_variants);
    for (size_t i = 0; i < n_variants && i < MOST_VARIANTS; i++) {
        ora_case c;
        char name[128];
        /* From both ends. */
        size_t variant = i % 2 ? n_variants - 1 - i / 2 : i / 2;
        ora_case_variant_name(file, variant, NULL, name, sizeof name);
        FUZZ_CHECK(memchr(name, 0, sizeof name));
        status = ora_case_read(file, variant, &c, &err);
        if (status != ATTND_OK)
            check(status, &err);
        ora_case_fini(&c);
    }
    ora_case_file_close(file);
    return 0;
}
