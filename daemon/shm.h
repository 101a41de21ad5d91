/* shm.h: names of POSIX shared memory objects, for buffers of clients that cannot take a
 * descriptor.
 *
 * A name is random, but whoever has our uid can list them all, open any and truncate it: that is
 * the price of a name. It goes with its buffer; what a daemon that died left is told by its lock,
 * which died too.
 */
#ifndef ATTND_DAEMON_SHM_H
#define ATTND_DAEMON_SHM_H

#include "proto/err.h"

enum { SRV_SHM_NAME = 48 };

/* A name that no object has. Refuses NO_ROOM when there are no random numbers. */
attnd_status srv_shm_name(char name[SRV_SHM_NAME], attnd_err *err);

/* Whoever still maps the object keeps its memory. */
void srv_shm_unlink(const char *name);

/* Unlinks what daemons of this user that are no more have left. */
void srv_shm_clean(void);

#endif
