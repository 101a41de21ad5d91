"""test_plans.py: a plan gives what its batch gives inline, over versions, layers, rings and merges; what is
wrong with one is refused by name and changes nothing.

Requests are built by hand as protobuf messages, so nothing of the Python client stands between.
"""


from support import Daemon, attnd

import numpy as np
import tap

from attnd import wire

daemon = None
HEADS, KV_HEADS, DIM, T, BLOCKS, LAYERS = 4, 2, 16, 4, 32, 3
Request = wire.message_class("Request")


def ints(values):
    return np.asarray(values, "<i4").tobytes()


class Peer:
    """A session with one model of three layers: 0 and 2 full in group 0, 1 windowed in group 1."""

    def __init__(self, bytes_=1 << 20):
        self.client = attnd.Client(daemon.dir, name="plans", timeout=60)
        layer = {"n_heads": HEADS, "n_kv_heads": KV_HEADS, "head_dim": DIM}
        self.model = self.client.open_model(
            {
                "layers": [layer, dict(layer, group=1, window=6), layer],
                "groups": [
                    {"block_size": T, "kv_dtype": "f32", "n_blocks": BLOCKS, "name": "full"},
                    {"block_size": T, "kv_dtype": "f32", "n_blocks": BLOCKS, "name": "windowed"},
                ],
            }
        )
        self.buffer = self.client.create_buffer(bytes_)
        self.floats = np.frombuffer(memoryview(np.asarray(self.buffer)), "<f4")
        self.floats[:] = np.random.default_rng(5).normal(size=len(self.floats))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()

    def request(self):
        request, _ = self.client._request("ping", {})
        request.ClearField("op")
        return request

    def call(self, request):
        """The reply's result; attnd.Error when it is refused."""
        return self.client._submit(request, 60).wait()

    def refused(self, request):
        wrong = tap.raises(attnd.Error, self.call, request)
        return wrong.reason, wrong.field

    def tensor(self, tensor, offset, shape):
        tensor.buffer, tensor.offset, tensor.dtype = self.buffer.handle, offset, 1
        del tensor.shape[:]
        tensor.shape.extend(shape)

    def fill_batch(self, batch, q_lens, kv_lens, tables, n_contexts=0):
        batch.n_contexts = n_contexts
        batch.q_lens.data, batch.kv_lens.data = ints(q_lens), ints(kv_lens)
        for group, table in tables.items():
            t = batch.tables.add()
            t.group = group
            t.block_ids.data = ints([x for row in table for x in row])

    def create(self, q_lens, kv_lens, tables, n_contexts=0):
        request = self.request()
        request.create_plan.model = self.model.handle
        self.fill_batch(request.create_plan.batch, q_lens, kv_lens, tables, n_contexts)
        return self.call(request)

    def update_message(self, update, plan, version, kv_lens=None, q_lens=None, appended=None):
        update.plan, update.version = plan, version
        if kv_lens is not None:
            update.kv_lens.data = ints(kv_lens)
        if q_lens is not None:
            update.q_lens.data = ints(q_lens)
        for group, blocks in (appended or {}).items():
            t = update.appended.add()
            t.group = group
            t.block_ids.data = ints(blocks)

    def update(self, *args, **kwargs):
        request = self.request()
        self.update_message(request.update_plan.update, *args, **kwargs)
        return self.call(request).version

    def step_request(self, plan, tokens, first=0, n=LAYERS, ring=0, lse=True, stride=1 << 16):
        """Layer i's tensors lie in the i-th 64 KiB of the buffer."""
        request = self.request()
        s = request.step
        s.plan, s.first_layer, s.n_layers = plan, first, n
        shapes = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS, "out": HEADS}
        for i, (name, heads) in enumerate(shapes.items()):
            t = getattr(s, name)
            t.layer_stride, t.ring = stride, ring
            self.tensor(t.first, i * 8192, [tokens, heads, DIM])
        if lse:
            s.lse.layer_stride, s.lse.ring = stride, ring
            self.tensor(s.lse.first, 5 * 8192, [tokens, HEADS])
        return request

    def outputs(self, tokens, layer):
        at = layer * (1 << 14) + 3 * 2048
        return self.floats[at : at + tokens * HEADS * DIM].copy()

    def attend_inline(self, layer, q_lens, kv_lens, table, n_contexts=0, plan=None):
        request = self.request()
        a = request.attend
        a.model, a.layer = self.model.handle, layer
        tokens = sum(q_lens)
        base = layer * (1 << 16)
        for i, (name, heads) in enumerate((("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS), ("out", HEADS))):
            self.tensor(getattr(a, name), base + i * 8192, [tokens, heads, DIM])
        self.tensor(a.lse, base + 5 * 8192, [tokens, HEADS])
        if plan:
            a.plan = plan
        else:
            self.fill_batch(a.batch, q_lens, kv_lens, {self.model_group(layer): table}, n_contexts)
        return self.call(request)

    @staticmethod
    def model_group(layer):
        return 1 if layer == 1 else 0


TABLES = {0: [[3, 9, 1], [7, 30]], 1: [[4, 2, 8], [0, 31]]}
PREFILL = ([9, 5], [9, 5])


def inline_outputs(peer, q_lens, kv_lens, tables, n_contexts):
    for layer in range(LAYERS):
        peer.attend_inline(layer, q_lens, kv_lens, tables[peer.model_group(layer)], n_contexts)
    return [peer.outputs(sum(q_lens), layer) for layer in range(LAYERS)]


def poison(peer, tokens):
    for layer in range(LAYERS):
        at = layer * (1 << 14) + 3 * 2048
        peer.floats[at : at + tokens * HEADS * DIM] = np.nan


@tap.test
def a_step_gives_what_attends_give_one_by_one():
    with Peer() as peer:
        want = inline_outputs(peer, *PREFILL, TABLES, 2)
        plan = peer.create(*PREFILL, TABLES, 2)
        tap.equal(plan.version, 1)
        poison(peer, 14)
        reply = peer.call(peer.step_request(plan.plan, 14))
        tap.equal(reply.version, 1)
        for layer in range(LAYERS):
            assert np.array_equal(peer.outputs(14, layer), want[layer]), f"layer {layer}"
        poison(peer, 14)
        for layer in range(LAYERS):
            peer.attend_inline(layer, *PREFILL, None, 2, plan=plan.plan)
            assert np.array_equal(peer.outputs(14, layer), want[layer]), f"layer {layer} by Attend"


@tap.test
def updates_carry_only_what_changed():
    with Peer() as peer:
        prefill = peer.create(*PREFILL, TABLES, 2)
        peer.call(peer.step_request(prefill.plan, 14))
        decode = peer.create([1, 1], [10, 6], TABLES)
        tables = {g: [list(row) for row in t] for g, t in TABLES.items()}
        version, kv = 1, [10, 6]
        fresh = iter([11, 12, 13, 14, 15, 16])
        for step in range(12):
            appended = {0: [], 1: []}
            if step:
                kv = [n + 1 for n in kv]
                for b in range(2):
                    if (kv[b] - 1) % T == 0:
                        block = next(fresh)
                        for g in (0, 1):
                            tables[g][b].append(block)
                            appended[g].append(block)
                has_new = bool(appended[0])
                version = peer.update(
                    decode.plan, version, kv_lens=kv, appended=appended if has_new else None
                )
                tap.equal(version, step + 1)
            reply = peer.call(peer.step_request(decode.plan, 2))
            tap.equal(reply.version, version)
            got = [peer.outputs(2, layer) for layer in range(LAYERS)]
            # The same once more, inline: appends are idempotent.
            rows = {g: [row[: -(-n // T)] for row, n in zip(t, kv)] for g, t in tables.items()}
            want = inline_outputs(peer, [1, 1], kv, rows, 0)
            for layer in range(LAYERS):
                assert np.array_equal(got[layer], want[layer]), f"step {step} layer {layer}"


@tap.test
def a_step_may_bring_its_update():
    with Peer() as peer:
        peer.call(peer.step_request(peer.create(*PREFILL, TABLES, 2).plan, 14))
        plan = peer.create([1, 1], [10, 6], TABLES).plan
        request = peer.step_request(plan, 2)
        peer.update_message(request.step.update, plan, 1, kv_lens=[11, 7])
        tap.equal(peer.call(request).version, 2)
        got = [peer.outputs(2, layer) for layer in range(LAYERS)]
        want = inline_outputs(peer, [1, 1], [11, 7], TABLES, 0)
        for layer in range(LAYERS):
            assert np.array_equal(got[layer], want[layer])
        # A refused step leaves the plan at the version it had.
        request = peer.step_request(plan, 2)
        peer.update_message(request.step.update, plan, 2, kv_lens=[12, 8])
        request.step.q.first.offset = 2**40
        tap.equal(peer.refused(request), ("BAD_TENSOR", "q.first.offset"))
        tap.equal(peer.update(plan, 2, kv_lens=[12, 8]), 3)


@tap.test
def a_ring_of_buffers_serves_more_layers_than_it_has():
    with Peer() as peer:
        plan = peer.create(*PREFILL, TABLES, 2).plan
        want = inline_outputs(peer, *PREFILL, TABLES, 2)
        for ring in (1, 2):
            # Layer i reads slot i mod ring: with the inputs of that slot, inline.
            peer.call(peer.step_request(plan, 14, ring=ring))
            last = (LAYERS - 1) % ring
            got = peer.outputs(14, last)
            request = peer.request()
            a = request.attend
            a.model, a.layer, a.plan = peer.model.handle, LAYERS - 1, plan
            for i, (name, heads) in enumerate((("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS), ("out", HEADS))):
                peer.tensor(getattr(a, name), last * (1 << 16) + i * 8192, [14, heads, DIM])
            peer.call(request)
            assert np.array_equal(peer.outputs(14, last), got), f"ring {ring}"
        del want


@tap.test
def what_is_wrong_with_a_plan_is_named():
    with Peer() as peer:
        request = peer.request()
        request.create_plan.model = peer.model.handle
        tap.equal(peer.refused(request), ("BAD_MESSAGE", "batch"))
        peer.fill_batch(request.create_plan.batch, [1], [4], {0: [[BLOCKS]]})
        tap.equal(peer.refused(request), ("BAD_BLOCK", "batch.tables[0].block_ids[0]"))
        request.create_plan.model = 999
        tap.equal(peer.refused(request), ("NO_SUCH_HANDLE", "model"))
        only_full = peer.create([1], [4], {0: [[5]]}).plan
        request = peer.step_request(only_full, 1, first=1, n=1)
        tap.equal(peer.refused(request), ("BAD_GEOMETRY", "first_layer"))
        request = peer.step_request(only_full, 1, first=0, n=2)
        tap.equal(peer.refused(request), ("BAD_GEOMETRY", "n_layers"))
        for change, want in [
            ({"first": 3, "n": 1}, ("BAD_GEOMETRY", "first_layer")),
            ({"first": 0, "n": 4}, ("BAD_GEOMETRY", "n_layers")),
            ({"first": 0, "n": 0}, ("BAD_GEOMETRY", "n_layers")),
            ({"first": 0, "n": 1, "stride": -4}, ("BAD_TENSOR", "q.layer_stride")),
        ]:
            tap.equal(peer.refused(peer.step_request(only_full, 1, **change)), want)
        plan = peer.create([1], [4], {0: [[5]], 1: [[6]]}).plan
        request = peer.step_request(plan, 1, stride=2**62)
        tap.equal(peer.refused(request), ("BAD_TENSOR", "q.first.offset"))
        request = peer.step_request(plan, 1, stride=32)
        tap.equal(peer.refused(request)[0], "BAD_TENSOR")
        request = peer.step_request(plan, 1)
        request.step.sync.mode = 2
        tap.equal(peer.refused(request), ("UNSUPPORTED", "sync.mode"))
        request = peer.step_request(plan, 1)
        request.step.update.plan = only_full
        tap.equal(peer.refused(request), ("BAD_COMBINATION", "update.plan"))
        request = peer.request()
        request.drop_plan.plan = plan
        peer.call(request)
        request = peer.request()
        request.drop_plan.plan = plan
        tap.equal(peer.refused(request), ("NO_SUCH_HANDLE", "plan"))
        tap.equal(peer.refused(peer.step_request(plan, 1)), ("NO_SUCH_HANDLE", "plan"))


@tap.test
def a_plan_that_may_only_read_says_so_when_keys_come():
    with Peer() as peer:
        # Two sequences share a block that a token of the first would be appended to.
        plan = peer.create([1, 1], [2, 4], {0: [[5], [5]]}).plan
        request = peer.step_request(plan, 2, n=1)
        tap.equal(peer.refused(request), ("BAD_BLOCK", "k"))
        request = peer.step_request(plan, 2, n=1)
        request.step.ClearField("k")
        request.step.ClearField("v")
        peer.call(request)


@tap.test
def a_version_that_was_passed_by_is_stale():
    with Peer() as peer:
        plan = peer.create([1], [4], {0: [[5]]}).plan
        tap.equal(peer.update(plan, 1, kv_lens=[5], appended={0: [6]}), 2)
        request = peer.request()
        peer.update_message(request.update_plan.update, plan, 1, kv_lens=[5])
        tap.equal(peer.refused(request), ("STALE", "update.version"))
        tap.equal(peer.update(plan, 2, kv_lens=[6]), 3)


@tap.test
def a_refused_update_changes_nothing():
    with Peer() as peer:
        plan = peer.create([1], [4], {0: [[5]]}).plan
        request = peer.request()
        peer.update_message(request.update_plan.update, plan, 1, kv_lens=[5], appended={0: [BLOCKS]})
        tap.equal(peer.refused(request), ("BAD_BLOCK", "update.appended[0].block_ids[0]"))
        request = peer.request()
        peer.update_message(request.update_plan.update, plan, 1, kv_lens=[5])
        tap.equal(peer.refused(request), ("BAD_LENGTH", "update.appended"))
        tap.equal(peer.update(plan, 1, kv_lens=[5], appended={0: [6]}), 2)


@tap.test
def updates_and_steps_in_flight_keep_their_versions():
    """A step works on the version it was accepted with; a third version waits for the oldest."""
    with Peer(bytes_=1 << 26) as peer:
        n = T * BLOCKS
        plan = peer.create([n], [n], {0: [list(range(BLOCKS))]}, 1).plan
        pending, version = [], 1
        for i in range(24):
            request = peer.step_request(plan, n, n=1, stride=0)
            for j, name in enumerate(("q", "k", "v", "out")):
                getattr(request.step, name).first.offset = (1 << 20) * (1 + j + 4 * i % 40)
            request.step.ClearField("lse")
            if i:
                peer.update_message(request.step.update, plan, version, kv_lens=[n])
            pending.append(peer.client._submit(request, 60))
            # Whether the update is in: only its own reply tells, so it is waited for now and then.
            if i % 2:
                version = pending[-1].wait().version
                tap.equal(version, i + 1)
            elif i:
                version += 1
        for one in pending:
            one.wait()
        tap.equal(peer.update(plan, version, kv_lens=[n]), version + 1)


@tap.test
def closing_a_model_drops_its_plans():
    with Peer() as peer:
        plan = peer.create([1], [4], {0: [[5]]}).plan
        peer.model.close()
        tap.equal(peer.refused(peer.step_request(plan, 1, n=1)), ("NO_SUCH_HANDLE", "plan"))
        tap.equal(int(daemon.rpc("stats.get")["gauges"]["plans"]), 0)
        tap.equal(int(daemon.rpc("stats.get")["gauges"]["models"]), 0)


@tap.test
def a_merge_of_parts_is_attention_over_all_keys():
    """attention.md §25: (m, l, O) = (0, 1, 2) and (ln 3, 1, 6) → O = 5, LSE = ln 4; and an empty part."""
    with Peer() as peer:
        f = peer.floats
        tokens, heads, width = 2, 3, 5
        rows = tokens * heads

        def put(at, values):
            values = np.asarray(values, "<f4").ravel()
            f[at // 4 : at // 4 + len(values)] = values

        put(0, np.full(rows * width, 2.0))
        put(4096, np.zeros(rows))
        put(8192, np.full(rows * width, 6.0))
        put(12288, np.tile([np.log(3), 1], rows))
        put(16384, np.full(rows * width, np.nan))  # never read: its weight is 0
        put(20480, np.full(rows, -np.inf))
        request = peer.request()
        m = request.merge
        for out, lse, stats in ((0, 4096, None), (8192, None, 12288), (16384, 20480, None)):
            part = m.partials.add()
            peer.tensor(part.out, out, [tokens, heads, width])
            if lse is not None:
                peer.tensor(part.lse, lse, [tokens, heads])
            else:
                peer.tensor(part.stats, stats, [tokens, heads, 2])
        peer.tensor(m.out, 32768, [tokens, heads, width])
        peer.tensor(m.lse, 36864, [tokens, heads])
        peer.tensor(m.stats, 40960, [tokens, heads, 2])
        peer.call(request)
        got = f[8192 : 8192 + rows * width]
        assert np.allclose(got, 5, rtol=1e-6), got
        assert np.allclose(f[9216 : 9216 + rows], np.log(4), rtol=1e-6)
        pairs = f[10240 : 10240 + 2 * rows].reshape(rows, 2)
        assert np.allclose(pairs[:, 0] + np.log(pairs[:, 1]), np.log(4), rtol=1e-6)
        # All parts empty: 0 and -inf, whatever lies in them.
        del m.partials[:2]
        peer.call(request)
        tap.equal(set(f[8192 : 8192 + rows * width]), {0.0})
        tap.equal(set(f[9216 : 9216 + rows]), {-np.inf})
        for change, want in [
            (lambda r: r.merge.partials[0].ClearField("lse"), ("BAD_COMBINATION", "partials[0].lse")),
            (lambda r: r.merge.partials[0].out.shape.__setitem__(0, 3), ("BAD_GEOMETRY", "partials[0].out.shape[0]")),
            (lambda r: setattr(r.merge.out, "offset", 16384), ("BAD_TENSOR", "out.offset")),
            (lambda r: r.merge.ClearField("partials"), ("BAD_GEOMETRY", "partials")),
            (lambda r: setattr(r.merge.out, "dtype", 4), ("UNSUPPORTED", "out.dtype")),
        ]:
            bad = peer.request()
            bad.merge.CopyFrom(request.merge)
            change(bad)
            tap.equal(peer.refused(bad), want)


@tap.test
def two_halves_of_the_keys_merge_to_the_whole():
    with Peer() as peer:
        n = 24
        table = list(range(n // T))
        peer.call(peer.step_request(peer.create([n], [n], {0: [table]}, 1).plan, n, n=1))

        def attend(table, kv_len, out, lse):
            request = peer.request()
            a = request.attend
            a.model, a.layer = peer.model.handle, 0
            peer.fill_batch(a.batch, [1], [kv_len], {0: [table]})
            peer.tensor(a.q, 0, [1, HEADS, DIM])
            peer.tensor(a.out, out, [1, HEADS, DIM])
            peer.tensor(a.lse, lse, [1, HEADS])
            peer.call(request)

        attend(table, n, 1 << 18, (1 << 18) + 1024)
        attend(table[:2], 8, (1 << 18) + 4096, (1 << 18) + 5120)
        attend(table[2:], n - 8, (1 << 18) + 8192, (1 << 18) + 9216)
        request = peer.request()
        for at in (4096, 8192):
            part = request.merge.partials.add()
            peer.tensor(part.out, (1 << 18) + at, [1, HEADS, DIM])
            peer.tensor(part.lse, (1 << 18) + at + 1024, [1, HEADS])
        peer.tensor(request.merge.out, (1 << 18) + 16384, [1, HEADS, DIM])
        peer.tensor(request.merge.lse, (1 << 18) + 17408, [1, HEADS])
        peer.call(request)
        base = (1 << 18) // 4
        whole, merged = (peer.floats[base + at : base + at + HEADS * DIM] for at in (0, 4096))
        assert np.allclose(whole, merged, atol=2e-6), np.abs(whole - merged).max()
        whole, merged = (peer.floats[base + at : base + at + HEADS] for at in (256, 4352))
        assert np.allclose(whole, merged, atol=1e-5)


@tap.test
def everything_is_given_back():
    stats = tap.until(
        lambda: daemon.rpc("sessions.list")["sessions"] == [] and daemon.rpc("stats.get"),
        "all sessions have ended",
    )
    for name in ("plans", "models", "buffers", "in_flight"):
        tap.equal(int(stats["gauges"][name]), 0)


with Daemon("--log.level=error", "--session.linger=50") as daemon:
    tap.main()
