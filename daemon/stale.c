/* stale.c: what a daemon that died left in the runtime directory. */
#include "daemon/stale.h"

#include <sys/stat.h>
#include <unistd.h>

attnd_status srv_stale_remove(const char *path, attnd_err *err)
{
    struct stat at;
    if (lstat(path, &at))
        return ATTND_OK;
    if (!S_ISSOCK(at.st_mode))
        return attnd_fail(err, ATTND_UNREACHABLE, "%s: is there and is no socket; it is left alone",
                          path);
    unlink(path);
    return ATTND_OK;
}
