"""test_hostile.py: what a client gets wrong, on purpose or not, is refused by name, changes no byte of a
pool, and leaves the daemon serving.

Requests are built by hand as protobuf messages and sent over plain sockets, so nothing of the Python
client's own checks stands between.
"""

import hashlib
import os
import random
import socket
import struct
import threading

from support import Daemon, attnd

import numpy as np
import tap

from attnd import wire
from raw import Raw

daemon = None
N_HEADS, N_KV_HEADS, DIM, T, N_BLOCKS = 2, 1, 8, 4, 8
TOKENS = 2


class Peer:
    """A session with one model and one buffer, whose attend request is good until a test spoils it."""

    def __init__(self):
        self.client = attnd.Client(daemon.dir, name="hostile")
        self.model = self.client.open_model(
            {
                "name": "m",
                "layers": [
                    {"n_heads": N_HEADS, "n_kv_heads": N_KV_HEADS, "head_dim": DIM, "count": 2}
                ],
                "groups": [
                    {"block_size": T, "kv_dtype": "f32", "n_blocks": N_BLOCKS, "name": "main"}
                ],
            }
        )
        self.buffer = self.client.create_buffer(4096)
        self.bytes = self.buffer.view("u8", (4096,))
        self.raw = Raw(daemon.dir)
        self.fill_pool()

    def close(self):
        self.raw.close()
        self.client.close()

    def session(self):
        request, _ = self.client._request("ping", {})
        return request.session

    def good(self):
        """Decode of one sequence of 10 tokens, the last two of them new; nothing is wrong with it."""
        request = wire.message_class("Request")()
        request.id = next(self.client._ids)
        request.session = self.session()
        a = request.attend
        a.model, a.layer = self.model.handle, 0
        shapes = {
            "q": (0, N_HEADS),
            "k": (512, N_KV_HEADS),
            "v": (1024, N_KV_HEADS),
            "out": (2048, N_HEADS),
        }
        for name, (offset, heads) in shapes.items():
            t = getattr(a, name)
            t.buffer, t.offset, t.dtype = self.buffer.handle, offset, 1
            t.shape.extend([TOKENS, heads, DIM])
        a.lse.buffer, a.lse.offset, a.lse.dtype = self.buffer.handle, 3072, 1
        a.lse.shape.extend([TOKENS, N_HEADS])
        a.batch.q_lens.data = np.array([TOKENS], "<i4").tobytes()
        a.batch.kv_lens.data = np.array([10], "<i4").tobytes()
        table = a.batch.tables.add()
        table.block_ids.data = np.array([6, 1, 3], "<i4").tobytes()
        return request

    def send(self, request):
        """The Reply to a request under a new id, so that one sent again runs again."""
        request.id = next(self.client._ids)
        return self.raw.exchange(request)

    def pool_file(self):
        """The memory of the newest pool, by the engine's own descriptor for it."""
        fds = f"/proc/{daemon.process.pid}/fd"
        pools = {}
        for fd in os.listdir(fds):
            try:
                pools[os.readlink(os.path.join(fds, fd))] = os.path.join(fds, fd)
            except FileNotFoundError:
                pass  # A connection that has closed since.
        name = f"/memfd:pool/{self.model.handle}/0 (deleted)"
        assert name in pools, (name, pools)
        return pools[name]

    def fill_pool(self):
        with open(self.pool_file(), "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.write(np.random.default_rng(7).normal(size=size // 4).astype("<f4").tobytes())

    def pool_hash(self):
        with open(self.pool_file(), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()


def spoil(path, value):
    """Sets a field of the attend request by its path; lists replace repeated fields, bytes Ints."""

    def change(request):
        at = request.attend
        *parents, last = path.split(".")
        for name in parents:
            at = getattr(at, name) if not name.isdigit() else at[int(name)]
        if isinstance(value, list) and last in (
            "q_lens",
            "kv_lens",
            "block_ids",
            "slots",
            "positions",
        ):
            getattr(at, last).data = np.array(value, "<i8").astype("<i4").tobytes()
        elif isinstance(value, list):
            del getattr(at, last)[:]
            getattr(at, last).extend(value)
        else:
            setattr(at, last, value)

    return change


I31 = 2**31 - 1
WRONG = [
    # (what is spoiled, code, reason, field)
    (spoil("model", 99), 5, "NO_SUCH_HANDLE", "model"),
    (spoil("layer", 2), 3, "BAD_GEOMETRY", "layer"),
    (spoil("layer", 2**32 - 1), 3, "BAD_GEOMETRY", "layer"),
    (spoil("q.buffer", 99), 5, "NO_SUCH_HANDLE", "q.buffer"),
    (spoil("q.dtype", 2), 3, "BAD_QUANT", "q.dtype"),
    (spoil("q.dtype", 999), 3, "BAD_MESSAGE", "q.dtype"),
    (spoil("q.dtype", -1), 3, "BAD_MESSAGE", "q.dtype"),
    (spoil("q.offset", 4096), 3, "BAD_TENSOR", "q.offset"),
    (spoil("q.offset", 2), 3, "BAD_TENSOR", "q.offset"),
    (spoil("q.offset", 2**64 - 4), 3, "BAD_TENSOR", "q.offset"),
    (spoil("k.offset", 2**63), 3, "BAD_TENSOR", "k.offset"),
    (spoil("out.offset", 2**64 - 64), 3, "BAD_TENSOR", "out.offset"),
    (spoil("out.offset", 0), 3, "BAD_TENSOR", "out.offset"),
    (spoil("lse.offset", 2048), 3, "BAD_TENSOR", "out.offset"),
    (spoil("q.shape", [3, N_HEADS, DIM]), 3, "BAD_GEOMETRY", "q.shape[0]"),
    (spoil("q.shape", [TOKENS, 3, DIM]), 3, "BAD_GEOMETRY", "q.shape[1]"),
    (spoil("q.shape", []), 3, "BAD_GEOMETRY", "q.shape"),
    (spoil("q.shape", [2**63, 2**63, 2**63]), 3, "BAD_GEOMETRY", "q.shape[0]"),
    (spoil("q.shape", [1] * 1000), 3, "BAD_GEOMETRY", "q.shape"),
    (spoil("q.strides", [-64, 32, 4]), 3, "BAD_TENSOR", "q.strides[0]"),
    (spoil("q.strides", [2**62, 32, 4]), 3, "BAD_TENSOR", "q.offset"),
    (spoil("q.strides", [64, 32, 8]), 3, "BAD_TENSOR", "q.strides[2]"),
    (spoil("q.strides", [64, 32]), 3, "BAD_TENSOR", "q.strides"),
    (spoil("out.strides", [0, 32, 4]), 3, "BAD_TENSOR", "out.strides"),
    (spoil("batch.slots", [0, 1, 2]), 3, "BAD_LENGTH", "batch.slots"),
    (spoil("batch.tables.0.version", 3), 12, "UNSUPPORTED", "batch.tables[0].version"),
    (spoil("lse.dtype", 3), 3, "BAD_TENSOR", "lse.dtype"),
    (spoil("batch.n_contexts", 2), 3, "BAD_PHASE", "batch.n_contexts"),
    (spoil("batch.q_lens", [-1]), 3, "BAD_LENGTH", "batch.q_lens[0]"),
    (spoil("batch.q_lens", [I31]), 3, "TOO_LARGE", "batch.q_lens[0]"),
    (spoil("batch.q_lens", [2**31]), 3, "BAD_LENGTH", "batch.q_lens[0]"),
    (spoil("batch.q_lens", [TOKENS, 0]), 3, "BAD_LENGTH", "batch.kv_lens"),
    (spoil("batch.q_lens.data", b"\1\0\0"), 3, "BAD_LENGTH", "batch.q_lens"),
    (spoil("batch.kv_lens", [-1]), 3, "BAD_LENGTH", "batch.kv_lens[0]"),
    (spoil("batch.kv_lens", [2**31]), 3, "BAD_LENGTH", "batch.kv_lens[0]"),
    (spoil("batch.kv_lens", [1]), 3, "BAD_LENGTH", "batch.kv_lens[0]"),
    (spoil("batch.kv_lens", [I31]), 3, "BAD_LENGTH", "batch.tables[0].block_ids"),
    (spoil("batch.kv_lens", [13]), 3, "BAD_LENGTH", "batch.tables[0].block_ids"),
    (spoil("batch.tables.0.width", 2), 3, "KV_LEN_EXCEEDS_POOL", "batch.kv_lens[0]"),
    (spoil("batch.tables.0.width", 2**32 - 1), 3, "BAD_LENGTH", "batch.tables[0].block_ids"),
    (spoil("batch.tables.0.group", 1), 3, "BAD_GEOMETRY", "batch.tables[0].group"),
    (
        spoil("batch.tables.0.block_ids", [6, 1, N_BLOCKS]),
        3,
        "BAD_BLOCK",
        "batch.tables[0].block_ids[2]",
    ),
    (spoil("batch.tables.0.block_ids", [6, -1, 3]), 3, "BAD_BLOCK", "batch.tables[0].block_ids[1]"),
    (
        spoil("batch.tables.0.block_ids", [I31, 1, 3]),
        3,
        "BAD_BLOCK",
        "batch.tables[0].block_ids[0]",
    ),
    (
        spoil("batch.tables.0.block_ids", [2**31, 1, 3]),
        3,
        "BAD_BLOCK",
        "batch.tables[0].block_ids[0]",
    ),
    (spoil("batch.tables.0.block_ids", [3, 1, 3]), 3, "BAD_BLOCK", "batch.tables[0].block_ids[0]"),
    (spoil("batch.slots", [0, 0]), 3, "BAD_BLOCK", "batch.slots[1]"),
    (spoil("batch.slots", [0, N_BLOCKS * T]), 3, "BAD_BLOCK", "batch.slots[1]"),
    (spoil("batch.slots", [0]), 3, "BAD_LENGTH", "batch.slots"),
    (spoil("batch.positions", [0, -1]), 3, "BAD_ROPE", "batch.positions[1]"),
    (spoil("batch.mask", 4), 12, "UNSUPPORTED", "batch.mask"),
    (spoil("batch.mask", 77), 3, "BAD_MESSAGE", "batch.mask"),
    (spoil("keys", 1), 12, "UNSUPPORTED", "keys"),
    (spoil("sync.mode", 2), 12, "UNSUPPORTED", "sync.mode"),
    (spoil("plan", 5), 5, "NO_SUCH_HANDLE", "plan"),
    (spoil("batch.sequences", [5]), 12, "UNSUPPORTED", "batch.sequences"),
]


@tap.test
def every_wrong_field_is_named_and_changes_nothing():
    peer = Peer()
    try:
        before = peer.pool_hash()
        memory = np.asarray(peer.bytes).copy()
        for number, (change, code, reason, field) in enumerate(WRONG):
            request = peer.good()
            change(request)
            status = peer.send(request).status
            got = (status.code, status.reason, status.field)
            assert got == (code, reason, field), f"row {number}: {got} {status.message}"
        assert np.array_equal(np.asarray(peer.bytes), memory), "a refusal wrote to a buffer"
        tap.equal(peer.pool_hash(), before)
        tap.equal(peer.send(peer.good()).status.message, "")
        assert peer.pool_hash() != before, "the hash does not see an append"
    finally:
        peer.close()


@tap.test
def names_have_no_control_characters_and_no_rotation_has_no_numbers():
    spec = {
        "name": "m",
        "layers": [{"n_heads": 1, "head_dim": 8}],
        "groups": [{"block_size": T, "kv_dtype": "f32", "n_blocks": 1}],
    }
    with attnd.Client(daemon.dir) as client:
        for name in ("a\nb", "\x1b[2J", "c1\u0085", "\x7f"):
            wrong = tap.raises(attnd.Error, client.open_model, dict(spec, name=name))
            tap.equal((wrong.reason, wrong.field), ("BAD_MESSAGE", "spec.name"))
            wrong = tap.raises(attnd.Error, attnd.Client, daemon.dir, name=name)
            tap.equal((wrong.reason, wrong.field), ("BAD_MESSAGE", "client"))
        layer = dict(spec["layers"][0], rope={"pairing": "none", "dim": 8})
        wrong = tap.raises(attnd.Error, client.open_model, dict(spec, layers=[layer]))
        tap.equal((wrong.reason, wrong.field), ("BAD_ROPE", "spec.layers[0].rope.pairing"))
        client.open_model(dict(spec, name="Größe ü"))


@tap.test
def many_small_parts_take_no_more_memory_than_their_bytes_allow():
    peer = Peer()
    try:
        request = peer.good()
        del request.attend.batch.tables[:]
        for _ in range(700_000):
            request.attend.batch.tables.add()
        payload = request.SerializeToString()
        assert len(payload) > 1_400_000
        tap.equal(peer.raw.exchange(payload).status.reason, "TOO_LARGE")
        tap.equal(peer.send(peer.good()).status.message, "")
    finally:
        peer.close()


@tap.test
def missing_parts_are_named():
    peer = Peer()
    try:
        for part, reason, field in [
            ("q", "BAD_TENSOR", "q"),
            ("out", "BAD_TENSOR", "out"),
            ("k", "BAD_COMBINATION", "k"),
            ("v", "BAD_COMBINATION", "v"),
            ("batch", "BAD_MESSAGE", "batch"),
        ]:
            request = peer.good()
            request.attend.ClearField(part)
            status = peer.send(request).status
            tap.equal((status.code, status.reason, status.field), (3, reason, field))
    finally:
        peer.close()


@tap.test
def ops_nobody_serves_say_their_name():
    raw = Raw(daemon.dir)
    request = wire.message_class("Request")
    served = {
        "ping",
        "hello",
        "goodbye",
        "open_model",
        "close_model",
        "create_buffer",
        "free_buffer",
        "create_plan",
        "update_plan",
        "drop_plan",
        "attend",
        "step",
        "merge",
    }
    names = [f.name for f in request.DESCRIPTOR.oneofs_by_name["op"].fields]
    tap.equal(len(names), 28)
    for name in names:
        if name in served:
            continue
        message = request(id=1)
        getattr(message, name).SetInParent()
        status = raw.exchange(message.SerializeToString()).status
        tap.equal((status.code, status.reason, status.field), (12, "UNSUPPORTED", "op"))
        assert name in status.message, status.message
    raw.close()


@tap.test
def a_session_that_is_not_there_is_unregistered():
    raw = Raw(daemon.dir)
    message = wire.message_class("Request")(id=1, session=12345)
    message.create_buffer.bytes = 1
    status = raw.exchange(message.SerializeToString()).status
    tap.equal((status.code, status.reason, status.field), (5, "UNREGISTERED", "session"))
    assert "12345" not in status.message, "a session's number is a secret"
    raw.close()


@tap.test
def another_sessions_handles_are_not_found():
    mine, other = Peer(), Peer()
    try:
        request = mine.good()
        request.attend.model = other.model.handle
        tap.equal(mine.send(request).status.reason, "NO_SUCH_HANDLE")
        request = mine.good()
        request.attend.out.buffer = other.buffer.handle
        tap.equal(mine.send(request).status.field, "out.buffer")
    finally:
        mine.close()
        other.close()


@tap.test
def fields_of_a_newer_protocol_are_refused_by_number():
    peer = Peer()
    try:
        unknown = bytes([0x82 | 0x80, 0x06, 0x01, 0x78])  # field 96, one byte
        payload = peer.good()
        attend = payload.attend.SerializeToString() + unknown
        payload.ClearField("attend")
        head = payload.SerializeToString()
        size = len(attend)
        tag = bytes([0xDA, 0x01])  # field 27, length-delimited
        length = bytes([size & 0x7F | 0x80, size >> 7]) if size > 127 else bytes([size])
        status = peer.raw.exchange(head + tag + length + attend).status
        tap.equal((status.code, status.reason), (12, "UNSUPPORTED"))
        assert "96" in status.message, status.message
    finally:
        peer.close()


@tap.test
def truncated_and_random_bytes_are_bad_messages():
    peer = Peer()
    rng = random.Random(11)
    try:
        good = peer.good()
        good.ClearField("id")  # or bytes that change it use up the ids of the session
        whole = good.SerializeToString()
        for cut in range(len(whole)):
            status = peer.raw.exchange(whole[:cut]).status
            assert status.code != 0, f"{cut} of {len(whole)} bytes were accepted"
        for _ in range(2000):
            reply = peer.raw.exchange(rng.randbytes(rng.randrange(1024)))
            assert reply.status.code != 0
        for _ in range(2000):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            peer.raw.exchange(bytes(data))  # whatever it says: an answer, and no crash
        tap.equal(peer.send(peer.good()).status.message, "")
    finally:
        peer.close()


@tap.test
def a_frame_that_claims_too_much_loses_its_connection_only():
    raw, other = Raw(daemon.dir), Raw(daemon.dir)
    raw.sock.sendall(b"\x01" + struct.pack(">Q", 2**40))
    try:
        closed = raw.sock.recv(1) == b""
    except ConnectionResetError:
        closed = True
    assert closed, "the connection is still open"
    other.close()
    Raw(daemon.dir).close()


@tap.test
def thirty_connections_that_close_at_once_do_not_stop_the_daemon():
    for _ in range(30):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(os.path.join(daemon.dir, "data"))
        sock.close()

    def served():
        try:
            raw = Raw(daemon.dir)
            raw.sock.settimeout(1)
            reply = raw.exchange(b"\x82\x01\x00")
            raw.close()
            return reply.status.code == 0
        except OSError:
            return False

    tap.until(served, "a new client is served", 5)


@tap.test
def a_deadline_that_passes_in_the_queue_is_told():
    peer = Peer()
    try:
        # Requests whose tables take the engine thread milliseconds to check, then one in a hurry.
        n = 1_000_000
        slow = peer.good()
        slow.ClearField("id")  # each is to run
        slow.attend.ClearField("k")
        slow.attend.ClearField("v")
        slow.attend.batch.kv_lens.data = np.array([n * T], "<i4").tobytes()
        slow.attend.batch.tables[0].block_ids.data = np.full(n, N_BLOCKS - 1, "<i4").tobytes()
        slow.attend.batch.tables[0].block_ids.data += np.array([N_BLOCKS], "<i4").tobytes()
        slow.attend.batch.kv_lens.data = np.array([n * T + 1], "<i4").tobytes()
        hurried = wire.message_class("Request")(timeout_ms=1)
        hurried.ping.SetInParent()
        payload = slow.SerializeToString()
        reasons = set()
        for _ in range(20):
            for _ in range(8):
                peer.raw.send(payload)
            last = peer.raw.send(hurried.SerializeToString())
            for _ in range(9):
                number, reply = peer.raw.receive()
                if number == last:
                    reasons.add((reply.status.reason, reply.status.field))
                else:
                    tap.equal(reply.status.reason, "BAD_BLOCK")
            if ("TIMED_OUT", "timeout_ms") in reasons:
                break
        assert ("TIMED_OUT", "timeout_ms") in reasons, reasons
    finally:
        peer.close()


@tap.test
def integers_in_shared_memory_are_checked_as_copied():
    """B137: a client flips an entry of its table while it sends requests."""
    peer = Peer()
    try:
        table = np.frombuffer(memoryview(np.asarray(peer.bytes)), "<i4")[960:963]
        request = peer.good()
        ref = request.attend.batch.tables[0].block_ids.ref
        ref.buffer, ref.offset, ref.dtype = peer.buffer.handle, 960 * 4, 8
        ref.shape.extend([3])
        stop = threading.Event()

        def flip():
            while not stop.is_set():
                table[1] = 10**9
                table[1] = 1

        table[:] = [6, 1, 3]
        tap.equal(peer.send(request).status.message, "")
        thread = threading.Thread(target=flip)
        thread.start()
        seen = set()
        for _ in range(500):
            seen.add(peer.send(request).status.reason)
        stop.set()
        thread.join()
        assert seen <= {"", "BAD_BLOCK"}, seen
    finally:
        peer.close()


@tap.test
def everything_is_given_back():
    def empty():
        stats = daemon.rpc("stats.get")
        return daemon.rpc("sessions.list")["sessions"] == [] and stats

    stats = tap.until(empty, "all sessions have ended")
    for name in ("models", "buffers", "buffer_bytes", "pool_bytes", "in_flight"):
        tap.equal(int(stats["gauges"][name]), 0)
    tap.equal(int(stats["counters"]["device_errors"]), 0)


with Daemon("--log.level=error") as daemon:
    tap.main()
