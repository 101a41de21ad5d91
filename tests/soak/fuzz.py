"""fuzz.py: bytes that nobody would send are answered, one by one, and the daemon stays as it was.

A message is random bytes, a good request with a few bytes changed, the front of one, or the front of
one and the back of another.
"""

import random
import socket

import tap

from flat import size
from raw import ROW, Raw, Session, message, ok, one_row, tensor

WINDOW = 12  # messages in flight
A_SESSION = 600  # messages until the next one, in case a goodbye came about
MAX_RANDOM = 1024  # bytes


def good_requests(session):
    """One of every op that is served, but those that begin or end a session."""
    session.open_model()
    buffer = ok(session.call("create_buffer", bytes=16 * ROW)).buffer
    plan = ok(session.call("create_plan", model=session.model, batch=one_row(1))).plan
    layer = {"first": tensor(buffer, 0), "layer_stride": ROW}
    out = {"first": tensor(buffer, 8 * ROW), "layer_stride": ROW}
    lse = {"buffer": buffer, "offset": 12 * ROW, "dtype": "f32", "shape": [1, 1]}
    part = {"out": tensor(buffer, 0), "lse": lse}
    update = {"plan": plan, "version": 1, "kv_lens": {"data": b"\2\0\0\0"}}
    spec = {
        "name": "m",
        "layers": [{"n_heads": 2, "head_dim": 8, "window": 3, "softcap": 2.0}],
        "groups": [{"block_size": 4, "kv_dtype": "f16", "n_blocks": 2, "name": "g"}],
    }
    made = [
        message("ping"),
        session.request("open_model", spec=spec),
        session.request("close_model", model=session.model + 1),
        session.request("create_buffer", bytes=64),
        session.request("free_buffer", buffer=buffer + 1),
        session.request("create_plan", model=session.model, batch=one_row(2)),
        session.request("update_plan", update=update),
        session.request("drop_plan", plan=plan + 1),
        session.store(buffer, 0, 1),
        session.load(buffer, 4 * ROW, 1),
        session.request("step", plan=plan, first_layer=0, n_layers=1, q=layer, out=out),
        session.request("merge", partials=[part, part], out=tensor(buffer, 8 * ROW)),
    ]
    for request in made:
        request.id = 0  # no protection: what is sent runs
    return [request.SerializeToString() for request in made]


def spoilt(good, rng):
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.randrange(MAX_RANDOM + 1))
    first = rng.choice(good)
    if kind == 1:
        data = bytearray(first)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    front = first[: rng.randrange(len(first))]
    if kind == 2:
        return front
    second = rng.choice(good)
    return front + second[rng.randrange(len(second)) :]


def one_session(daemon, rng, n):
    """Codes of the answers to up to n messages; one that waits for something ends it early."""
    codes = {}
    with Session(daemon.dir, "fuzz") as session:
        good = good_requests(session)
        session.raw.sock.settimeout(2)
        try:
            for _ in range(0, n, WINDOW):
                sent = {session.raw.send(spoilt(good, rng)) for _ in range(WINDOW)}
                for _ in range(WINDOW):
                    number, reply = session.raw.receive()
                    sent.remove(number)
                    status = reply.status
                    assert not status.code or status.reason and status.message, status
                    codes[status.code] = codes.get(status.code, 0) + 1
        except socket.timeout:
            # An `after` or a timeout came about: another client must not notice.
            with Raw(daemon.dir) as raw:
                ok(raw.exchange(message("ping")))
            session.raw.close()
    return codes


def messages(daemon, n, seed=1, may_grow_kib=8192):
    """Sends n messages; AssertionError for one without an answer, or when the daemon has grown. Returns
    how many got each code."""
    rng = random.Random(seed)
    codes, before = {}, None
    while sum(codes.values()) < n:
        for code, count in one_session(daemon, rng, A_SESSION).items():
            codes[code] = codes.get(code, 0) + count
        before = before or size(daemon)
    tap.until(lambda: daemon.gauge("sessions") == 0, f"seed {seed}: every session has ended")
    tap.until(lambda: size(daemon)[1] <= before[1], f"seed {seed}: descriptors are back")
    now = size(daemon)
    assert now[0] <= before[0] + may_grow_kib, f"seed {seed}: RSS KiB {before[0]}, now {now[0]}"
    tap.equal(now[2], before[2])
    for name in ("models", "plans", "buffers", "buffer_bytes", "pool_bytes", "in_flight"):
        tap.equal((name, daemon.gauge(name)), (name, 0))
    return codes
