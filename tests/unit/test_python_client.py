"""test_python_client.py: the client's framing, errors and time-outs, against a stand-in for the daemon
that speaks the same bytes."""

import os
import socket
import struct
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("ATTND_BUILD") or os.path.join(ROOT, "build", "release")
sys.path[:0] = [os.path.join(BUILD, "python"), os.path.join(ROOT, "tests", "support")]

import attnd
import tap
from attnd import wire
from fake_daemon import SESSION, FakeDaemon, client_of, error_of, ping_reply, refuse, waits_at_most


# ---- Framing -------------------------------------------------------------------------------------


@tap.test
def a_request_is_framed_byte_for_byte():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        client.ping()
        tap.equal(daemon.hellos, [bytes.fromhex("00 53 50 00 00 30 00 00")])
        frames = daemon.peers[0].frames
        tap.equal(len(frames), 2)
        for frame in frames:
            tap.equal(frame[0], 1)
            tap.equal(struct.unpack(">Q", frame[1:9])[0], len(frame) - 9)
            assert frame[9] & 0x80, "the top bit of the request id is set"
        assert frames[0][9:13] != frames[1][9:13], "ids differ"
        ping = wire.Request.FromString(frames[1][13:])
        tap.equal((ping.session, ping.WhichOneof("op")), (SESSION, "ping"))


@tap.test
def hello_carries_no_session_and_all_else_does():
    with FakeDaemon() as daemon:
        with attnd.Client(daemon.dir, name="unit") as client:
            tap.equal(client.info.ordinal, 3)
            client.ping()
        hello, ping, goodbye = daemon.requests
        tap.equal((hello.session, hello.hello.protocol, hello.hello.client), (0, 1, "unit"))
        tap.equal((ping.session, goodbye.session), (SESSION, SESSION))
        tap.equal(goodbye.WhichOneof("op"), "goodbye")
        assert 0 < hello.id < ping.id < goodbye.id, "ids rise"


@tap.test
def the_timeout_travels_in_milliseconds():
    with FakeDaemon() as daemon, client_of(daemon, timeout=7.0) as client:
        client.ping()
        client.ping(timeout=0.25)
        tap.equal([request.timeout_ms for request in daemon.requests[1:]], [7000, 250])


@tap.test
def a_reply_in_single_bytes_and_two_in_one_piece_are_read():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        daemon.on["ping"] = daemon.hold

        def answer(how):
            first, second = daemon.held.get(timeout=10), daemon.held.get(timeout=10)
            how(
                first[0].socket,
                b"".join(
                    peer.frame(number, ping_reply(request))
                    for peer, number, request in (first, second)
                ),
            )

        def bytewise(sock, data):
            for i in range(len(data)):
                sock.sendall(data[i : i + 1])

        for how in (bytewise, socket.socket.sendall):
            thread = threading.Thread(target=answer, args=(how,))
            thread.start()
            pending = [client._submit(client._request("ping", {})[0], None) for _ in range(2)]
            for one in pending:
                tap.equal(one.wait(), wire.message_class("PingReply")())
            thread.join()
        daemon.on.pop("ping")


# ---- Where the daemon is -------------------------------------------------------------------------


def with_environment(values, function):
    before = {name: os.environ.pop(name, None) for name in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR")}
    try:
        os.environ.update(values)
        return function()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@tap.test
def the_runtime_directory_is_looked_for_in_order():
    last = ["/run/attnd", f"/tmp/attnd-{os.getuid()}"]
    tap.equal(with_environment({}, attnd.runtime_dirs), last)
    tap.equal(with_environment({"XDG_RUNTIME_DIR": "/x"}, attnd.runtime_dirs), ["/x/attnd"] + last)
    both = {"XDG_RUNTIME_DIR": "/x", "RUNTIME_DIRECTORY": "/r"}
    tap.equal(with_environment(both, attnd.runtime_dirs), ["/r", "/x/attnd"] + last)
    tap.equal(with_environment(both, lambda: attnd.runtime_dirs("/given")), ["/given"])


@tap.test
def the_first_directory_with_a_socket_is_taken():
    with FakeDaemon() as daemon, tempfile.TemporaryDirectory() as empty:
        found = {"XDG_RUNTIME_DIR": empty, "RUNTIME_DIRECTORY": daemon.dir}
        with_environment(found, lambda: attnd.Client().close())
        os.symlink(daemon.dir, os.path.join(empty, "attnd"))
        found = {"XDG_RUNTIME_DIR": empty, "RUNTIME_DIRECTORY": os.path.join(empty, "none")}
        with_environment(found, lambda: attnd.Client().close())
        tap.equal(len(daemon.peers), 2)


@tap.test
def a_missing_socket_is_named():
    with tempfile.TemporaryDirectory() as empty:
        got, _ = error_of(attnd.Client, empty)
        tap.equal(
            got,
            (
                "UNAVAILABLE",
                "UNREACHABLE",
                "data",
                f"data = {empty}/data: No such file or directory; is attnd running?",
            ),
        )
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(empty, "data"))
        got, _ = error_of(attnd.Client, empty)
        tap.equal(got[3], f"data = {empty}/data: Connection refused; is attnd running?")
        listener.close()


@tap.test
def all_places_looked_at_are_named():
    with tempfile.TemporaryDirectory() as empty:
        values = {"RUNTIME_DIRECTORY": os.path.join(empty, "none")}
        missing = [
            path
            for path in with_environment(values, attnd.runtime_dirs)
            if not os.path.exists(os.path.join(path, "data"))
        ]
        if len(missing) != 3:
            raise tap.Skip("an attnd serves in one of the usual places")
        got, _ = with_environment(values, lambda: error_of(attnd.Client))
        tried = ", ".join(os.path.join(path, "data") for path in missing)
        tap.equal(
            got,
            (
                "UNAVAILABLE",
                "UNREACHABLE",
                "data",
                f"data = {tried}: no such socket; is attnd running?",
            ),
        )


@tap.test
def a_listener_that_never_greets_times_out():
    with FakeDaemon(greeting=None) as daemon:
        got = waits_at_most(5, attnd.Client, daemon.dir, timeout=0.1)
        tap.equal(
            got,
            (
                "DEADLINE_EXCEEDED",
                "TIMED_OUT",
                "data",
                f"data = {daemon.dir}/data: connected, but no greeting came",
            ),
        )


@tap.test
def a_listener_that_closes_before_its_greeting_is_unavailable():
    with FakeDaemon(greeting=b"") as daemon:
        got = waits_at_most(5, attnd.Client, daemon.dir)
        tap.equal(
            got,
            (
                "UNAVAILABLE",
                "UNREACHABLE",
                "data",
                f"data = {daemon.dir}/data: closed before its greeting",
            ),
        )


@tap.test
def another_protocol_is_refused():
    with FakeDaemon(greeting=b"\0SP\0\0\x11\0\0") as daemon:
        got = waits_at_most(5, attnd.Client, daemon.dir)
        tap.equal(
            got,
            (
                "UNAVAILABLE",
                "UNREACHABLE",
                "data",
                f"data = {daemon.dir}/data: greets with 00 53 50 00 00 11 00 00: not an SP REP "
                "socket",
            ),
        )


@tap.test
def a_missing_buffer_socket_is_named_and_the_session_not_kept():
    """B128: the second step fails."""
    with FakeDaemon() as daemon:
        os.unlink(os.path.join(daemon.dir, "buf"))
        got, _ = error_of(attnd.Client, daemon.dir)
        tap.equal(
            got,
            (
                "UNAVAILABLE",
                "UNREACHABLE",
                "buf",
                f"buf = {daemon.dir}/buf: No such file or directory; is attnd running?",
            ),
        )
        tap.until(lambda: daemon.peers[0].socket.recv(1, socket.MSG_PEEK) == b"", "the end of data")


# ---- Refusals ------------------------------------------------------------------------------------


@tap.test
def a_refusal_reaches_the_caller_unchanged():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        text = 'batch.tables[0].block_ids[7] = 4096: pool "main" has blocks 0..4095'
        daemon.on["ping"] = refuse(3, "BAD_BLOCK", "batch.tables[0].block_ids[7]", text)
        got, _ = error_of(client.ping)
        tap.equal(got, ("INVALID_ARGUMENT", "BAD_BLOCK", "batch.tables[0].block_ids[7]", text))
        wrong = tap.raises(attnd.Error, client.ping)
        tap.equal(str(wrong), "INVALID_ARGUMENT (BAD_BLOCK): " + text)


@tap.test
def every_code_has_its_name_and_a_new_one_its_number():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        for number, name in wire.CODES.items():
            if number:
                daemon.on["ping"] = refuse(number, "R", "f", "m")
                tap.equal(error_of(client.ping)[0], (name, "R", "f", "m"))
        daemon.on["ping"] = refuse(99, "R", "f", "m")
        tap.equal(error_of(client.ping)[0], ("CODE_99", "R", "f", "m"))


@tap.test
def a_reply_to_another_request_is_no_result():
    with FakeDaemon() as daemon, client_of(daemon) as client:

        def other(request, reply):
            reply.id = 77
            return daemon.empty(request, reply)

        daemon.on["ping"] = other
        got, _ = error_of(client.ping)
        tap.equal(
            got,
            (
                "INTERNAL",
                "BROKEN",
                "reply.id",
                "reply.id = 77: the result of request 2 was expected",
            ),
        )


# ---- Time ----------------------------------------------------------------------------------------


@tap.test
def no_reply_in_time_is_deadline_exceeded():
    with FakeDaemon() as daemon:
        client = client_of(daemon)
        daemon.on["ping"] = daemon.hold
        got = waits_at_most(5, client.ping, timeout=0.1)
        tap.equal(
            got,
            (
                "DEADLINE_EXCEEDED",
                "TIMED_OUT",
                "data",
                f"data = {daemon.dir}/data: no reply in time",
            ),
        )
        daemon.on.pop("ping")
        client.ping()
        client.close()


@tap.test
def a_pending_that_timed_out_may_be_waited_for_again():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        daemon.on["ping"] = daemon.hold
        pending = client._submit(client._request("ping", {})[0], 10)
        tap.equal(error_of(pending.wait, 0.05)[0][0], "DEADLINE_EXCEEDED")
        peer, number, request = daemon.held.get(timeout=10)
        peer.socket.sendall(peer.frame(number, ping_reply(request)))
        tap.until(lambda: pending.wait(0) is not None, "the reply, though no time is left")
        pending.wait(10)
        daemon.on.pop("ping")


@tap.test
def a_late_reply_goes_to_nobody():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        daemon.on["ping"] = daemon.hold
        error_of(client.ping, timeout=0.05)
        peer, number, request = daemon.held.get(timeout=10)
        peer.socket.sendall(peer.frame(number, ping_reply(request)))
        daemon.on["ping"] = refuse(5, "NO_SUCH_HANDLE", "", "the next one's own")
        tap.equal(error_of(client.ping)[0][3], "the next one's own")


@tap.test
def a_daemon_that_does_not_read_times_out_and_half_a_request_ends_the_connection():
    with FakeDaemon() as daemon:
        client = client_of(daemon, timeout=1.0)
        daemon.on["ping"] = lambda *_: time.sleep(1000)
        tap.equal(error_of(client.ping, timeout=0.05)[0][0], "DEADLINE_EXCEEDED")
        big = {"name": "x" * (8 << 20)}
        got = waits_at_most(5, client.open_model, big, timeout=0.2)
        tap.equal(
            got,
            (
                "DEADLINE_EXCEEDED",
                "TIMED_OUT",
                "data",
                f"data = {daemon.dir}/data: attnd does not read",
            ),
        )
        daemon.on.pop("ping")
        client.ping()
        tap.equal(len(daemon.peers), 2)
        client.close()


@tap.test
def a_full_backlog_times_out():
    with tempfile.TemporaryDirectory() as directory:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(directory, "data"))
        listener.listen(0)
        waiting = socket.socket(socket.AF_UNIX)
        waiting.connect(os.path.join(directory, "data"))
        got = waits_at_most(5, attnd.Client, directory, timeout=0.1)
        tap.equal(
            got,
            (
                "DEADLINE_EXCEEDED",
                "TIMED_OUT",
                "data",
                f"data = {directory}/data: attnd does not accept",
            ),
        )
        waiting.close()
        listener.close()


# ---- Several in flight ---------------------------------------------------------------------------


@tap.test
def replies_find_their_requests_in_any_order():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        daemon.on["ping"] = daemon.hold
        pending = [client._submit(client._request("ping", {})[0], 10) for _ in range(16)]
        held = [daemon.held.get(timeout=10) for _ in pending]
        for peer, number, request in reversed(held):
            reply = ping_reply(request)
            refuse(5, "NO_SUCH_HANDLE", "", f"request {request.id}")(request, reply)
            peer.socket.sendall(peer.frame(number, reply))
        for one in pending:
            tap.equal(error_of(one.wait)[0][3], f"request {one.id}")
        daemon.on.pop("ping")


@tap.test
def threads_share_a_connection():
    with FakeDaemon() as daemon, client_of(daemon) as client:

        def on(request, reply):
            return refuse(5, "NO_SUCH_HANDLE", "", f"buffer {request.free_buffer.buffer}")(
                request, reply
            )

        daemon.on["free_buffer"] = on
        wrong = []

        def work(first):
            for handle in range(first, first + 100):
                text = error_of(client._call, "free_buffer", {"buffer": handle}, None)[0][3]
                if text != f"buffer {handle}":
                    wrong.append((handle, text))

        threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        tap.equal(wrong, [])
        tap.equal(len(daemon.requests), 801)


if __name__ == "__main__":
    tap.main()
