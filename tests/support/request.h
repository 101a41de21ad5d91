/* request.h: requests made byte by byte, right or wrong, for tests of the decoder.
 */
#ifndef ATTND_TESTS_SUPPORT_REQUEST_H
#define ATTND_TESTS_SUPPORT_REQUEST_H

#include "attnd.pb-c.h"
#include "proto/message.h"

typedef struct bytes {
    uint8_t at[4096];
    size_t n;
} bytes;

/* Behind what is there; there must be room. */
void put_raw(bytes *b, const void *from, size_t n);
void put_number(bytes *b, uint32_t field, uint64_t value); /* as a varint */
void put_fixed64(bytes *b, uint32_t field, uint64_t value);
void put_bytes(bytes *b, uint32_t field, const void *from, size_t n);
void put(bytes *b, uint32_t field, const bytes *message);

enum { REQUEST_SESSION = 0x99 };
#define REQUEST_ID 0x1122334455667788u

/* A request, of that id and session, whose op holds the message. */
bytes request_of(msg_op op, const bytes *message);

/* What protobuf-c makes of it. */
bytes request_with(const Attnd__V1__Request *request);

/* What the bytes say; a refusal fails the test. The arena is reset first. */
msg_request decoded(msg_arena *arena, const bytes *b);

/* Group fixtures: *state is an arena of 1 MiB. */
int open_arena(void **state);
int close_arena(void **state);

#endif
