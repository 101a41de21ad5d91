/* json.h: the text of a file as a JSON tree, and what cJSON alone would let pass. Private to
 * config/.
 */
#ifndef ATTND_CONFIG_JSON_H
#define ATTND_CONFIG_JSON_H

#include <cjson/cJSON.h>

#include "config/source.h"

/* The whole text as one value; the caller deletes *out. Refuses BAD_CONFIG with the place where it
 * stops being JSON, and NO_ROOM; *out is then NULL. */
attnd_status cfg_json_parse(const cfg_source *source, cJSON **out, attnd_err *err);

/* Refuses a member whose name its object has already: cJSON takes both and lets the first win. open
 * is the offset of the object's brace, place where the member stands. */
attnd_status cfg_json_once(const cfg_source *source, const cJSON *object, size_t open,
                           const cJSON *member, cfg_member place, attnd_err *err);

#endif
