"""test_field.py: faults that users of other caches and daemons met, by their numbers: what a client
leaves behind, what it sends, what is seen of it twice. Others of the kind stand where their subject is.
"""

import fcntl
import os
import struct
import subprocess
import sys
import time

from support import BUILD, IS_SANITIZED, Daemon, attnd, error_of

import numpy as np
import tap

import fuzz
import kills
from attnd import wire
from raw import DIM, N_HEADS, ROW, Raw, Session, message, ok, one_row, refusal, tensor

LINGER_S = 0.3
LINGER = f"--session.linger={LINGER_S * 1000:.0f}ms"
N_FUZZ = 3000 if IS_SANITIZED else 30000
MIB = 1 << 20
daemon = None

OWNER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import attnd
client = attnd.Client(sys.argv[2], name="owner")
model = client.open_model({"layers": [{"n_heads": 4, "head_dim": 64}],
                           "groups": [{"kv_dtype": "f32", "block_size": 16, "n_blocks": 1}]})
buffer = client.create_buffer(256 << 20)
buffer.view("u8", (256 << 20,)).array[::4096] = 1
q, k, v, out = (buffer.view("f32", (1, 4, 64), offset=i << 26) for i in range(4))
client.attend(model, 0, q=q, k=k, v=v, out=out, q_lens=[1], kv_lens=[1], tables=[[0]])
print("up", flush=True)
time.sleep(600)
"""


def resident_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1])


# ---- What a client leaves ------------------------------------------------------------------------


@tap.test
def b116_a_killed_client_gives_256_mib_back_within_its_linger():
    with Daemon(LINGER, keeper=True) as own:
        with attnd.Client(own.dir) as client:
            client.ping()
        tap.until(lambda: own.gauge("sessions") == 0, "nobody is there")
        before, kib = kills.what_is_held(own), resident_kib(own.engine())
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, os.path.join(BUILD, "python"), own.dir],
            stdout=subprocess.PIPE,
        )
        with owner:
            tap.equal(owner.stdout.readline(), b"up\n")
            tap.equal(own.gauge("buffer_bytes"), 256 * MIB)
            tap.equal(kills.what_is_held(own)["memory files"], before["memory files"] + 2)
            owner.kill()
        begin = time.monotonic()
        tap.until(lambda: own.gauge("buffer_bytes") == 0, "its buffer is freed")
        assert time.monotonic() - begin < LINGER_S + 2, "it took longer than the linger"
        kills.wait_until_given_back(own, before, LINGER_S)
        tap.equal(own.rpc("sessions.list")["sessions"], [])
        if not IS_SANITIZED:  # a sanitizer keeps freed memory for a while
            grown = resident_kib(own.engine()) - kib
            assert grown < 2048, f"{grown} KiB more"
        tap.equal(own.stop(), 0)


@tap.test
def b119_a_buffer_freed_under_a_request_goes_when_that_is_done_and_once():
    """What one daemon exports stands here for two registrations of one allocation."""
    n, heads, dim = 512, 8, 64
    shape = (n, heads, dim)
    n_bytes = n * heads * dim * 4
    with Daemon("--log.level=error") as own, attnd.Client(own.dir, timeout=60) as client:
        model = client.open_model(
            {
                "layers": [{"n_heads": heads, "head_dim": dim}],
                "groups": [{"kv_dtype": "f32", "block_size": 64, "n_blocks": n // 64}],
            }
        )
        call = {"q_lens": [n], "kv_lens": [n], "tables": [list(range(n // 64))], "n_contexts": 1}
        rng, other = np.random.default_rng(119), client.create_buffer(4096)
        values = [rng.normal(size=shape) for _ in range(3)]
        before, got = kills.what_is_held(own), []
        for is_early in (False, True):
            buffer = client.create_buffer(4 * n_bytes)
            q, k, v, out = (buffer.view("f32", shape, offset=i * n_bytes) for i in range(4))
            for one, of in zip((q, k, v), values):
                one.set(of)
            pending = client.submit(model, 0, q=q, k=k, v=v, out=out, **call)
            if not is_early:
                pending.wait()
            buffer.free()
            pending.wait()
            got.append(out.array.copy())
            tap.equal(error_of(client._free_buffer, buffer, None)[1], "NO_SUCH_HANDLE")
            tap.until(lambda: own.gauge("buffer_bytes") == 4096, "its bytes are given back")
            kills.wait_until_given_back(own, before, 0)
        assert np.array_equal(*got) and np.abs(got[0]).max() > 0
        other.free()
        tap.equal(own.stop(), 0)


@tap.test
def b122_sigterm_during_a_request_leaves_no_object_and_touches_no_foreign_one():
    """Named like ours, after the pid of a process that lives: ownership is a lock, not a pid."""
    foreign = f"/dev/shm/attnd-shm-{os.getpid():016x}{0:016x}"
    with open(foreign, "xb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(b"precious")
            file.flush()
            with Daemon() as own, Session(own.dir) as session:
                made = ok(session.call("create_buffer", bytes=4096, named=True))
                path = f"/dev/shm{made.shm_name}"
                assert os.path.exists(path)
                session.send("create_buffer", bytes=64, named=True, after=999)
                tap.until(lambda: own.gauge("in_flight") == 1, "one is in flight")
                tap.equal(own.stop(), 0)
                assert not os.path.exists(path), "its object is left"
            with open(foreign, "rb") as again:
                tap.equal(again.read(), b"precious")
        finally:
            os.unlink(foreign)


# ---- What a client sends -------------------------------------------------------------------------


def spec(layer=(), group=()):
    return {
        "layers": [{"n_heads": 1, "head_dim": 64, **dict(layer)}],
        "groups": [{"kv_dtype": "f32", "block_size": 4, "n_blocks": 2, **dict(group)}],
    }


@tap.test
def b131_every_number_that_is_no_dtype_is_refused_by_its_field():
    known = wire.Request.DESCRIPTOR.file.enum_types_by_name["Dtype"].values_by_number
    with Session(daemon.dir) as session:
        session.open_model()
        buffer = ok(session.call("create_buffer", bytes=8 * ROW)).buffer
        for number in (-1, -(2**31), 2**31 - 1, 999, *range(len(known), 40)):
            request = session.store(buffer, 0, 0)
            request.attend.q.dtype = number
            reply = session.raw.exchange(request)
            tap.equal((reply.status.code, reply.status.field), (3, "q.dtype"))
            request = session.request("open_model", spec=spec())
            request.open_model.spec.groups[0].kv_dtype = number
            reply = session.raw.exchange(request)
            tap.equal((reply.status.code, reply.status.field), (3, "spec.groups[0].kv_dtype"))
        for number in set(known) - {1}:  # one, but not of this tensor
            request = session.store(buffer, 0, 0)
            request.attend.q.dtype = number
            reply = session.raw.exchange(request)
            tap.equal((reply.status.code, reply.status.field), (3, "q.dtype"))


@tap.test
def b131_messages_of_no_kind_are_bad_messages():
    with Raw(daemon.dir) as raw:
        unknown = b"".join(bytes([number << 3 & 0x7F | 0x82, number >> 4, 0]) for number in (63,))
        for payload in (b"", b"\x00", unknown, b"\xff" * 1024, os.urandom(1024)):
            status = raw.exchange(payload).status
            assert status.code in (3, 12) and status.reason, (payload[:16], status)
        ok(raw.exchange(message("ping")))


@tap.test
def b131_thousands_of_messages_that_nobody_would_send_are_answered():
    with Daemon(LINGER, "--log.level=error") as own:
        codes = fuzz.messages(own, N_FUZZ, seed=131, may_grow_kib=1 << 20 if IS_SANITIZED else 8192)
        assert {0, 3} <= set(codes), f"they do not get far: {codes}"
        tap.equal(own.log(), "")
        tap.equal(own.stop(), 0)


@tap.test
def b133_sizes_that_no_format_has_are_refused_and_nothing_aborts():
    group, layer = "spec.groups[0].", "spec.layers[0]."
    wrong = (
        # (layer, group, what is refused): a format that is not served is UNIMPLEMENTED whatever its size
        ({"head_dim": 24}, {"kv_dtype": "nvfp4"}, group + "kv_dtype"),
        ({"head_dim": 100}, {"kv_dtype": "e4m3"}, group + "kv_dtype"),
        ({"kind": "mla", "head_dim": 575, "rope": {"pairing": "gptj", "dim": 63}}, {}, layer + "kind"),
        ({"rope": {"pairing": "neox", "dim": 63}}, {}, layer + "rope.dim"),
        ({"head_dim": 0}, {}, layer + "head_dim"),
        ({"head_dim": 2**32 - 1}, {}, layer + "head_dim"),
        ({}, {"block_size": 0}, group + "block_size"),
        ({}, {"block_size": 3}, group + "block_size"),
        ({}, {"block_size": 2**32 - 1}, group + "block_size"),
    )
    with Session(daemon.dir) as session:
        for of_layer, of_group, field in wrong:
            status = session.call("open_model", spec=spec(of_layer, of_group)).status
            codes = (12,) if "kv_dtype" in of_group or "kind" in of_layer else (3,)
            assert status.code in codes and status.field == field, (of_layer, of_group, status)
        tap.equal(daemon.gauge("models"), 0)
        session.open_model()


@tap.test
def b136_a_stride_that_one_token_does_not_use_is_checked_when_two_do():
    with Session(daemon.dir) as session:
        session.open_model()
        buffer = ok(session.call("create_buffer", bytes=16 * ROW)).buffer
        memory = session.fetch(session.lease(), buffer).view("<f4").reshape(16, DIM)
        memory[2] = 7.0
        strides = [1 << 40, DIM * 4, 4]
        one = session.store(buffer, 0, 5)
        one.attend.q.strides.extend(strides)
        one.attend.out.strides.extend(strides)
        ok(session.raw.exchange(one))
        tap.equal(memory[3].tolist(), [7.0] * DIM)
        memory[:] = 1.0
        two = session.request("attend", model=session.model, batch=one_row(5))
        for name, at in (("q", 0), ("k", 2), ("v", 4), ("out", 6)):
            wire.fill(getattr(two.attend, name), tensor(buffer, at * ROW, (2, N_HEADS, DIM)))
        two.attend.q.strides.extend(strides)
        two.attend.out.strides.extend(strides)
        two.attend.batch.q_lens.data = two.attend.batch.kv_lens.data = struct.pack("<i", 2)
        reason, text = refusal(session.raw.exchange(two))
        tap.equal(reason, "BAD_TENSOR")
        assert text.startswith("q.offset = 0: "), text
        tap.equal(float(memory.min()), 1.0)


@tap.test
def b139_a_length_of_two_gib_inside_a_message_takes_no_memory():
    before = resident_kib(daemon.process.pid)
    with Raw(daemon.dir) as raw:
        for tag in (b"\xda\x01", b"\x9a\x01"):  # attend, open_model
            for length in (b"\x80\x80\x80\x80\x08", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"):
                tap.equal(raw.exchange(tag + length + b"\x0a\x00").status.reason, "BAD_MESSAGE")
                inner = b"\x0a" + length + b"\x00"
                payload = tag + bytes([len(inner)]) + inner
                tap.equal(raw.exchange(payload).status.reason, "BAD_MESSAGE")
    grown = resident_kib(daemon.process.pid) - before
    assert grown < 4096, f"{grown} KiB more"


# ---- What is seen twice --------------------------------------------------------------------------


@tap.test
def b140_a_request_resent_while_it_waits_appends_once():
    """A requester that repeats by itself every 200 ms, while what it comes after takes a second."""
    with Session(daemon.dir) as session:
        session.open_model()
        buffer = ok(session.call("create_buffer", bytes=8 * ROW)).buffer
        gate = session.request("create_buffer", bytes=64)
        append = session.store(buffer, 0, 5, after=gate.id)
        before = daemon.counter("appended_tokens"), daemon.counter("repeats")
        sent = [session.raw.send(append)]
        for _ in range(4):
            time.sleep(0.2)
            sent.append(session.raw.send(append))
        session.raw.send(gate)
        replies = dict(session.raw.receive() for _ in range(len(sent) + 1))
        for number in sent:
            ok(replies[number])
            tap.equal(replies[number], replies[sent[0]])
        tap.equal(daemon.counter("appended_tokens") - before[0], 1)
        tap.equal(daemon.counter("repeats") - before[1], len(sent) - 1)


with Daemon(LINGER, "--log.level=error") as daemon:
    tap.main()
