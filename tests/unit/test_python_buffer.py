"""test_python_buffer.py: the client's buffers, their descriptors and the lease, against a stand-in for
the daemon."""

import os
import socket
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("ATTND_BUILD") or os.path.join(ROOT, "build", "release")
sys.path[:0] = [os.path.join(BUILD, "python"), os.path.join(ROOT, "tests", "support")]

import attnd
import numpy as np
import tap
from fake_daemon import SESSION, FakeDaemon, client_of, error_of, refuse, waits_at_most


@tap.test
def the_first_packet_of_the_buffer_socket_takes_the_lease():
    with FakeDaemon() as daemon:
        client = client_of(daemon)
        tap.equal([(r.session, r.buffer) for r in daemon.fd_requests], [(SESSION, 0)])
        lease = daemon.leases[0]
        client.close()
        tap.until(lambda: lease.recv(1, socket.MSG_PEEK) == b"", "the end of the lease")


@tap.test
def a_buffer_is_the_same_memory_on_both_sides():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        buffer = client.create_buffer(100)
        tap.equal((buffer.bytes, buffer.handle), (100, 1))
        buffer.view("i32", (2, 3), offset=4).array[...] = [[1, 2, 3], [4, 5, 6]]
        tap.equal(os.pread(daemon.fds[1], 28, 0), struct.pack("<7i", 0, 1, 2, 3, 4, 5, 6))
        os.pwrite(daemon.fds[1], b"\7\0\0\0", 96)
        tap.equal(np.asarray(buffer)[96], 7)


@tap.test
def a_buffer_may_start_inside_a_page():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        daemon.fd_offset = 4096 + 64
        buffer = client.create_buffer(32)
        buffer.array[...] = np.arange(32)
        tap.equal(os.pread(daemon.fds[1], 32, 4096 + 64), bytes(range(32)))
        tap.equal(buffer.view("u8", 32)[5:].offset, 5)


@tap.test
def a_view_outlives_its_buffer_and_its_client():
    with FakeDaemon() as daemon:
        client = client_of(daemon)
        buffer = client.create_buffer(1 << 20)
        view = buffer.view("f32", 1 << 18)
        view.array[...] = 3
        buffer.free()
        client.close()
        del buffer, client
        tap.equal(float(view.array.sum()), 3.0 * (1 << 18))


def named(name):
    """An answer to create_buffer that gives the buffer this name."""

    def answer(request, reply):
        reply.create_buffer.buffer = 9
        reply.create_buffer.bytes = request.create_buffer.bytes
        reply.create_buffer.shm_name = name if request.create_buffer.named else ""
        return True

    return answer


@tap.test
def a_named_buffer_is_mapped_by_its_name_and_unlinked_by_nobody_here():
    path = f"/dev/shm/attnd-test-{os.getpid()}"
    with FakeDaemon() as daemon, open(path, "w+b") as file:
        try:
            file.truncate(8192)
            client = client_of(daemon)
            daemon.on["create_buffer"] = named("/" + os.path.basename(path))
            buffer = client.create_buffer(5000, named=True)
            tap.equal((buffer.bytes, buffer.name), (5000, path.removeprefix("/dev/shm")))
            buffer.array[4999] = 7
            tap.equal(os.pread(file.fileno(), 1, 4999), b"\7")
            tap.equal([one.buffer for one in daemon.fd_requests], [0])  # the lease's alone
            tap.equal(attnd.map_named(buffer.name).size, 8192)
            buffer.free()
            client.close()
            assert os.path.exists(path)
        finally:
            os.unlink(path)


@tap.test
def a_buffer_without_a_name_has_none():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        tap.equal(client.create_buffer(64).name, None)
        tap.equal(daemon.requests[-1].create_buffer.named, False)


@tap.test
def a_name_that_cannot_be_mapped_is_refused_and_the_buffer_given_back():
    short = f"attnd-test-{os.getpid()}"
    with open(f"/dev/shm/{short}", "wb") as file:
        file.truncate(99)
    try:
        for name, wanted in (
            (
                "/attnd-test-nobody",
                (
                    "UNAVAILABLE",
                    "UNREACHABLE",
                    "shm_name = /attnd-test-nobody: cannot be opened here: No such file or directory",
                ),
            ),
            (
                "/../etc/passwd",
                (
                    "INTERNAL",
                    "BROKEN",
                    "shm_name = '/../etc/passwd': no name of a shared memory object",
                ),
            ),
            ("", ("INTERNAL", "BROKEN", "shm_name = '': no name of a shared memory object")),
            (
                f"/{short}",
                (
                    "INTERNAL",
                    "BROKEN",
                    f"shm_name = /{short}: cannot be mapped: mmap length is greater than file size",
                ),
            ),
        ):
            with FakeDaemon() as daemon, client_of(daemon) as client:
                daemon.on["create_buffer"] = named(name)
                code, reason, field, message = error_of(client.create_buffer, 100, named=True)[0]
                tap.equal((code, reason, message), wanted)
                tap.equal(field, "shm_name")
                tap.equal(daemon.requests[-1].free_buffer.buffer, 9)
    finally:
        os.unlink(f"/dev/shm/{short}")


@tap.test
def no_descriptor_stays_open():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        daemon.n_surplus_fds = 3
        client.create_buffer(64)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(8):
            client.create_buffer(64)
        # The stand-in lives in this process and keeps one of each buffer.
        tap.equal(len(os.listdir("/proc/self/fd")) - before, 8)


@tap.test
def a_buffer_that_cannot_be_mapped_is_given_back():
    changes = {
        "larger": lambda reply: setattr(reply, "bytes", 1 << 40),
        "kind": lambda reply: setattr(reply, "kind", 2),
        "refused": lambda reply: refuse(5, "NO_SUCH_HANDLE", "buffer", "buffer = 1: none")(
            None, reply
        ),
    }
    wanted = {
        "larger": ("INTERNAL", "BROKEN", "bytes"),
        "kind": ("UNIMPLEMENTED", "UNSUPPORTED", "kind"),
        "refused": ("NOT_FOUND", "NO_SUCH_HANDLE", "buffer"),
    }
    for name, change in changes.items():
        with FakeDaemon() as daemon, client_of(daemon) as client:
            daemon.fd_reply = change
            tap.equal(error_of(client.create_buffer, 64)[0][:3], wanted[name])
            tap.equal(daemon.requests[-1].free_buffer.buffer, 1)


@tap.test
def a_silent_buffer_socket_times_out_and_is_connected_anew():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        daemon.fd_reply = lambda reply: not reply.kind
        got = waits_at_most(5, client.create_buffer, 64, timeout=0.1)
        tap.equal(
            got,
            ("DEADLINE_EXCEEDED", "TIMED_OUT", "buf", f"buf = {daemon.dir}/buf: no reply in time"),
        )
        daemon.fd_reply = None
        client.create_buffer(64)
        tap.equal(len(daemon.leases), 2)


@tap.test
def a_buffer_socket_that_ends_is_connected_anew():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        daemon.end(daemon.leases[0])
        tap.equal(client.create_buffer(64).bytes, 64)
        n_ended = []

        def end_once(reply):
            if reply.kind and not n_ended:
                n_ended.append(1)
                daemon.end(daemon.leases[-1])

        daemon.fd_reply = end_once
        tap.equal(client.create_buffer(64).bytes, 64)  # asked for twice
        tap.equal([r.buffer for r in daemon.fd_requests], [0, 0, 1, 2, 0, 2])


@tap.test
def the_session_number_is_not_shown():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        tap.equal(repr(client), "<attnd.Client: session 3 of attnd 0.0>")


if __name__ == "__main__":
    tap.main()
