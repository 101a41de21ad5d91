/* message.c: names of the ops, and the one question strings on the wire must pass. */
#include "proto/message.h"

const char *msg_op_name(msg_op op)
{
    switch (op) {
#define X(name, number, Name)                                                                      \
    case MSG_OP_##name:                                                                            \
        return #name;
        MSG_OP_MAP(X)
#undef X
    case MSG_OP_NONE:
    case MSG_OP_END:
        break;
    }
    return "?";
}

/* Bytes of the character at text[0 .. n), n > 0; 0 when they are none. */
static size_t utf8_char(const uint8_t *text, size_t n)
{
    static const uint32_t lowest[] = {0, 0, 0x80, 0x800, 0x10000}; /* shorter would have done */
    if (text[0] < 0x80)
        return text[0] != 0;
    size_t len = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    if (text[0] < 0xc0 || text[0] >= 0xf8 || len > n)
        return 0;
    uint32_t c = text[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (text[i] & 0x3f);
    }
    bool is_surrogate = c >= 0xd800 && c <= 0xdfff;
    return c < lowest[len] || c > 0x10ffff || is_surrogate ? 0 : len;
}

size_t msg_utf8_bytes(const void *text, size_t n)
{
    const uint8_t *at = text;
    size_t done = 0;
    while (done < n) {
        size_t len = utf8_char(at + done, n - done);
        if (!len)
            break;
        done += len;
    }
    return done;
}
