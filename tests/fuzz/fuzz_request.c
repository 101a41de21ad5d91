/* fuzz_request.c: requests of one session, up to four in flight together, on the whole road:
 * decode, admit, order, check, plan, launch, reply.
 *
 * An input is a list of requests, each behind its length in two bytes, little-endian.
 */
#include <string.h>

#include "tests/fuzz/mutate.h"
#include "tests/fuzz/world.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    fuzz_world_open();
    return 0;
}

/* The input's requests; a length that is too long means the rest. */
static size_t split(const uint8_t *data, size_t n, const uint8_t *at[], size_t bytes[])
{
    size_t n_requests = 0;
    while (n >= 2 && n_requests < FUZZ_REQUESTS) {
        size_t size = data[0] | (size_t)data[1] << 8;
        size = size < n - 2 ? size : n - 2;
        at[n_requests] = data + 2;
        bytes[n_requests++] = size;
        data += 2 + size;
        n -= 2 + size;
    }
    return n_requests;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *at[FUZZ_REQUESTS];
    uint8_t *own[FUZZ_REQUESTS] = {NULL}; /* each of just its size */
    size_t bytes[FUZZ_REQUESTS], n_requests = split(data, n, at, bytes);
    for (size_t i = 0; i < n_requests; i++) {
        own[i] = malloc(bytes[i] ? bytes[i] : 1);
        memcpy(own[i], at[i], bytes[i]);
    }
    fuzz_world_send((const uint8_t *const *)own, bytes, n_requests);
    for (size_t i = 0; i < n_requests; i++)
        free(own[i]);
    fuzz_world_reset();
    return 0;
}

/* Mostly a field of one request; now and then requests as a whole, or bytes. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t room, unsigned seed)
{
    const uint8_t *at[FUZZ_REQUESTS];
    static uint8_t request[1 << 14];
    size_t bytes[FUZZ_REQUESTS], n_requests = split(data, n, at, bytes);
    unsigned kind = seed % 16;
    if (!n_requests || kind == 0)
        return LLVMFuzzerMutate(data, n, room);
    size_t i = (seed >> 4) % n_requests, size = bytes[i], before = (size_t)(at[i] - data) - 2;
    size_t behind = n - before - 2 - size;
    if (size > sizeof request)
        return LLVMFuzzerMutate(data, n, room);
    memcpy(request, at[i], size);
    if (kind == 1 && n + 2 + size <= room) { /* once more */
        memmove(data + before + 2 + size, data + before, n - before);
        return n + 2 + size;
    }
    if (kind == 2 && n_requests > 1) { /* not */
        memmove(data + before, data + before + 2 + size, behind);
        return n - 2 - size;
    }
    size_t most = sizeof request < UINT16_MAX ? sizeof request : UINT16_MAX;
    most = most < room - n + size ? most : room - n + size;
    size_t now = fuzz_mutate_message(&attnd__v1__request__descriptor, request, size, most, seed);
    memmove(data + before + 2 + now, data + before + 2 + size, behind);
    memcpy(data + before + 2, request, now);
    data[before] = (uint8_t)now;
    data[before + 1] = (uint8_t)(now >> 8);
    return n - size + now;
}
