/* socket.c: unix sockets that are one user's own. */
#include "daemon/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/stats.h"

attnd_status srv_socket_remove(const char *path, attnd_err *err)
{
    struct stat at;
    if (lstat(path, &at))
        return ATTND_OK;
    if (!S_ISSOCK(at.st_mode))
        return attnd_fail(err, ATTND_UNREACHABLE,
                          "socket = %s: is there and is no socket; it is left alone", path);
    unlink(path);
    return ATTND_OK;
}

attnd_status srv_socket_listen(int *out, int type, const char *path, attnd_err *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    *out = -1;
    if (strlen(path) >= sizeof at.sun_path)
        return attnd_fail(err, ATTND_UNREACHABLE,
                          "socket = %s: a socket's path has at most %zu bytes", path,
                          sizeof at.sun_path - 1);
    memcpy(at.sun_path, path, strlen(path) + 1);
    TRY(srv_socket_remove(path, err));
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* Nobody can connect between bind and listen, so the mode is right in time. */
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) || chmod(path, 0600) ||
        listen(fd, SOMAXCONN)) {
        attnd_status status =
            attnd_fail(err, ATTND_UNREACHABLE, "socket = %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return status;
    }
    *out = fd;
    return ATTND_OK;
}

bool srv_socket_is_ours(int fd)
{
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t n = sizeof peer;
    if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) &&
        (peer.uid == geteuid() || peer.uid == 0))
        return true;
    srv_log(SRV_WARN, "connection refused  uid=%u", (unsigned)peer.uid);
    srv_stats_add(SRV_COUNT_connections_refused, 1);
    return false;
}

int srv_socket_accept(int listener, int *spare)
{
    if (*spare < 0)
        *spare = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        close(*spare);
        *spare = -1;
        close(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
        srv_log(SRV_ERROR, "connection refused  why=\"no descriptor is left\"");
        srv_stats_add(SRV_COUNT_connections_refused, 1);
        return -1;
    }
    if (fd >= 0 && !srv_socket_is_ours(fd)) {
        close(fd);
        return -1;
    }
    return fd;
}

int64_t srv_socket_room(int64_t most, int64_t share)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) || (int64_t)files.rlim_cur < 0)
        return most;
    int64_t room = (int64_t)files.rlim_cur / share;
    return room < most ? room : most;
}

bool srv_socket_has_unread(int fd)
{
    int n = 0;
    return ioctl(fd, FIONREAD, &n) == 0 && n > 0;
}
