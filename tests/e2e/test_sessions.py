"""test_sessions.py: what a session is promised: how long it lives, that a repeat runs once, that
order is kept where it is asked for, that its number is a secret, and where its room ends.

Spoken over plain sockets: the Python client neither repeats a request nor comes back to a session.
"""

import os
import signal
import threading
import time

from support import Daemon, attnd, error_of

import numpy as np
import tap

import order
from attnd import wire
from raw import DIM, ROW, Raw, Session, message, ok, refusal

LINGER_S = 1.0
NO_SESSION = ("UNREGISTERED", "session: there is no such session, or it has ended")
daemon = None


def listed(what="sessions", of=None):
    return (of or daemon).rpc(f"{what}.list")[what]


def gone(session, seconds=LINGER_S + 4):
    ordinal = session.hello.ordinal
    tap.until(
        lambda: ordinal not in [one["session"] for one in listed()],
        "the session has ended",
        seconds,
    )


def is_there(session):
    return session.hello.ordinal in [one["session"] for one in listed()]


def lingers(session):
    """Waits until the daemon has noticed that nobody holds it; it is still there then."""
    line = f"session lingers  session={session.hello.ordinal}\n"
    n = daemon.log().count(line)
    return lambda: tap.until(lambda: daemon.log().count(line) > n, "the session lingers")


def nothing_is_left():
    lists = ("sessions", "models", "pools", "buffers")
    tap.equal([(what, len(listed(what))) for what in lists], [(what, 0) for what in lists])
    for name in ("sessions", "models", "buffers", "buffer_bytes", "pool_bytes", "in_flight"):
        tap.equal((name, daemon.gauge(name)), (name, 0))


# ---- How long it lives ---------------------------------------------------------------------------


@tap.test
def an_idle_session_lives_for_ever_with_a_lease_and_without():
    """B118: nobody judges life by traffic."""
    with Session(daemon.dir) as leased, Session(daemon.dir) as unleased:
        leased.lease()
        time.sleep(3 * LINGER_S)
        for session in (leased, unleased):
            ok(session.call("create_buffer", bytes=64))
    gone(leased)
    gone(unleased)


@tap.test
def a_session_without_a_lease_lingers_and_then_is_gone_with_all_it_held():
    with Session(daemon.dir) as session, Raw(daemon.dir) as other:
        session.open_model()
        ok(session.call("create_buffer", bytes=4096))
        wait = lingers(session)
        begin = time.monotonic()
        session.raw.close()
        wait()
        assert is_there(session), "it ended at once"
        gone(session)
        assert time.monotonic() - begin >= LINGER_S, "it ended before its linger"
        nothing_is_left()
        reply = other.exchange(session.request("create_buffer", bytes=1))
        tap.equal(refusal(reply), NO_SESSION)


@tap.test
def a_session_without_a_lease_is_taken_up_again_on_a_new_connection():
    with Session(daemon.dir) as session:
        session.open_model()
        buffer = ok(session.call("create_buffer", bytes=8 * ROW)).buffer
        for _ in range(3):
            wait = lingers(session)
            session.raw.close()
            wait()
            session.connect()
            ok(session.raw.exchange(session.store(buffer, 0, 1)))
        time.sleep(1.5 * LINGER_S)
        ok(session.raw.exchange(session.load(buffer, 4 * ROW, 1)))
    gone(session)


@tap.test
def a_session_with_a_lease_is_taken_up_again_and_finds_its_blocks_as_they_were():
    with Session(daemon.dir) as session:
        session.open_model()
        buffer = ok(session.call("create_buffer", bytes=8 * ROW)).buffer
        lease = session.lease()
        memory = session.fetch(lease, buffer).view("<f4").reshape(8, DIM)
        memory[:] = np.arange(8)[:, None]
        ok(session.raw.exchange(session.store(buffer, 0, 5)))
        wait = lingers(session)
        lease.close()
        session.raw.close()
        wait()
        session.connect()
        memory = session.fetch(session.lease(), buffer).view("<f4").reshape(8, DIM)
        time.sleep(1.5 * LINGER_S)
        ok(session.raw.exchange(session.load(buffer, 6 * ROW, 5)))
        tap.equal(memory[7].tolist(), [2.0] * DIM)
    gone(session)


@tap.test
def the_lease_alone_holds_it():
    with Session(daemon.dir) as session:
        session.lease()
        session.raw.close()
        time.sleep(1.5 * LINGER_S)
        session.connect()
        ok(session.call("create_buffer", bytes=1))


@tap.test
def a_lost_lease_ends_it_unless_it_is_used_or_leased_again():
    with Session(daemon.dir) as idle, Session(daemon.dir) as used, Session(daemon.dir) as leased:
        everyone = (idle, used, leased)
        leases = [session.lease() for session in everyone]
        waits = [lingers(session) for session in everyone]
        for lease in leases:
            lease.close()
        for wait in waits:
            wait()
        ok(used.call("create_buffer", bytes=1))
        leased.lease()
        gone(idle)
        tap.equal(refusal(idle.call("create_buffer", bytes=1)), NO_SESSION)
        time.sleep(LINGER_S)
        assert is_there(leased) and is_there(used)
        ok(leased.call("create_buffer", bytes=1))
        # Its data connection holds it now, and its end is the session's.
        ok(used.call("create_buffer", bytes=1))
        wait = lingers(used)
        used.raw.close()
        wait()
        gone(used)


@tap.test
def the_last_of_two_leases_counts():
    with Session(daemon.dir) as session:
        first, second = session.lease(), session.lease()
        first.close()
        time.sleep(1.5 * LINGER_S)
        tap.equal(session.ask(second)[0].status.message, "")
        wait = lingers(session)
        second.close()
        wait()
        gone(session)


@tap.test
def the_last_of_two_data_connections_counts():
    with Session(daemon.dir) as session:
        second = Raw(daemon.dir)
        ok(second.exchange(session.request("create_buffer", bytes=1)))
        session.raw.close()
        time.sleep(1.5 * LINGER_S)
        ok(second.exchange(session.request("create_buffer", bytes=1)))
        second.close()
        gone(session)


@tap.test
def goodbye_ends_it_at_once_whoever_holds_it():
    with Session(daemon.dir) as session:
        lease = session.lease()
        session.open_model()
        ok(session.call("create_buffer", bytes=1))
        ok(session.call("goodbye"))
        assert not is_there(session), "it lingers"
        nothing_is_left()
        tap.equal(refusal(session.call("create_buffer", bytes=1)), NO_SESSION)
        status = session.ask(lease)[0].status
        tap.equal((status.code, status.reason), (5, "UNREGISTERED"))


@tap.test
def a_linger_of_nothing_is_none():
    with Daemon("--session.linger=0") as own, Session(own.dir) as session:
        session.raw.close()
        tap.until(lambda: not listed(of=own), "the session has ended", 1)


@tap.test
def a_number_nobody_gave_is_refused_and_not_repeated():
    with Raw(daemon.dir) as raw:
        for number in (0, 1, 2**64 - 1):
            reply = raw.exchange(message("create_buffer", session=number, id=1, bytes=1))
            tap.equal(refusal(reply), NO_SESSION)


@tap.test
def an_engine_that_starts_again_is_another_instance_and_knows_no_old_session():
    with Daemon("--log.level=error", keeper=True) as own, Session(own.dir) as session:
        instance = session.raw.exchange(message("ping")).instance
        engine = own.engine()
        os.kill(engine, signal.SIGKILL)
        tap.until(lambda: own.engine() not in (None, engine), "another engine")
        own.wait_ready()
        session.connect()
        tap.equal(refusal(session.call("create_buffer", bytes=1)), NO_SESSION)
        reply = session.raw.exchange(message("ping"))
        assert reply.instance not in (0, instance), "the instance is the old one"


# ---- Repeats -------------------------------------------------------------------------------------


@tap.test
def a_repeated_request_gets_the_first_reply_and_runs_once():
    with Session(daemon.dir) as session:
        session.open_model()
        repeats, appended = daemon.counter("repeats"), daemon.counter("appended_tokens")
        create = session.request("create_buffer", bytes=8 * ROW)
        first = session.raw.exchange(create)
        for _ in range(3):
            tap.equal(session.raw.exchange(create), first)
        tap.equal(daemon.gauge("buffers"), 1)
        store = session.store(ok(first).buffer, 0, 2)
        first = session.raw.exchange(store)
        for _ in range(3):
            tap.equal(session.raw.exchange(store), first)
        tap.equal(daemon.counter("repeats") - repeats, 6)
        tap.equal(daemon.counter("appended_tokens") - appended, 1)


@tap.test
def a_repeat_may_say_anything_it_is_the_id_that_counts():
    with Session(daemon.dir) as session:
        create = session.request("create_buffer", bytes=64)
        first = session.raw.exchange(create)
        create.create_buffer.bytes = 128
        tap.equal(session.raw.exchange(create), first)
        tap.equal([one["bytes"] for one in listed("buffers")], ["64"])


@tap.test
def a_repeat_of_a_request_in_flight_waits_for_its_reply():
    with Session(daemon.dir) as session, Raw(daemon.dir) as second, Raw(daemon.dir) as third:
        repeats = daemon.counter("repeats")
        # It cannot be launched before what it comes after, which is not sent yet.
        create = session.request("create_buffer", bytes=64, id=8, after=7)
        for raw in (session.raw, second, third):
            raw.send(create)
        tap.until(lambda: daemon.counter("repeats") - repeats == 2, "two repeats have come")
        tap.equal(daemon.gauge("buffers"), 0)
        with Raw(daemon.dir) as fourth:
            ok(fourth.exchange(session.request("create_buffer", bytes=32, id=7)))
        replies = [raw.receive()[1] for raw in (session.raw, second, third)]
        ok(replies[0])
        tap.equal(replies[1:], replies[:1] * 2)
        tap.equal(daemon.gauge("buffers"), 2)


@tap.test
def a_repeat_on_another_connection_after_the_first_has_gone_gets_the_reply():
    with Session(daemon.dir) as session:
        session.open_model()
        create = session.request("create_buffer", bytes=8 * ROW)
        first = session.raw.exchange(create)
        store = session.store(ok(first).buffer, 0, 2)
        appended = daemon.counter("appended_tokens")
        session.raw.send(store)
        session.connect()  # whoever broke it: the reply went nowhere
        tap.equal(session.raw.exchange(create), first)
        ok(session.raw.exchange(store))
        tap.equal(daemon.counter("appended_tokens") - appended, 1)
        tap.equal(daemon.gauge("buffers"), 1)


@tap.test
def a_refusal_is_repeated_as_it_was():
    with Session(daemon.dir) as session:
        create = session.request("create_buffer", bytes=0)
        first = session.raw.exchange(create)
        tap.equal(refusal(first), ("BAD_LENGTH", "bytes = 0: a buffer has at least one"))
        create.create_buffer.bytes = 64
        tap.equal(session.raw.exchange(create), first)
        tap.equal(daemon.gauge("buffers"), 0)


@tap.test
def a_long_reply_is_repeated_whole():
    with Session(daemon.dir) as session:
        group = {"block_size": 1, "kv_dtype": "f32", "n_blocks": 1}
        opened = session.request(
            "open_model",
            spec={
                "layers": [{"n_heads": 1, "head_dim": 8, "group": i} for i in range(16)],
                "groups": [{**group, "name": f"{i:060}"} for i in range(16)],
            },
        )
        first = session.raw.exchange(opened)
        assert len(ok(first).pools) == 16 and first.ByteSize() > 1000
        tap.equal(session.raw.exchange(opened), first)
        tap.equal(daemon.gauge("models"), 1)


@tap.test
def ids_may_come_in_any_order_among_the_last_64():
    with Session(daemon.dir) as session:
        order_of_ids = np.random.default_rng(5).permutation(np.arange(1, 65)).tolist()
        for id in order_of_ids:
            ok(session.call("create_buffer", bytes=1, id=id))
        tap.equal(daemon.gauge("buffers"), 64)
        for id in order_of_ids:
            ok(session.call("create_buffer", bytes=1, id=id))
        tap.equal(daemon.gauge("buffers"), 64)


@tap.test
def an_id_lower_than_the_last_64_is_stale_and_does_not_run():
    with Session(daemon.dir) as session:
        for id in range(101, 165):
            ok(session.call("create_buffer", bytes=1, id=id))
        for _ in range(2):
            tap.equal(
                refusal(session.call("create_buffer", bytes=1, id=100)),
                ("STALE", "id = 100: lower than the last 64 of this session, it may have run"),
            )
        tap.equal(daemon.gauge("buffers"), 64)
        ok(session.call("create_buffer", bytes=1, id=165))
        # 101 was forgotten for it and may not run again.
        tap.equal(
            refusal(session.call("create_buffer", bytes=1, id=101))[0],
            "STALE",
        )
        ok(session.call("create_buffer", bytes=1, id=102))  # its first reply
        tap.equal(daemon.gauge("buffers"), 65)


@tap.test
def id_0_asks_for_no_protection():
    with Session(daemon.dir) as session:
        first, second = (ok(session.call("create_buffer", bytes=1, id=0)) for _ in range(2))
        assert first.buffer != second.buffer
        tap.equal(daemon.gauge("buffers"), 2)


@tap.test
def the_same_id_of_two_sessions_is_two_requests():
    with Session(daemon.dir) as one, Session(daemon.dir) as two:
        buffers = {ok(s.call("create_buffer", bytes=1, id=9)).buffer for s in (one, two)}
        tap.equal(len(buffers), 2)


# ---- Order ---------------------------------------------------------------------------------------


@tap.test
def after_keeps_the_order_of_requests_sent_together():
    order.chains(daemon, 40)


@tap.test
def hello_says_that_order_is_kept_and_repeats_are_harmless():
    with Session(daemon.dir) as session:
        assert {"after", "repeats"} <= set(session.hello.features), session.hello.features


@tap.test
def what_comes_after_a_request_nobody_sends_waits_until_its_deadline():
    with Session(daemon.dir) as session:
        begin = time.monotonic()
        session.send("create_buffer", bytes=1, id=2, after=1, timeout_ms=400)
        ok(session.raw.exchange(message("ping")))  # it holds up nobody
        reason, text = refusal(session.raw.receive()[1])
        waited = time.monotonic() - begin
        tap.equal(reason, "TIMED_OUT")
        assert text.startswith("timeout_ms = 400: the request waited 4"), text
        assert 0.4 <= waited < 2, waited
        tap.equal(daemon.gauge("buffers"), 0)
        tap.equal(daemon.gauge("in_flight"), 0)
        # It was refused, and so is what comes after it.
        tap.equal(
            refusal(session.call("create_buffer", bytes=1, id=3, after=2)),
            ("STALE", "after = 2: that request was refused"),
        )


@tap.test
def what_waits_for_a_request_that_is_refused_is_stale_at_once():
    with Session(daemon.dir) as session, Raw(daemon.dir) as second:
        session.send("create_buffer", bytes=1, id=2, after=1)
        session.send("create_buffer", bytes=1, id=3, after=2)
        assert second.exchange(session.request("create_buffer", bytes=0, id=1)).status.code
        replies = dict(session.raw.receive() for _ in range(2))
        got = sorted(refusal(reply) for reply in replies.values())
        tap.equal(
            got,
            [
                ("STALE", "after = 1: that request was refused"),
                ("STALE", "after = 2: that request was refused"),
            ],
        )
        tap.equal(daemon.gauge("buffers"), 0)


@tap.test
def an_order_that_cannot_be_is_refused_by_name():
    with Session(daemon.dir) as session:
        for id in range(101, 165):
            ok(session.call("create_buffer", bytes=1, id=id))
        tap.equal(
            refusal(session.call("create_buffer", bytes=1, id=200, after=200)),
            ("BAD_MESSAGE", "after = 200: it is the request's own id"),
        )
        tap.equal(
            refusal(session.call("create_buffer", bytes=1, id=201, after=7)),
            ("STALE", "after = 7: lower than the last 64 of this session"),
        )
        tap.equal(
            refusal(session.raw.exchange(message("ping", after=101))),
            ("BAD_MESSAGE", "after = 101: ping belongs to no session"),
        )
        tap.equal(
            refusal(session.raw.exchange(message("hello", after=101, protocol=1))),
            ("BAD_MESSAGE", "after = 101: hello belongs to no session"),
        )
        tap.equal(daemon.gauge("buffers"), 64)
        tap.equal(daemon.gauge("sessions"), 1)


@tap.test
def goodbye_answers_what_still_waits():
    with Session(daemon.dir) as session, Raw(daemon.dir) as second:
        session.send("create_buffer", bytes=1, id=2, after=1)
        session.send("free_buffer", buffer=5, id=3, after=1)
        tap.until(lambda: daemon.gauge("in_flight"), "it waits")
        ok(second.exchange(session.request("goodbye", id=9)))
        for _ in range(2):
            tap.equal(
                refusal(session.raw.receive()[1]),
                ("UNREGISTERED", "session: it has ended while the request waited for its turn"),
            )
        nothing_is_left()


@tap.test
def what_waits_ends_with_the_client_that_is_gone():
    with Session(daemon.dir) as session:
        session.send("create_buffer", bytes=1, id=2, after=1, timeout_ms=60000)
        tap.until(lambda: daemon.gauge("in_flight"), "it waits")
        session.raw.close()
        gone(session)
        tap.until(lambda: not daemon.gauge("in_flight"), "nothing waits any more")
        nothing_is_left()


@tap.test
def the_python_client_keeps_order_with_after():
    with attnd.Client(daemon.dir) as client:
        model = client.open_model(
            {
                "layers": [{"n_heads": 1, "head_dim": DIM}],
                "groups": [{"block_size": 4, "kv_dtype": "f32", "n_blocks": 2}],
            }
        )
        rows = client.create_buffer(8 * ROW).view("f32", (8, 1, DIM))
        batch = {"q_lens": [1], "kv_lens": [1], "tables": [[1]]}
        for i in range(100):
            rows.set(np.nan)
            rows[0:3].set(float(i))
            first = client.submit(
                model, 0, q=rows[0:1], k=rows[1:2], v=rows[2:3], out=rows[3:4], **batch
            )
            client.submit(model, 0, q=rows[0:1], out=rows[4:5], after=first, **batch).wait()
            first.wait()
            tap.equal(rows[4:5].float32().ravel().tolist(), [float(i)] * DIM)


# ---- The number is a secret ----------------------------------------------------------------------


@tap.test
def a_sessions_number_stands_nowhere_but_in_its_hello():
    with Daemon("--log.level=debug", "--log.slow=1ms") as own, Session(own.dir) as session:
        number = session.number
        lease = session.lease()
        session.open_model()
        buffer = ok(session.call("create_buffer", bytes=8 * ROW)).buffer
        session.fetch(lease, buffer)
        replies = [
            session.raw.exchange(session.store(buffer, 0, 1)),
            session.call("create_buffer", bytes=0),
            session.call("free_buffer", buffer=number),
            session.call("create_buffer", bytes=1, id=90, after=number, timeout_ms=10),
            session.raw.exchange(message("ping", session=number)),
            session.raw.exchange(session.request("ping").SerializeToString() + b"\x80\x06\1"),
        ]
        said = [str(reply) for reply in replies[:2]]
        asked = {"server.drain", "server.shutdown", "stats.reset", "kernels.explain", "log.level"}
        for method in own.rpc("rpc.discover")["methods"]:
            if method["name"] not in asked and not any(p["required"] for p in method["params"]):
                said.append(str(own.rpc(method["name"])))
        fds = f"/proc/{own.process.pid}/fd"
        said += [os.readlink(os.path.join(fds, fd)) for fd in os.listdir(fds)]
        session.call("goodbye")
        said.append(str(session.call("create_buffer", bytes=1)))
        said.append(str(session.ask(lease)[0]))
        tap.until(lambda: "session end" in own.log(), "the log tells of the end")
        text = "\n".join(said)
        # What the client itself named as an id or a handle comes back; the rest must not know it.
        log = "\n".join(
            line for line in own.log().splitlines() if f"= {number}" not in line
        )
        assert "session=1" in log and "'client': 'raw'" in text, (log, text)
        signed = number - 2**64 if number >> 63 else number
        backwards = int.from_bytes(number.to_bytes(8, "little"), "big")
        for form in (number, signed, backwards, f"{number:x}", f"{backwards:x}"):
            for place, where in (("the log", log), ("lists and replies", text)):
                assert str(form) not in where.lower(), f"{place}: {form}"


@tap.test
def numbers_are_random():
    numbers = []
    for _ in range(64):
        with Session(daemon.dir) as session:
            numbers.append(session.number)
            ok(session.call("goodbye"))
    tap.equal(len(set(numbers)), 64)
    ones = np.mean([bin(number).count("1") for number in numbers])
    assert 28 < ones < 36, f"{ones} of 64 bits are set"  # 8 sigma


# ---- Room ----------------------------------------------------------------------------------------

GROUP = {"block_size": 16, "kv_dtype": "f32", "name": "main"}
LAYER = {"n_heads": 1, "head_dim": 32}  # a block of 16 tokens is 4096 bytes


def open_blocks(session, n_blocks):
    spec = {"layers": [LAYER], "groups": [{**GROUP, "n_blocks": n_blocks}]}
    return session.call("open_model", spec=spec)


@tap.test
def buffers_of_a_session_are_counted():
    with Daemon("--session.max_buffers=3") as own, Session(own.dir) as session:
        made = [ok(session.call("create_buffer", bytes=1)).buffer for _ in range(3)]
        for _ in range(2):
            tap.equal(
                refusal(session.call("create_buffer", bytes=1)),
                ("NO_ROOM", "buffers = 3: the most a session may have"),
            )
        tap.equal(own.gauge("buffers"), 3)
        ok(session.call("free_buffer", buffer=made[1]))
        ok(session.call("create_buffer", bytes=1))
        with Session(own.dir) as other:
            ok(other.call("create_buffer", bytes=1))


@tap.test
def bytes_of_a_sessions_buffers_are_counted():
    with Daemon("--session.max_buffer=64KiB") as own, Session(own.dir) as session:
        made = ok(session.call("create_buffer", bytes=40000)).buffer
        ok(session.call("create_buffer", bytes=65536 - 40000))
        tap.equal(
            refusal(session.call("create_buffer", bytes=1)),
            ("NO_ROOM", "bytes = 1: 65536 of 65536 bytes of buffers are taken by this session"),
        )
        ok(session.call("free_buffer", buffer=made))
        tap.equal(refusal(session.call("create_buffer", bytes=40001))[0], "NO_ROOM")
        tap.equal(
            refusal(session.call("create_buffer", bytes=65537)),
            (
                "TOO_LARGE",
                "bytes = 65537: session.max_buffer allows 65536 for all buffers of a session",
            ),
        )
        tap.equal(own.gauge("buffer_bytes"), 65536 - 40000)
        ok(session.call("create_buffer", bytes=40000))


@tap.test
def models_of_a_session_are_counted():
    with Daemon("--session.max_models=2") as own, Session(own.dir) as session:
        made = [ok(open_blocks(session, 1)).model for _ in range(2)]
        tap.equal(
            refusal(open_blocks(session, 1)), ("NO_ROOM", "models = 2: the most a session may open")
        )
        tap.equal(own.gauge("models"), 2)
        ok(session.call("close_model", model=made[0]))
        ok(open_blocks(session, 1))


@tap.test
def bytes_of_a_sessions_pools_are_counted():
    with Daemon("--session.max_pool=64KiB") as own, Session(own.dir) as session:
        # Behind the last block lies a guard block that no id names.
        made = ok(open_blocks(session, 7))
        tap.equal(made.pools[0].bytes, 8 * 4096)
        ok(open_blocks(session, 7))
        tap.equal(own.gauge("pool_bytes"), 65536)
        reason, text = refusal(open_blocks(session, 1))
        tap.equal(reason, "NO_ROOM")
        assert "65536" in text, text
        tap.equal(refusal(open_blocks(session, 16))[0], "TOO_LARGE")
        tap.equal(own.gauge("models"), 2)
        ok(session.call("close_model", model=made.model))
        ok(open_blocks(session, 7))


@tap.test
def sessions_are_counted():
    with Daemon("--session.max_sessions=2") as own, Session(own.dir) as one:
        with Session(own.dir):
            for _ in range(2):
                reply = one.raw.exchange(message("hello", protocol=1))
                tap.equal(refusal(reply), ("NO_ROOM", "session: 2 of 2 sessions are open"))
            tap.equal(own.gauge("sessions"), 2)
        # It lingers and counts until it is over.
        assert one.raw.exchange(message("hello", protocol=1)).status.reason in ("", "NO_ROOM")
        ok(one.call("goodbye"))
        with Session(own.dir) as new:
            ok(new.call("create_buffer", bytes=1))


@tap.test
def requests_in_flight_are_counted_and_leave_room_for_a_ping():
    with Daemon("--session.max_in_flight=4") as own, Session(own.dir) as session:
        tap.equal(session.hello.limits.max_in_flight, 4)
        for id in range(2, 6):
            session.send("create_buffer", bytes=1, id=id, after=1)
        tap.until(lambda: own.gauge("in_flight") == 4, "four wait")
        with Raw(own.dir) as second, Session(own.dir) as other:
            begin = time.monotonic()
            reply = second.exchange(session.request("create_buffer", bytes=1, id=6))
            tap.equal(
                refusal(reply),
                ("NO_ROOM", "session: 4 requests in flight, the most a session may have"),
            )
            assert time.monotonic() - begin < 2, "it waited"
            ok(second.exchange(message("ping")))
            ok(other.call("create_buffer", bytes=1))
        tap.equal([one["n_in_flight"] for one in own.rpc("sessions.list")["sessions"]][0], 4)
        # 3 and one more fit. That is the request they all come after.
        with Raw(own.dir) as second:
            assert second.exchange(session.request("goodbye", id=1)).status.code == 0
        for _ in range(4):
            tap.equal(refusal(session.raw.receive()[1])[0], "UNREGISTERED")
        tap.equal(own.gauge("in_flight"), 0)


@tap.test
def a_session_uses_so_many_data_connections_and_no_more():
    with Session(daemon.dir) as session:
        raws = [Raw(daemon.dir) for _ in range(64)]
        for raw in raws[:63]:
            ok(raw.exchange(session.request("create_buffer", bytes=1)))
        for _ in range(2):
            tap.equal(
                refusal(raws[63].exchange(session.request("create_buffer", bytes=1))),
                ("NO_ROOM", "session: it uses 64 data connections already, the most it may"),
            )
        raws[0].close()

        def room():
            reply = raws[63].exchange(session.request("create_buffer", bytes=1))
            return not reply.status.code

        tap.until(room, "a connection that closed makes room")
        for raw in raws:
            raw.close()


@tap.test
def everything_is_given_back():
    tap.until(lambda: not listed(), "all sessions have ended", LINGER_S + 4)
    nothing_is_left()
    tap.equal(daemon.counter("device_errors"), 0)
    tap.equal(daemon.counter("sessions_opened"), daemon.counter("sessions_ended"))


with Daemon(f"--session.linger={LINGER_S * 1000:.0f}ms") as daemon:
    tap.main()
