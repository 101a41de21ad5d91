"""fields.py: every field of every request that is served, changed one at a time, through the wire.

A valid request of each op is walked with its protobuf descriptors, so that a new field is met without a
change here. Each number goes to 0, its ends and its neighbours, each enum to what it has not, each handle
to one that was freed and to another session's, each list is emptied and doubled, each part dropped, and
each message gets a field that nobody knows. Then either

- the request is refused, with a field that is the changed one, holds it, lies in it, or stands beside it in
  CONTRADICTS; no byte of a pool or a buffer has changed; or
- it is done, and done right: pools and outputs are what the numpy evaluation below says, and no byte
  outside the named outputs has changed;

and the next good request is answered right. Prints what broke; ends with 1 when something did.
"""

import itertools
import mmap
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

from support import Daemon

import numpy as np
import raw
from attnd import wire
from raw import Session, message

HEADS, KV_HEADS, DIM, T, BLOCKS = 4, 2, 8, 4, 16
WINDOW = 6
U32, U64 = 2**32 - 1, 2**64 - 1
UNKNOWN = b"\xf2\x7f\x01x"  # field 2046, one byte

# (what was changed, what the refusal may name in its place): the two contradict each other and neither is
# wrong by itself.
CONTRADICTS = [
    # A number of tokens and the tensors of that many.
    (r"(.*\.)?(q_lens|n_contexts).*", r"(q|k|v|out|lse|stats)(\.first)?\.shape.*"),
    (r"(.*\.)?q_lens.*", r"(batch|update)\.(kv_lens|slots|positions|n_contexts).*"),
    # Lengths and the blocks that hold them.
    (r"(.*\.)?(q|kv)_lens.*", r"(batch\.tables|update\.appended)\[\d+\]\.(block_ids|width).*"),
    (r"(.*\.)?(q|kv)_lens.*", r"(batch\.tables|update\.(appended|kv_lens)).*"),
    (r"(.*\.)?(tables|appended)\[\d+\]\.width", r"(.*\.)?(kv_lens\[\d+\]|block_ids)"),
    (r"(.*\.)?(kv_lens|n_contexts).*", r"batch\.kv_lens.*"),
    (r"(.*\.)?appended.*", r"update\.(appended|kv_lens).*"),
    # Where a token is stored and what another one reads.
    (r"(.*\.)?(slots|block_ids).*", r"(.*\.)?(slots|block_ids)\[\d+\]"),
    (r"(.*\.)?slots.*", r"batch\.(tables\[\d+\]\.block_ids|kv_lens)\[\d+\]"),
    # Which layer, and the tables and widths that fit it.
    (r"layer", r"batch\.tables.*|(q|k|v|out|lse)\.shape.*"),
    (r"(model|plan)", r"(model|plan|layer|batch\.tables.*|(q|k|v|out|lse)\.shape.*)"),
    (r"batch\.tables.*", r"batch\.tables"),
    (r"(.*\.)?(tables|appended)\[\d+\]\.group", r"(.*\.)?(tables|appended)\[\d+\]\.group"),
    (r"(first_layer|n_layers)", r"(first_layer|n_layers|(q|k|v|out|lse)\.(first\.offset|layer_stride))"),
    # Where tensors lie: the output that shares bytes is named, and the end of a tensor is its offset's.
    (
        r"(q|k|v|out|lse|stats|partials\[\d+\]\.(out|lse|stats))\.?.*",
        r"(out|lse|stats)(\.first)?\.offset",
    ),
    (
        r"((?:q|k|v|out|lse|stats|partials\[\d+\]\.(?:out|lse|stats)|.*(?:lens|block_ids))(?:\.first)?)\.(strides|shape|dtype|buffer).*",
        r"\1\.(offset|strides|shape).*",
    ),
    # Integers in another place are others.
    (r"(.*(?:lens|block_ids))\.(buffer|offset)", r"\1\[\d+\]"),
    (r"(\w+)\.(layer_stride|ring)", r"\1\.(first\.offset|layer_stride)"),
    (r"(k|v)(\.first)?", r"(k|v)"),
    # The output's shape is the merge's.
    (r"out\.shape.*", r"partials\[\d+\]\.(out|lse|stats)\.shape.*"),
    (r"partials\[\d+\]\.(lse|stats)", r"partials\[\d+\]\.lse"),
    # One plan or another.
    (r"(plan|update\.plan)", r"update\.(plan|version|appended.*|kv_lens.*|q_lens.*)"),
    # A spec whose parts do not fit one another.
    (r"spec\.layers\[\d+\]\.(n_kv_heads|head_dim|n_heads|rope.*)", r"spec\.layers\[\d+\]\.(n_heads|rope\.dim|rope\.pairing)"),
    (r"spec\.layers\[\d+\]\.group", r"spec\.groups\[\d+\]"),
    (r"spec\.(layers|groups).*", r"spec\.(groups\[\d+\](\.(n_blocks|bytes))?|layers\[\d+\]\.(group|count))"),
    # Whose turn never comes.
    (r"after", r"timeout_ms"),
    # Another session's number: what is named is not its own.
    (r"session", r"(model|plan|buffer|update\.plan|(.*\.)?buffer)"),
]

# What a refusal names that is no field of the op.
ENVELOPE = {"id", "session", "after", "timeout_ms"}


def ints(values):
    return np.asarray(values, "<i4").tobytes()


def is_list(field):
    return wire._is_repeated(field)


# ---- The world: one session with all it needs, and another one -------------------------------------


class World:
    """Two sessions of one daemon; all requests go through the first one's connection."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.mine, self.other = Session(daemon.dir, "mine"), Session(daemon.dir, "other")
        self.lease = self.mine.lease()
        self.other.lease()
        layer = {"n_heads": HEADS, "n_kv_heads": KV_HEADS, "head_dim": DIM}
        self.spec = {
            "name": "m",
            "layers": [layer, dict(layer, group=1, window=WINDOW), layer],
            "groups": [
                {"block_size": T, "kv_dtype": "f32", "n_blocks": BLOCKS, "name": "full"},
                {"block_size": T, "kv_dtype": "f32", "n_blocks": BLOCKS, "name": "windowed"},
            ],
        }
        self.model = raw.ok(self.mine.call("open_model", spec=self.spec)).model
        self.buffer, self.bytes = self.new_buffer(1 << 14)
        self.indices, self.index_bytes = self.new_buffer(256)
        self.freed = raw.ok(self.mine.call("create_buffer", bytes=4096)).buffer
        raw.ok(self.mine.call("free_buffer", buffer=self.freed))
        self.foreign = {
            "model": raw.ok(self.other.call("open_model", spec=self.spec)).model,
            "buffer": raw.ok(self.other.call("create_buffer", bytes=1 << 14)).buffer,
        }
        self.foreign["plan"] = raw.ok(
            self.other.call("create_plan", model=self.foreign["model"], batch=BATCH)
        ).plan
        self.pools = [self.pool(g) for g in (0, 1)]
        random = np.random.default_rng(3)
        for pool in self.pools:
            pool[:] = random.normal(size=len(pool)).astype("<f4")
        self.bytes.view("<f4")[:] = random.normal(size=len(self.bytes) // 4).astype("<f4")
        self.index_bytes.view("<i4")[:8] = [1, 1, 6, 3, 1, 2, 5, 7]
        self.plan = self.new_plan()

    def new_buffer(self, n):
        handle = raw.ok(self.mine.call("create_buffer", bytes=n)).buffer
        return handle, self.mine.fetch(self.lease, handle)

    def new_plan(self):
        return raw.ok(self.mine.call("create_plan", model=self.model, batch=BATCH)).plan

    def pool(self, group):
        """The pool's memory, through the engine's own descriptor."""
        fds = f"/proc/{self.daemon.engine()}/fd"
        for fd in os.listdir(fds):
            path = os.path.join(fds, fd)
            try:
                if os.readlink(path) == f"/memfd:pool/{self.model}/{group} (deleted)":
                    with open(path, "r+b") as file:
                        return np.frombuffer(mmap.mmap(file.fileno(), 0), "<f4")
            except FileNotFoundError:
                pass  # A connection that has closed since.
        raise AssertionError(f"no pool {group}")

    def buffers(self):
        return {self.buffer: self.bytes, self.indices: self.index_bytes}

    def state(self):
        """(pools, {buffer: bytes}), copied."""
        return [p.copy() for p in self.pools], {h: b.copy() for h, b in self.buffers().items()}

    def check_unchanged(self, state):
        for g in (0, 1):
            assert np.array_equal(self.pools[g], state[0][g]), f"pool {g} has changed"
        for handle, now in self.buffers().items():
            assert np.array_equal(now, state[1][handle]), f"buffer {handle} has changed"

    def restore(self, state):
        for g in (0, 1):
            self.pools[g][:] = state[0][g]
        for handle, now in self.buffers().items():
            now[:] = state[1][handle]

    def is_kept(self, request):
        """Whether a request would end what the others need."""
        m = getattr(request, request.WhichOneof("op"))
        mine = request.session == self.mine.number
        kept = {
            "close_model": lambda: m.model in ((self.model,) if mine else (self.foreign["model"],)),
            "free_buffer": lambda: m.buffer in ((self.buffer, self.indices) if mine else (self.foreign["buffer"],)),
            "drop_plan": lambda: m.plan in ((self.plan,) if mine else (self.foreign["plan"],)),
            "step": lambda: m.plan in (self.plan, self.foreign["plan"]),
            "update_plan": lambda: m.update.plan in (self.plan, self.foreign["plan"]),
            "goodbye": lambda: request.session in (self.mine.number, self.other.number),
        }
        return kept.get(request.WhichOneof("op"), bool)()


# ---- Good requests -------------------------------------------------------------------------------

Q_LENS, KV_LENS, IDS = [1, 1], [6, 3], [[1, 2], [5]]
BATCH = {
    "q_lens": {"data": ints(Q_LENS)},
    "kv_lens": {"data": ints(KV_LENS)},
    "tables": [{"group": g, "block_ids": {"data": ints([1, 2, 5])}} for g in (0, 1)],
}


def tensor(world, offset, *shape, **more):
    return dict({"buffer": world.buffer, "offset": offset, "dtype": "f32", "shape": list(shape)}, **more)


def call_tensors(world, n, at=0):
    return {
        "q": tensor(world, at, n, HEADS, DIM),
        "k": tensor(world, at + 1024, n, KV_HEADS, DIM),
        "v": tensor(world, at + 1536, n, KV_HEADS, DIM),
        "out": tensor(world, at + 2048, n, HEADS, DIM),
        "lse": tensor(world, at + 3072, n, HEADS),
    }


def one_table(group=0, **more):
    return dict(BATCH, tables=[dict(BATCH["tables"][group])], **more)


def attend(world):
    return {"model": world.model, "batch": one_table(), **call_tensors(world, 2), "stats": tensor(world, 3584, 2, HEADS, 2)}


def attend_context(world):
    batch = dict(
        one_table(1), q_lens={"data": ints([3, 1])}, n_contexts=1,
        slots={"data": ints([7, 8, 9, -1])}, positions={"data": ints([3, 4, 5, 2])},
    )
    out = {"model": world.model, "layer": 1, "batch": batch, **call_tensors(world, 4)}
    out["q"]["strides"] = [256, 32, 4]
    return out


def attend_refs(world):
    def ref(at, n):
        return {"ref": {"buffer": world.indices, "offset": 4 * at, "dtype": "i32", "shape": [n]}}

    batch = {"q_lens": ref(0, 2), "kv_lens": ref(2, 2), "tables": [{"width": 2, "block_ids": ref(4, 4)}], "mask": "full"}
    call = call_tensors(world, 2)
    del call["k"], call["v"]
    return {"model": world.model, "batch": batch, **call}


def attend_plan(world):
    return {"model": world.model, "layer": 2, "plan": world.plan, **call_tensors(world, 2)}


def update_of(plan):
    appended = [{"group": g, "block_ids": {"data": ints([7])}} for g in (0, 1)]
    return {"plan": plan, "version": 1, "kv_lens": {"data": ints([7, 5])}, "appended": appended}


def step(world):
    plan = world.new_plan()
    tensors = call_tensors(world, 2)
    layers = {n: {"first": t, "layer_stride": 4096, "ring": 2} for n, t in tensors.items()}
    layers["lse"]["ring"] = 0
    return {"plan": plan, "update": update_of(plan), "first_layer": 0, "n_layers": 3, **layers}


def step_one_group(world):
    """A step of a plan that has no table of the other group."""
    batch = one_table()
    plan = raw.ok(world.mine.call("create_plan", model=world.model, batch=batch)).plan
    layers = {n: {"first": t} for n, t in call_tensors(world, 2).items()}
    return {"plan": plan, "n_layers": 1, **layers}


def merge(world):
    parts = [
        {"out": tensor(world, 0, 2, 2, 4), "lse": tensor(world, 256, 2, 2)},
        {"out": tensor(world, 512, 2, 2, 4), "stats": tensor(world, 768, 2, 2, 2)},
    ]
    return {"partials": parts, "out": tensor(world, 1024, 2, 2, 4), "lse": tensor(world, 2048, 2, 2), "stats": tensor(world, 2304, 2, 2, 2)}


def temporary(op, **fields):
    """A handle made for one request."""

    def make(world):
        made = raw.ok(world.mine.call(op, **{n: f(world) if callable(f) else f for n, f in fields.items()}))
        return made

    return make


new_model = temporary("open_model", spec=lambda world: world.spec)
new_small = temporary("create_buffer", bytes=64)

GOOD = {
    "ping": lambda world: {},
    "hello": lambda world: {"protocol": 1, "client": "fields"},
    "goodbye": lambda world: {},
    "open_model": lambda world: {
        "spec": {
            "name": "rich",
            "layers": [
                dict(world.spec["layers"][0], rope={"pairing": "neox", "dim": 4, "theta": 1e4}, softcap=4.0),
                dict(world.spec["layers"][1], head_dim_v=4, sm_scale=0.5, q_scaling=1.0, chunk=8, count=2),
            ],
            "groups": [
                dict(world.spec["groups"][0], layout="nhd", max_kv_len=64, window=5),
                {"name": "b", "block_size": 16, "kv_dtype": "bf16", "bytes": 65536},
            ],
        }
    },
    "close_model": lambda world: {"model": new_model(world).model},
    "create_buffer": lambda world: {"bytes": 4096, "named": True},
    "free_buffer": lambda world: {"buffer": new_small(world).buffer},
    "create_plan": lambda world: {"model": world.model, "batch": dict(BATCH, slots={"data": ints([9, 22])}, positions={"data": ints([5, 2])})},
    "update_plan": lambda world: {"update": update_of(world.new_plan())},
    "drop_plan": lambda world: {"plan": world.new_plan()},
    "attend": attend,
    "attend context": attend_context,
    "attend refs": attend_refs,
    "attend plan": attend_plan,
    "step": step,
    "step one group": step_one_group,
    "merge": merge,
}


def good(world, name, session=None):
    op = name.split()[0]
    request = message(op, id=next(world.mine.ids), **GOOD[name](world))
    if op not in ("ping", "hello"):
        request.session = (session or world.mine).number
    return request


# ---- Changes: (path, what, function of the message that holds the field) --------------------------


def other_numbers(field, value):
    kinds = {
        field.TYPE_UINT32: (0, U32),
        field.TYPE_UINT64: (0, U64),
        field.TYPE_FIXED64: (0, U64),
        field.TYPE_INT64: (-(2**63), 2**63 - 1),
        field.TYPE_INT32: (-(2**31), 2**31 - 1),
    }
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return [0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e38, 1e-38]
    if field.type == field.TYPE_BOOL:
        return [not value]
    if field.type == field.TYPE_ENUM:
        known = [v.number for v in field.enum_type.values]
        return [n for n in [*known, max(known) + 1, 999, -1, 2**31 - 1, -(2**31)] if n != value]
    if field.type == field.TYPE_STRING:
        return ["", value + "x", "x" * 65, "a\nb", "\x7f", "x" * 5000, "é"]
    if field.type == field.TYPE_BYTES:
        return list(other_bytes(value))
    lo, hi = kinds[field.type]
    wanted = [0, 1, hi, lo, value + 1, value - 1, value + 2, hi - 3, 2**31, 2**31 - 1, 2**32, 4096, -1]
    return sorted({n for n in wanted if lo <= n <= hi and n != value})


def other_bytes(value):
    yield b""
    yield value[:-1]
    yield value + value
    yield value + b"\0\0\0\0"
    for i in range(len(value) // 4):
        old = np.frombuffer(value, "<i4").astype(np.int64)
        for new in (0, -1, -2, 2**31 - 1, -(2**31), old[i] + 1, old[i] - 1, BLOCKS, BLOCKS - 1, BLOCKS * T):
            if new != old[i]:
                data = old.copy()
                data[i] = new
                yield data.astype("<i4").tobytes()


def setter(name, value):
    return lambda m: setattr(m, name, value)


def changes(world, m, path=""):
    """Every change of a message, the parts in it included."""

    def at(name):
        return f"{path}.{name}" if path else name

    yield path, "an unknown field", lambda m: m.MergeFromString(UNKNOWN)
    for field in m.DESCRIPTOR.fields:
        name = field.name
        if is_list(field):
            yield from list_changes(world, m, field, at(name))
        elif field.message_type:
            if not m.HasField(name):
                yield at(name), "set, empty", lambda m, name=name: getattr(m, name).SetInParent()
                continue
            yield at(name), "dropped", lambda m, name=name: m.ClearField(name)
            yield at(name), "emptied", lambda m, name=name: (m.ClearField(name), getattr(m, name).SetInParent())
            for inner, what, change in changes(world, getattr(m, name), at(name)):
                yield inner, what, lambda m, name=name, change=change: change(getattr(m, name))
        else:
            value = getattr(m, name)
            handles = []
            if field.type == field.TYPE_FIXED64 and name in world.foreign:
                handles = [world.freed, world.foreign[name]]
            if name == "offset":
                handles = [value + 1, value + 4, 1 << 14, (1 << 14) - 4, 0, 1024, 2048, U64 - 7]
            for new in [*other_numbers(field, value), *handles]:
                yield at(name), f"= {str(new)[:60]}", setter(name, new)


def list_changes(world, m, field, path):
    name = field.name
    n = len(getattr(m, name))

    def replace(m, items):
        items = list(items)
        if field.message_type:
            items = [type(i).FromString(i.SerializeToString()) for i in items]
        m.ClearField(name)
        getattr(m, name).extend(items)

    yield path, "emptied", lambda m: replace(m, [])
    yield path, "doubled", lambda m: replace(m, list(getattr(m, name)) * 2)
    yield path, "reversed", lambda m: replace(m, reversed(getattr(m, name)))
    if not n and not field.message_type:
        yield path, "one entry", lambda m: getattr(m, name).append(1)
        yield path, "five entries", lambda m: getattr(m, name).extend([1] * 5)
    elif not n:
        yield path, "one empty entry", lambda m: getattr(m, name).add()
    for i in range(n):
        at = f"{path}[{i}]"
        yield path, f"without entry {i}", lambda m, i=i: getattr(m, name).pop(i)
        if field.message_type:
            for inner, what, change in changes(world, getattr(m, name)[i], at):
                yield inner, what, lambda m, i=i, change=change: change(getattr(m, name)[i])
            continue
        for new in other_numbers(field, getattr(m, name)[i]):
            yield at, f"= {new}", lambda m, i=i, new=new: getattr(m, name).__setitem__(i, new)


def all_changes(world, name, request):
    op = name.split()[0]
    for path, what, change in changes(world, getattr(request, op)):
        yield path, what, lambda r, change=change: change(getattr(r, op))
    yield "", "an unknown field of the envelope", lambda r: r.MergeFromString(UNKNOWN)
    for field in request.DESCRIPTOR.fields:
        if field.message_type:
            continue
        # Another id is one of another request, which gets that one's reply.
        for new in [0] if field.name == "id" else other_numbers(field, getattr(request, field.name)):
            yield field.name, f"= {new}", setter(field.name, new)
    yield "session", "another one's", setter("session", world.other.number)


# ---- What is right: attention in numpy, over the pools as bytes ------------------------------------


SIZES = {1: 4, 2: 2, 3: 2}  # of f32, f16, bf16


def places(t, n, heads, width):
    """Where the bytes of a tensor's elements [n][heads][width] begin in its buffer."""
    size = SIZES[t.dtype]
    row, head = heads * width * size, width * size
    if t.strides:
        row = t.strides[0]
        head = t.strides[1] if len(t.shape) == 3 else head
    return t.offset + np.arange(n)[:, None, None] * row + np.arange(heads)[:, None] * head + np.arange(width) * size


def load(buffers, t, n, heads, width):
    """The elements' values, out of the bytes of {handle: bytes}."""
    data = buffers[t.buffer]
    parts = [data[places(t, n, heads, width) + i].astype(np.uint32) for i in range(SIZES[t.dtype])]
    bits = sum(part << (8 * i) for i, part in enumerate(parts))
    if t.dtype == 2:
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return (bits if t.dtype == 1 else bits << 16).astype(np.uint32).view(np.float32)


class Call:
    """One layer's work, as Attend says it."""

    def __init__(self, layer, q_lens, kv_lens, rows, slots, tensors, is_causal=True):
        self.layer, self.q_lens, self.kv_lens = layer, q_lens, kv_lens
        self.rows, self.slots, self.tensors, self.is_causal = rows, slots, tensors, is_causal


def read_ints(world, field):
    if field.WhichOneof("from") == "ref":
        n = field.ref.shape[0]
        return world.index_bytes.view("<i4")[field.ref.offset // 4 :][:n].tolist()
    return np.frombuffer(field.data, "<i4").tolist()


def blocks_of(n):
    return -(-n // T)


def read_rows(world, table, kv_lens):
    ids, rows = read_ints(world, table.block_ids), []
    for n in kv_lens:
        width = table.width or blocks_of(n)
        rows.append(ids[:width])
        ids = ids[width:]
    return rows


def layer_in_pool(world, layer):
    """[K or V][block][kv head][token][dim] of a layer, a view of its pool."""
    group, index, n = {0: (0, 0, 2), 1: (1, 0, 1), 2: (0, 1, 2)}[layer]
    pool = world.pools[group]
    slab = KV_HEADS * T * DIM
    block = n * 2 * slab
    view = pool[: BLOCKS * block].reshape(BLOCKS, n, 2, KV_HEADS, T, DIM)
    return view[:, index, 0], view[:, index, 1]


def evaluate(call, data, pools):
    """Appends a call's k and v, read from buffers, into pools (per layer K, V); its outputs as
    [(tensor, heads, width, values)]."""
    keys, values = pools[call.layer]
    total = sum(call.q_lens)
    t = call.tensors
    window = WINDOW if call.layer == 1 else None
    q = load(data, t["q"], total, HEADS, DIM).astype(np.float64)
    first = np.cumsum([0, *call.q_lens])
    if "k" in t:
        new = [load(data, t[x], total, KV_HEADS, DIM) for x in ("k", "v")]
        for b, (n, kv) in enumerate(zip(call.q_lens, call.kv_lens)):
            for i in range(n):
                slot = call.slots[first[b] + i] if call.slots else None
                if slot is None:
                    j = kv - n + i
                    slot = call.rows[b][j // T] * T + j % T
                if slot >= 0:
                    keys[slot // T, :, slot % T] = new[0][first[b] + i]
                    values[slot // T, :, slot % T] = new[1][first[b] + i]
    out, lse = np.zeros((total, HEADS, DIM)), np.full((total, HEADS), -np.inf)
    stats = np.zeros((total, HEADS, 2))
    stats[:, :, 0] = -np.inf
    for b, (n, kv) in enumerate(zip(call.q_lens, call.kv_lens)):
        for i in range(n):
            a = kv - n + i
            seen = [
                j
                for j in range(kv)
                if (not call.is_causal or j <= a) and (window is None or j >= a - window + 1)
            ]
            if not seen:
                continue
            at = [(call.rows[b][j // T], j % T) for j in seen]
            for h in range(HEADS):
                g = h // (HEADS // KV_HEADS)
                k = np.array([keys[x, g, y] for x, y in at], np.float64)
                v = np.array([values[x, g, y] for x, y in at], np.float64)
                s = k @ q[first[b] + i, h] / np.sqrt(DIM)
                m = s.max()
                p = np.exp(s - m)
                out[first[b] + i, h] = p @ v / p.sum()
                lse[first[b] + i, h] = m + np.log(p.sum())
                stats[first[b] + i, h] = m, p.sum()
    results = {"out": (out, DIM), "lse": (lse[:, :, None], 1), "stats": (stats, 2)}
    return [(t[name], total, width, values) for name, (values, width) in results.items() if name in t]


def tensors_of(m, names=("q", "k", "v", "out", "lse", "stats")):
    return {n: getattr(m, n) for n in names if n in m.DESCRIPTOR.fields_by_name and m.HasField(n)}


def calls_of(world, request):
    """The calls an Attend or a Step stands for; None where this evaluation does not reach."""
    op = request.WhichOneof("op")
    if op == "attend":
        a = request.attend
        q_lens, kv_lens, slots, rows, causal = Q_LENS, KV_LENS, None, IDS, True
        if a.WhichOneof("work") == "batch":
            q_lens, kv_lens = read_ints(world, a.batch.q_lens), read_ints(world, a.batch.kv_lens)
            slots = read_ints(world, a.batch.slots) if a.batch.HasField("slots") else None
            rows = read_rows(world, a.batch.tables[0], kv_lens)
            causal = a.batch.mask == 0
        elif a.plan != world.plan:
            return None
        return [Call(a.layer, q_lens, kv_lens, rows, slots, tensors_of(a), causal)]
    s = request.step
    q_lens, kv_lens, rows = Q_LENS, KV_LENS, {0: IDS, 1: IDS}
    if s.HasField("update"):
        u = s.update
        q_lens = read_ints(world, u.q_lens) if u.HasField("q_lens") else q_lens
        kv_lens = read_ints(world, u.kv_lens) if u.HasField("kv_lens") else kv_lens
        if u.HasField("slots") or u.HasField("positions"):
            return None
        sent = {t.group: (t.width, read_ints(world, t.block_ids)) for t in u.appended}
        for g in rows:
            width, ids = sent.get(g, (0, []))
            grown = []
            for row, n in zip(IDS, kv_lens):
                lacks = max(0, blocks_of(n) - len(row))
                grown.append([*row, *ids[:lacks]][: blocks_of(n)])
                ids = ids[width or lacks :]
            rows[g] = grown
    calls = []
    for i in range(s.n_layers):
        tensors = {}
        for name in ("q", "k", "v", "out", "lse"):
            if s.HasField(name):
                from_ = getattr(s, name)
                t = type(from_.first).FromString(from_.first.SerializeToString())
                t.offset += (i % from_.ring if from_.ring else i) * from_.layer_stride
                tensors[name] = t
        layer = s.first_layer + i
        calls.append(Call(layer, q_lens, kv_lens, rows[1 if layer == 1 else 0], None, tensors))
    return calls


def results_last(results):
    """Results with their places; of those written to one place, in a ring, the last."""
    at = {}
    for t, n, width, want in results:
        at[t.SerializeToString()] = (places(t, n, HEADS, width), (t, n, width, want))
    return at.values()


def may_change(request):
    """The outputs a request names: (tensor, heads, width) as they stand."""
    op = request.WhichOneof("op")
    m = getattr(request, op)
    if op in ("attend", "merge"):
        return list(tensors_of(m, ("out", "lse", "stats")).values())
    return []


def check_done(world, request, before):
    """What was done is what numpy does."""
    op = request.WhichOneof("op")
    pools, buffers = before
    masks = {h: np.ones(len(b), bool) for h, b in buffers.items()}
    if op in ("attend", "step"):
        calls = calls_of(world, request)
        if calls is None:
            return
        now, world.pools = world.pools, [p.copy() for p in pools]
        try:
            layers = {n: layer_in_pool(world, n) for n in range(3)}
            results = [r for call in calls for r in evaluate(call, buffers, layers)]
            for g in (0, 1):
                assert np.array_equal(now[g], world.pools[g]), f"pool {g} is not what was appended"
        finally:
            world.pools = now
        for at, (t, n, width, want) in results_last(results):
            for i in range(SIZES[t.dtype]):
                masks[t.buffer][at + i] = False
            got = load(world.buffers(), t, n, HEADS, width)
            near = 1e-4 if t.dtype == 1 else 1e-2
            wrong = np.abs(got - want).max(initial=0, where=np.isfinite(want))
            assert np.allclose(got, want, rtol=near, atol=near / 4, equal_nan=True), f"off by {wrong}"
    else:
        for g in (0, 1):
            assert np.array_equal(world.pools[g], pools[g]), f"pool {g} has changed"
        for t in may_change(request):
            end = t.offset + int(np.prod(list(t.shape))) * SIZES[t.dtype]
            if t.strides:
                end = t.offset + t.strides[0] * t.shape[0]
            masks[t.buffer][t.offset : end] = False
    for handle, now in world.buffers().items():
        mask = masks[handle]
        assert np.array_equal(now[mask], buffers[handle][mask]), f"buffer {handle}: bytes outside the outputs have changed"


# ---- Running -------------------------------------------------------------------------------------


def plain(path):
    """A path without what the text of a refusal leaves out."""
    return re.sub(r"\.(data|ref)\b", "", path)


def is_part(inner, outer):
    return inner == outer or inner.startswith((outer + ".", outer + "[")) or not outer


def names_it(path, field, op):
    """Whether a refusal that names field is about a change at path."""
    path, field = plain(path), plain(field)
    if not path or field == op:
        return field in (op, "request")
    if is_part(field, path) or is_part(path, field):
        return True
    for changed, named in CONTRADICTS:
        match = re.fullmatch(changed, path)
        if match and "\\1" in named:
            named = named.replace("\\1", re.escape(match.group(1)))
        if match and re.fullmatch(named, field):
            return True
    return False


def is_field(request, field):
    """Whether a path is one of the request's own message type."""
    if field in ENVELOPE | {"op", "request", request.WhichOneof("op")}:
        return True
    at = getattr(request, request.WhichOneof("op")).DESCRIPTOR
    for name in re.sub(r"\[\d+\]", "", field).split("."):
        if at and at.name == "Ints" and name == "ref":
            at = at.fields_by_name["ref"].message_type
            continue
        if not at or name not in at.fields_by_name:
            return False
        at = at.fields_by_name[name].message_type
    return True


def undo(world, request, reply):
    """What a request that was done has made goes away again."""
    op, session = request.WhichOneof("op"), world.mine
    if request.session == world.other.number:
        session = world.other
    undoing = {"open_model": ("close_model", "model"), "create_buffer": ("free_buffer", "buffer"), "create_plan": ("drop_plan", "plan")}
    if op in undoing:
        verb, handle = undoing[op]
        made = getattr(getattr(reply, op), handle)
        raw.ok(world.mine.raw.exchange(message(verb, session=session.number, **{handle: made})))
    if op == "hello":
        raw.ok(world.mine.raw.exchange(message("goodbye", session=reply.hello.session)))
    used = getattr(getattr(request, op), "plan", 0) if op in ("step", "drop_plan") else 0
    if op == "update_plan":
        used = request.update_plan.update.plan
    return used


def try_change(world, name, path, what, change):
    op = name.split()[0]
    session = None
    if op == "goodbye":
        session = Session(world.daemon.dir, "short")
    request = good(world, name, session)
    made = undo_handles(request)
    change(request)
    if path == "after":
        request.timeout_ms = 30
    if world.is_kept(request):
        for verb, handle in made:
            world.mine.call(verb, **handle)
        if session:
            end(session)
        return None
    state = world.state()
    reply = world.mine.raw.exchange(request)
    status = reply.status
    try:
        if status.code:
            assert status.code != 13, "INTERNAL"
            assert status.reason and status.message, "no reason or no text"
            assert status.field and is_field(request, status.field), "names no field of the request"
            assert names_it(path, status.field, op), "names another field"
            world.check_unchanged(state)
        else:
            assert what[:10] != "an unknown", "an unknown field was taken"
            check_done(world, request, state)
            undo(world, request, reply)
    except AssertionError as wrong:
        return f"{name}: {path} {what}: {wrong}\n    {status.reason} {status.field!r}: {status.message[:200]}"
    finally:
        world.restore(state)
        for verb, handle in made:
            world.mine.call(verb, **handle)  # gone already where it was done
        if session:
            end(session)
    return None


def end(session):
    session.leave()
    session.raw.close()


def undo_handles(request):
    """What was made for a request alone."""
    op = request.WhichOneof("op")
    m = getattr(request, op)
    if op == "close_model":
        return [("close_model", {"model": m.model})]
    if op == "free_buffer":
        return [("free_buffer", {"buffer": m.buffer})]
    if op in ("drop_plan", "step"):
        return [("drop_plan", {"plan": m.plan})]
    if op == "update_plan":
        return [("drop_plan", {"plan": m.update.plan})]
    return []


def still_right(world):
    """The next good request is answered right."""
    state = world.state()
    request = good(world, "attend")
    reply = world.mine.raw.exchange(request)
    assert not reply.status.code, reply.status
    check_done(world, request, state)
    world.restore(state)


def run(daemon, every=1, only=None):
    """Tries every n-th change; (how many, texts of those that broke)."""
    world = World(daemon)
    n, broken = 0, []
    for name in GOOD:
        if only and only not in name:
            continue
        request = good(world, name, world.mine)
        for handle in undo_handles(request):
            world.mine.call(handle[0], **handle[1])
        tried = itertools.islice(all_changes(world, name, request), n % every, None, every)
        for path, what, change in tried:
            n += 1
            wrong = try_change(world, name, path, what, change)
            if wrong:
                broken.append(wrong)
            if n % 8 == 0 or wrong:
                still_right(world)
    still_right(world)
    world.mine.__exit__()
    world.other.__exit__()
    return n, broken


def main():
    with Daemon("--log.level=error", "--session.max_models=4") as daemon:
        n, broken = run(daemon, only=sys.argv[1] if len(sys.argv) > 1 else None)
        assert daemon.process.poll() is None
    for text in broken:
        print(text)
    print(f"fields: {n} changes, {len(broken)} broke")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
