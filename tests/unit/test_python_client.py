"""test_python_client.py: the client's framing, time-outs, errors, buffers and lease, against a
stand-in for the daemon that speaks the same bytes."""

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
import numpy as np
import tap
from attnd import wire
from fake_daemon import SESSION, FakeDaemon


def client_of(daemon, timeout=10.0):
    return attnd.Client(daemon.dir, timeout=timeout)


def error_of(function, *args, **kwargs):
    """(code, reason, field, message) of the Error that function raises, and the seconds it took."""
    begin = time.monotonic()
    wrong = tap.raises(attnd.Error, function, *args, **kwargs)
    return (wrong.code, wrong.reason, wrong.field, wrong.message), time.monotonic() - begin


def waits_at_most(seconds, function, *args, **kwargs):
    got, took = error_of(function, *args, **kwargs)
    assert took < seconds, f"took {took:.1f} s"
    return got


def ping_reply(request):
    reply = wire.Reply(id=request.id, instance=1)
    reply.status.SetInParent()
    reply.ping.SetInParent()
    return reply


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


def refuse(code, reason, field, message):
    def on(request, reply):
        reply.status.code = code
        reply.status.reason = reason
        reply.status.field = field
        reply.status.message = message
        return True

    return on


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


# ---- A daemon that goes away ---------------------------------------------------------------------


def break_first(daemon, op, n=1):
    """The first n requests of an op break the connection they came over."""
    left = [n]

    def on(request, reply):
        if left[0]:
            left[0] -= 1
            daemon.end(daemon.peers[-1].socket)
            return False
        return daemon.empty(request, reply)

    daemon.on[op] = on


def kill(daemon):
    """Nobody listens any more, and all connections end."""
    for listener in daemon.listeners:
        daemon.end(listener)
    for sock in daemon.leases + [peer.socket for peer in daemon.peers]:
        daemon.end(sock)


def ids_of(daemon, op):
    return [request.id for request in daemon.requests if request.WhichOneof("op") == op]


@tap.test
def a_request_whose_connection_breaks_is_repeated_once_with_its_id():
    with FakeDaemon() as daemon, client_of(daemon, timeout=60) as client:
        break_first(daemon, "ping")
        begin = time.monotonic()
        client.ping()
        assert time.monotonic() - begin < 5
        first, second = ids_of(daemon, "ping")
        tap.equal(first, second)
        frames = daemon.peers[0].frames[-1], daemon.peers[1].frames[-1]
        tap.equal(frames[0][13:], frames[1][13:])
        tap.equal(len(daemon.peers), 2)
        tap.equal(len(daemon.leases), 1)  # that one did not break
        client.ping()
        assert ids_of(daemon, "ping")[2] > second


@tap.test
def a_request_that_breaks_two_connections_is_not_sent_a_third_time():
    with FakeDaemon() as daemon, client_of(daemon, timeout=60) as client:
        break_first(daemon, "ping", 2)
        tap.equal(
            waits_at_most(5, client.ping),
            (
                "UNAVAILABLE",
                "RESTARTED",
                "data",
                f"data = {daemon.dir}/data: attnd closed the connection or is gone",
            ),
        )
        time.sleep(0.2)
        tap.equal(len(ids_of(daemon, "ping")), 2)
        client.ping()  # the session goes on


@tap.test
def a_hello_is_not_repeated():
    with FakeDaemon() as daemon:
        break_first(daemon, "hello")
        got = waits_at_most(5, attnd.Client, daemon.dir)
        tap.equal(got[:3], ("UNAVAILABLE", "RESTARTED", "data"))
        time.sleep(0.1)
        tap.equal(len(ids_of(daemon, "hello")), 1)


@tap.test
def all_in_flight_are_repeated_though_nobody_waits_for_them_yet():
    with FakeDaemon() as daemon, client_of(daemon, timeout=60) as client:
        daemon.on["ping"] = daemon.hold
        pending = [client._submit(client._request("ping", {})[0], 10) for _ in range(8)]
        held = [daemon.held.get(timeout=10) for _ in pending]
        held[3][0].socket.sendall(held[3][0].frame(held[3][1], ping_reply(held[3][2])))
        pending[3].wait()
        daemon.on.pop("ping")
        daemon.end(daemon.peers[0].socket)
        pending[7].wait()
        tap.until(lambda: len(ids_of(daemon, "ping")) == 15, "all but the answered one again")
        want = [one.id for one in pending]
        tap.equal(ids_of(daemon, "ping")[8:], [one for one in want if one != pending[3].id])
        for one in pending:
            one.wait()  # pending[3] too: its reply had come
        tap.equal(len(ids_of(daemon, "ping")), 15)


@tap.test
def a_new_request_takes_those_along_that_were_cut_off():
    with FakeDaemon() as daemon, client_of(daemon, timeout=60) as client:
        daemon.on["ping"] = daemon.hold
        pending = client._submit(client._request("ping", {})[0], 10)
        daemon.held.get(timeout=10)
        daemon.on.pop("ping")
        daemon.end(daemon.peers[0].socket)
        client._call("drop_plan", {"plan": 1}, None)
        tap.until(lambda: len(ids_of(daemon, "ping")) == 2, "the one cut off again")
        pending.wait()


@tap.test
def threads_that_wait_share_one_new_connection():
    with FakeDaemon() as daemon:
        client = client_of(daemon, timeout=60)
        daemon.on["ping"] = daemon.hold
        wrong = []

        def work():
            try:
                client.ping()
            except attnd.Error as one:
                wrong.append(one)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        held = [daemon.held.get(timeout=10) for _ in threads]
        daemon.on.pop("ping")
        daemon.end(held[0][0].socket)
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive(), "a waiting thread hangs"
        tap.equal(wrong, [])
        tap.equal(len(daemon.peers), 2)
        tap.equal(sorted(ids_of(daemon, "ping")[8:]), sorted(ids_of(daemon, "ping")[:8]))
        client.close()


@tap.test
def a_lease_that_broke_is_taken_again():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        daemon.end(daemon.leases[0])
        client.ping()
        tap.equal([(r.session, r.buffer) for r in daemon.fd_requests], [(SESSION, 0)] * 2)
        tap.equal(len(daemon.peers), 1)
        tap.equal(len(ids_of(daemon, "hello")), 1)


def refuse_lease(reply):
    reply.status.code = 5
    reply.status.reason = "UNREGISTERED"
    reply.status.message = "session: there is no such session"


OVER = ("UNAVAILABLE", "RESTARTED", "session", "session: there is no such session")


@tap.test
def a_session_that_ended_meanwhile_is_over():
    with FakeDaemon() as daemon:
        client = client_of(daemon, timeout=60)
        daemon.fd_reply = refuse_lease
        daemon.end(daemon.leases[0])
        tap.equal(waits_at_most(5, client.ping), OVER)
        tap.equal(waits_at_most(0.5, client.create_buffer, 64), OVER)
        tap.equal([one.WhichOneof("op") for one in daemon.requests], ["hello"])
        client.close()


@tap.test
def a_daemon_that_does_not_know_the_session_any_more_ends_it():
    with FakeDaemon() as daemon:
        client = client_of(daemon)
        daemon.on["ping"] = refuse(
            5, "UNREGISTERED", "session", "session: there is no such session"
        )
        tap.equal(error_of(client.ping)[0], OVER)
        tap.equal(error_of(client.ping)[0], OVER)
        tap.equal(len(ids_of(daemon, "ping")), 1)
        client.close()


@tap.test
def another_instance_ends_the_session():
    with FakeDaemon() as daemon:
        client = client_of(daemon)

        def on(request, reply):
            reply.instance = 8
            return daemon.empty(request, reply)

        daemon.on["ping"] = on
        gone = (
            "UNAVAILABLE",
            "RESTARTED",
            "instance",
            "instance = 0000000000000008: the session was of 0000000000000001",
        )
        tap.equal(error_of(client.ping)[0], gone)
        tap.equal(error_of(client.create_buffer, 64)[0], gone)
        client.close()


@tap.test
def a_daemon_that_is_gone_is_unavailable_within_two_seconds_and_then_at_once():
    with FakeDaemon() as daemon:
        client = client_of(daemon, timeout=60)
        daemon.on["ping"] = lambda *_: kill(daemon)
        gone = (
            "UNAVAILABLE",
            "RESTARTED",
            "data",
            f"data = {daemon.dir}/data: attnd closed the connection or is gone",
        )
        tap.equal(waits_at_most(2, client.ping), gone)
        tap.equal(waits_at_most(0.5, client.ping), gone)
        tap.equal(waits_at_most(0.5, client.create_buffer, 64), gone)
        begin = time.monotonic()
        client.close()
        assert time.monotonic() - begin < 0.5


@tap.test
def a_silent_daemon_ends_nothing():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        daemon.fd_reply = lambda reply: False
        daemon.end(daemon.leases[0])
        got, took = error_of(client.ping, timeout=1.5)
        tap.equal(got[:3], ("DEADLINE_EXCEEDED", "TIMED_OUT", "buf"))
        assert 1.4 < took < 5, took
        daemon.fd_reply = None
        client.ping()


@tap.test
def a_short_timeout_bounds_the_search_and_ends_nothing():
    with FakeDaemon() as daemon:
        client = client_of(daemon, timeout=60)
        path = os.path.join(daemon.dir, "data")
        os.rename(path, path + ".away")
        daemon.end(daemon.peers[0].socket)
        got = waits_at_most(1, client.ping, timeout=0.2)
        tap.equal(got[:3], ("UNAVAILABLE", "RESTARTED", "data"))
        os.rename(path + ".away", path)
        client.ping()
        client.close()


@tap.test
def all_who_wait_learn_that_it_ended():
    with FakeDaemon() as daemon:
        client = client_of(daemon, timeout=60)
        daemon.on["ping"] = daemon.hold
        codes = []
        threads = [
            threading.Thread(target=lambda: codes.append(error_of(client.ping)[0][0]))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            daemon.held.get(timeout=10)
        begin = time.monotonic()
        kill(daemon)
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive(), "a waiting thread hangs"
        assert time.monotonic() - begin < 3
        tap.equal(codes, ["UNAVAILABLE"] * 8)
        client.close()


@tap.test
def close_wakes_who_waits_and_may_be_called_twice():
    with FakeDaemon() as daemon:
        client = client_of(daemon, timeout=60)
        daemon.on["ping"] = daemon.hold
        got = []
        thread = threading.Thread(target=lambda: got.append(error_of(client.ping)[0]))
        thread.start()
        daemon.held.get(timeout=10)
        client.close()
        thread.join(5)
        tap.equal(
            got,
            [
                (
                    "UNAVAILABLE",
                    "RESTARTED",
                    "data",
                    f"data = {daemon.dir}/data: closed by this client",
                )
            ],
        )
        client.close()
        tap.equal(error_of(client.ping)[0], got[0])


@tap.test
def close_does_not_wait_long_for_a_daemon_that_hangs():
    with FakeDaemon() as daemon:
        client = client_of(daemon, timeout=60)
        daemon.on["goodbye"] = daemon.hold
        begin = time.monotonic()
        client.close()
        took = time.monotonic() - begin
        assert took < 4, f"took {took:.1f} s"


@tap.test
def bytes_that_are_no_message_end_the_connection():
    junk = {
        b"HTTP/1.1 400 Bad Request": "not an SP message: it starts with 48 54 54 50 2f 31 2e 31 20",
        b"\1"
        + struct.pack(">Q", 1 << 40)
        + b"\x80\0\0\1": "not an SP message: it starts with 01 00 00 01 00 00 00 00 00",
    }
    for data, text in junk.items():
        with FakeDaemon() as daemon:
            client = client_of(daemon)
            daemon.on["ping"] = lambda *_, data=data: daemon.peers[-1].socket.sendall(data)
            tap.equal(
                waits_at_most(5, client.ping),
                ("UNAVAILABLE", "RESTARTED", "data", f"data = {daemon.dir}/data: {text}"),
            )
            client.close()


@tap.test
def a_reply_that_does_not_decode_is_broken_and_the_next_call_works():
    with FakeDaemon() as daemon, client_of(daemon) as client:
        daemon.on["ping"] = daemon.hold
        pending = client._submit(client._request("ping", {})[0], 10)
        peer, number, _ = daemon.held.get(timeout=10)
        peer.socket.sendall(b"\1" + struct.pack(">QI", 6, number) + b"\xff\xff")
        tap.equal(
            error_of(pending.wait)[0],
            ("INTERNAL", "BROKEN", "reply", "reply = 2 bytes: not a Reply"),
        )
        daemon.on.pop("ping")
        client.ping()


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


# ---- Buffers and the lease -----------------------------------------------------------------------


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
