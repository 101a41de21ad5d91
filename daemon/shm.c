/* shm.c: names of POSIX shared memory objects. */
#include "daemon/shm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log.h"

#define PREFIX "attnd-shm-"

attnd_status srv_shm_name(char name[SRV_SHM_NAME], attnd_err *err)
{
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return attnd_fail(err, ATTND_NO_ROOM, "named: no random number: %s", strerror(errno));
    snprintf(name, SRV_SHM_NAME, "/" PREFIX "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    return ATTND_OK;
}

void srv_shm_unlink(const char *name)
{
    /* A client may have done it: some libraries unlink what they have only opened. */
    if (shm_unlink(name) && errno != ENOENT)
        srv_log(SRV_WARN, "shared memory not unlinked  why=\"%s\"", strerror(errno));
}

/* An owner holds a lock on its object as long as it lives; ours is held until the name is gone. */
static void remove_left_over(const char *name)
{
    struct stat at;
    int fd = shm_open(name, O_RDWR, 0);
    if (fd < 0)
        return;
    if (!fstat(fd, &at) && at.st_uid == geteuid() && !flock(fd, LOCK_EX | LOCK_NB)) {
        srv_log(SRV_INFO, "shared memory of a daemon that died is removed  bytes=%lld",
                (long long)at.st_size);
        srv_shm_unlink(name);
    }
    close(fd);
}

void srv_shm_clean(void)
{
    DIR *dir = opendir("/dev/shm");
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char name[sizeof entry->d_name + 1];
        if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) != 0)
            continue;
        snprintf(name, sizeof name, "/%s", entry->d_name);
        remove_left_over(name);
    }
    if (dir)
        closedir(dir);
}
