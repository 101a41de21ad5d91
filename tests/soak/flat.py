"""flat.py: a daemon that has served many requests is as large as after a few.

Pings, attends, buffers made and freed, refusals and whole sessions, pipelined over one connection.
"""

import os
import socket

import tap

from kills import descriptors
from raw import ROW, Raw, Session, message, ok

WINDOW = 12  # requests in flight
ROUND = 200  # requests of a session of its own


def size(daemon):
    """(resident KiB, descriptors, threads) of the engine."""
    pid = daemon.engine()
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmRSS"].split()[0]), len(descriptors(pid)), int(lines["Threads"])


def one_session(daemon, n):
    """n requests of all kinds; half of what is made is left to Goodbye."""
    with Session(daemon.dir, "flat") as session:
        session.open_model()
        buffer = ok(session.call("create_buffer", bytes=8 * ROW)).buffer
        made, left = [], n - 3
        while left > 0:
            batch = []
            for i in range(min(WINDOW, left)):
                kind = i % 4
                if kind == 0:
                    batch.append(message("ping"))
                elif kind == 1:
                    batch.append(session.store(buffer, 0, i % 8))
                elif kind == 2:
                    batch.append(session.load(buffer, 4 * ROW, 99))  # refused
                elif len(made) < 8:
                    batch.append(session.request("create_buffer", bytes=4096))
                else:
                    batch.append(session.request("free_buffer", buffer=made.pop()))
            numbers = {session.raw.send(request): request for request in batch}
            for _ in batch:
                number, reply = session.raw.receive()
                wanted = 3 if numbers[number].attend.batch.tables and reply.status.code else 0
                tap.equal(reply.status.code, wanted)
                if reply.WhichOneof("result") == "create_buffer":
                    made.append(reply.create_buffer.buffer)
            left -= len(batch)


def requests(daemon, n, may_grow_kib=2048):
    """Sends n requests; AssertionError when the daemon has grown by more than noise."""
    for _ in range(20):
        one_session(daemon, ROUND)  # warm: arenas, histograms, the allocator
    before, counted = size(daemon), daemon.counter("requests")
    for _ in range(n // ROUND):
        one_session(daemon, ROUND)
    assert daemon.counter("requests") - counted >= n // ROUND * ROUND
    tap.until(lambda: daemon.gauge("sessions") == 0, "the last session has ended")

    def is_flat():
        now = size(daemon)
        return now[0] <= before[0] + may_grow_kib and now[1] <= before[1] and now[2] <= before[2]

    try:
        tap.until(is_flat, "it is as large as before", 5)
    except AssertionError:
        raise AssertionError(f"RSS KiB, descriptors, threads: {before}, now {size(daemon)}") from None
    for name in ("models", "buffers", "buffer_bytes", "pool_bytes", "in_flight"):
        tap.equal((name, daemon.gauge(name)), (name, 0))


def churn(daemon, n, may_grow_kib=8192):
    """Opens and closes n connections, every other one before it is greeted; AssertionError when the
    daemon did not take them all or is larger afterwards."""
    for _ in range(100):
        os.close(connect_only(daemon.dir))  # warm
    before, counted = size(daemon), daemon.counter("connections")
    for i in range(n):
        if i % 2:
            raw = Raw(daemon.dir)
            ok(raw.exchange(message("ping")))
            raw.close()
        else:
            os.close(connect_only(daemon.dir))
    tap.until(lambda: daemon.counter("connections") >= counted + n, f"{n} were accepted")
    tap.until(lambda: size(daemon)[1] <= before[1], f"descriptors are back at {before[1]}")
    now = size(daemon)
    assert now[0] <= before[0] + may_grow_kib, f"RSS KiB: {before[0]}, now {now[0]}"
    tap.equal(now[2], before[2])


def connect_only(directory):
    """The descriptor of a connection without a greeting."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.path.join(directory, "data"))
    return sock.detach()
