/* replay.c: feeds a fuzz target the files of its corpus, for builds without a fuzzer. TAP.
 *
 * Named replay_<target>; reads tests/fuzz/corpus/<target>/, or the files and folders it is given.
 */
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/world.h"

#pragma weak LLVMFuzzerInitialize

static size_t n_inputs;

/* Only the fuzzer has one. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t room)
{
    return n;
}

static void feed(const char *path)
{
    FILE *file = fopen(path, "re");
    struct stat at;
    FUZZ_CHECK(file && !fstat(fileno(file), &at));
    size_t n = (size_t)at.st_size;
    uint8_t *data = malloc(n ? n : 1);
    FUZZ_CHECK(fread(data, 1, n, file) == n);
    fclose(file);
    printf("# %s\n", path);
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, n);
    free(data);
    n_inputs++;
}

static void feed_all(const char *path)
{
    struct stat at;
    FUZZ_CHECK(!stat(path, &at));
    if (!S_ISDIR(at.st_mode)) {
        feed(path);
        return;
    }
    struct dirent **names;
    int n = scandir(path, &names, NULL, alphasort);
    FUZZ_CHECK(n >= 0);
    for (int i = 0; i < n; i++) {
        char inner[4096];
        snprintf(inner, sizeof inner, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.')
            feed_all(inner);
        free(names[i]);
    }
    free(names);
}

int main(int argc, char **argv)
{
    char corpus[4096];
    const char *target = strstr(argv[0], "replay_");
    FUZZ_CHECK(target);
    snprintf(corpus, sizeof corpus, "tests/fuzz/corpus/%s", target + strlen("replay_"));
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    if (argc == 1)
        feed_all(corpus);
    for (int i = 1; i < argc; i++)
        feed_all(argv[i]);
    printf("%sok 1 - %zu inputs do no harm\n", n_inputs ? "" : "not ", n_inputs);
    return n_inputs ? 0 : 1;
}
