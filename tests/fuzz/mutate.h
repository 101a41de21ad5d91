/* mutate.h: a mutator that knows protobuf: lengths stay right, so that a change gets past the
 * decoder.
 */
#ifndef ATTND_TESTS_FUZZ_MUTATE_H
#define ATTND_TESTS_FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

#include "attnd.pb-c.h"

/* Changes one field of a message of that type: a number, bytes, or the field as a whole. Returns
 * the bytes of the new message, at most room; n when there was nothing to change. */
size_t fuzz_mutate_message(const ProtobufCMessageDescriptor *type, uint8_t *data, size_t n,
                           size_t room, unsigned seed);

#endif
