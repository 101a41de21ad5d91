"""test_python_link.py: connections that break, daemons that go away: what is repeated, what ends, and
how soon the caller hears of it."""

import os
import struct
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("ATTND_BUILD") or os.path.join(ROOT, "build", "release")
sys.path[:0] = [os.path.join(BUILD, "python"), os.path.join(ROOT, "tests", "support")]

import attnd
import tap
from fake_daemon import (
    SESSION,
    FakeDaemon,
    break_first,
    client_of,
    error_of,
    ids_of,
    kill,
    ping_reply,
    refuse,
    waits_at_most,
)


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


if __name__ == "__main__":
    tap.main()
