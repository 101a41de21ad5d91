"""test_python_values.py: the Python client's element types, specs, tensors and attend message."""

import dataclasses
import os
import sys
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("ATTND_BUILD") or os.path.join(ROOT, "build", "release")
sys.path[:0] = [os.path.join(BUILD, "python"), os.path.join(ROOT, "tests", "support")]

import attnd
import numpy as np
import tap
from attnd import wire
from fake_daemon import FakeDaemon


def text_of(kind, function, *args, **kwargs):
    return str(tap.raises(kind, function, *args, **kwargs))


# ---- Element types -------------------------------------------------------------------------------


@tap.test
def every_bf16_comes_back_from_float32():
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = attnd.bf16_values(bits)
    is_nan = np.isnan(values)
    tap.equal(int(is_nan.sum()), 2 * 127)
    assert (attnd.bf16_bits(values)[~is_nan] == bits[~is_nan]).all()
    assert (attnd.bf16_bits(values)[is_nan] == 0x7FFF).all()


@tap.test
def bf16_takes_the_nearest_and_on_a_tie_the_even():
    bits = np.arange(0x7F80, dtype=np.uint16)  # finite, not negative
    here = attnd.bf16_values(bits).astype(np.float64)
    # Beyond the largest number rounding goes on as if the next power of two were one.
    above = np.append(here[1:], 2.0**128)
    middle = ((here + above) / 2).astype(np.float32)
    even = np.where(bits % 2 == 0, bits, bits + 1)
    for sign, sign_bit in ((1, 0), (-1, 0x8000)):
        assert (attnd.bf16_bits(sign * middle) == even + sign_bit).all()
        low, high = np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))
        assert (attnd.bf16_bits(sign * low) == bits + sign_bit).all()
        assert (attnd.bf16_bits(sign * high) == bits + 1 + sign_bit).all()


@tap.test
def f16_overflows_to_infinity_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = attnd.encode(np.float32([65519, 65520, -1e9, 1e-9]), "f16")
    tap.equal(got.tolist(), [65504, np.inf, -np.inf, 0])


@tap.test
def encode_and_decode_keep_shape_and_type():
    values = np.float64([[1.5, -2], [0.25, 3]])
    for name, dtype in (("f32", "<f4"), ("f16", "<f2"), ("bf16", "<u2")):
        array = attnd.encode(values, name)
        tap.equal(array.dtype, np.dtype(dtype))
        back = attnd.decode(array, name)
        tap.equal((back.dtype, back.tolist()), (np.dtype(np.float32), values.tolist()))
    tap.equal(attnd.encode([1, -2], "i32").tolist(), [1, -2])


@tap.test
def a_type_without_a_conversion_is_refused():
    tap.equal(
        text_of(ValueError, attnd.encode, [1], "e4m3"),
        "dtype = 'e4m3': no conversion; the array holds its bits",
    )
    tap.equal(
        text_of(ValueError, attnd.decode, [1], "e5m2"),
        "dtype = 'e5m2': no conversion; the array holds its bits",
    )
    tap.equal(
        text_of(ValueError, attnd.encode, [1], "nvfp4"),
        "dtype = 'nvfp4': one of f32, f16, bf16, e4m3, e5m2, i8, i32, u8",
    )
    tap.raises(TypeError, attnd.encode, [1.5], "i32")


# ---- Specs ---------------------------------------------------------------------------------------


@tap.test
def the_dataclasses_have_the_fields_of_the_proto():
    for cls, name in (
        (attnd.Rope, "Rope"),
        (attnd.Layer, "LayerSpec"),
        (attnd.Group, "GroupSpec"),
        (attnd.ModelSpec, "ModelSpec"),
    ):
        fields = {field.name for field in dataclasses.fields(cls)}
        tap.equal(fields, set(wire.message_class(name).DESCRIPTOR.fields_by_name))


SPEC = {
    "name": "m",
    "layers": [
        {"n_heads": 8, "head_dim": 64, "count": 3, "rope": {"pairing": "gptj", "theta": 5e5}},
        {"n_heads": 8, "head_dim": 64, "kind": "gqa", "group": 1, "window": 128},
    ],
    "groups": [
        {"kv_dtype": "bf16", "block_size": 16, "n_blocks": 9},
        {"kv_dtype": "f16", "block_size": 32, "bytes": 1 << 40, "layout": "nhd"},
    ],
    "owner": "server",
}


@tap.test
def a_spec_is_the_same_as_mapping_and_as_dataclasses():
    as_data = attnd.ModelSpec(
        name="m",
        layers=[
            attnd.Layer(8, 64, count=3, rope=attnd.Rope("gptj", theta=5e5)),
            attnd.Layer(8, 64, kind="gqa", group=1, window=128),
        ],
        groups=[
            attnd.Group("bf16", 16, n_blocks=9),
            attnd.Group("f16", 32, bytes=1 << 40, layout="nhd"),
        ],
        owner="server",
    )
    with FakeDaemon() as daemon, attnd.Client(daemon.dir) as client:
        client.open_model(SPEC)
        client.open_model(as_data)
        one, two = (request.open_model.spec for request in daemon.requests[1:])
        tap.equal(one, two)
        tap.equal((one.layers[0].rope.pairing, one.layers[0].rope.theta), (2, 5e5))
        tap.equal((one.groups[0].WhichOneof("size"), one.groups[0].n_blocks), ("n_blocks", 9))
        tap.equal((one.groups[1].WhichOneof("size"), one.groups[1].bytes), ("bytes", 1 << 40))
        tap.equal((one.groups[1].layout, one.groups[1].kv_dtype, one.owner), (1, 2, 1))
        assert not one.layers[1].HasField("rope")


@tap.test
def what_the_proto_does_not_have_is_refused_with_its_path():
    def spec(**changes):
        return {**SPEC, **changes}

    cases = [
        (ValueError, spec(nmae="m"), "spec.nmae = 'm': no such field; did you mean 'name'?"),
        (
            ValueError,
            spec(layers=[{"heads": 8}]),
            "spec.layers[0].heads = 8: no such field; did you mean 'n_heads'?",
        ),
        (
            ValueError,
            spec(layers=[{"rope": {"pairing": "half"}}]),
            "spec.layers[0].rope.pairing = 'half': one of none, neox, gptj",
        ),
        (
            ValueError,
            spec(groups=[{"n_blocks": 1, "bytes": 2}]),
            "spec.groups[0].bytes = 2: n_blocks is given too, only one can be",
        ),
        (TypeError, spec(groups=[7]), "spec.groups[0] = 7: a mapping of GroupSpec's fields"),
        (
            TypeError,
            {"layers": [{"rope": "gptj"}]},
            "spec.layers[0].rope = 'gptj': a mapping of Rope's fields",
        ),
    ]
    with FakeDaemon() as daemon, attnd.Client(daemon.dir) as client:
        for kind, model, text in cases:
            tap.equal(text_of(kind, client.open_model, model), text)
        for value in (-1, 1 << 32, "x", 1.5):
            wrong = spec(layers=[{"n_heads": value}])
            text = text_of((TypeError, ValueError), client.open_model, wrong)
            assert text.startswith(f"spec.layers[0].n_heads = {value!r}: "), text
        tap.equal(len(daemon.requests), 1)


# ---- Tensors -------------------------------------------------------------------------------------


def buffer_of(n_bytes):
    return attnd.Buffer(5, np.zeros(n_bytes, np.uint8), None)


def message_of(tensor):
    message = wire.message_class("Tensor")()
    tensor.fill(message)
    return place(message)


def place(message):
    return (
        message.buffer,
        message.offset,
        message.dtype,
        list(message.shape),
        list(message.strides),
    )


@tap.test
def a_view_names_its_place():
    tensor = buffer_of(1024).view("bf16", (4, 2, 8), offset=64)
    tap.equal(message_of(tensor), (5, 64, 3, [4, 2, 8], []))
    tap.equal(message_of(tensor[1:3]), (5, 64 + 32, 3, [2, 2, 8], []))
    tap.equal(message_of(tensor[:, 1:, 2:6]), (5, 64 + 16 + 4, 3, [4, 1, 4], [32, 16, 2]))
    tap.equal(message_of(tensor[0]), (5, 64, 3, [2, 8], []))
    tap.equal(message_of(tensor[4:])[3:], ([0, 2, 8], []))
    tap.equal(message_of(buffer_of(8).view("f32", 2)), (5, 0, 1, [2], []))


@tap.test
def a_tensor_stores_and_gives_back_numbers():
    buffer = buffer_of(64)
    tensor = buffer.view("bf16", (2, 4), offset=8)
    tensor.set(np.arange(8).reshape(2, 4))
    tensor[1:].set(0.5)
    tap.equal(tensor.float32().tolist(), [[0, 1, 2, 3], [0.5] * 4])
    tap.equal(buffer.array[8:12].tolist(), [0, 0, 0x80, 0x3F])
    assert np.shares_memory(np.asarray(tensor), buffer.array)


@tap.test
def a_view_that_does_not_fit_is_refused():
    buffer = buffer_of(100)
    tap.equal(
        text_of(ValueError, buffer.view, "f32", (5, 5), 4),
        "shape = [5, 5]: 100 bytes from 4 on; the buffer has 100",
    )
    tap.equal(
        text_of(ValueError, buffer.view, "f32", 1, 2),
        "offset = 2: a multiple of 4, the element of f32",
    )
    tap.equal(
        text_of(ValueError, buffer.view, "f32", 1, -4),
        "offset = -4: a multiple of 4, the element of f32",
    )
    tap.equal(
        text_of(ValueError, buffer.view, "f64", 1),
        "dtype = 'f64': one of f32, f16, bf16, e4m3, e5m2, i8, i32, u8",
    )
    tap.equal(
        text_of(ValueError, buffer.view, "f32", (-1, 4)), "shape = [-1, 4]: no negative counts"
    )


@tap.test
def a_part_that_would_be_a_copy_is_refused():
    tensor = buffer_of(64).view("f32", (4, 4))
    for index in ([0, 2], (0, 0), tensor.array > 0):
        text = text_of(TypeError, tensor.__getitem__, index)
        assert text.endswith("slices, so that the part is still a view"), text


# ---- The attend message --------------------------------------------------------------------------


class Attend:
    """A stand-in daemon, a client and a buffer; sent() is the attend message of a call."""

    def __enter__(self):
        self.daemon = FakeDaemon()
        self.client = attnd.Client(self.daemon.dir)
        self.model = self.client.open_model(SPEC)
        self.buffer = self.client.create_buffer(4096)
        self.t = self.buffer.view("f32", (3, 8, 4))
        return self

    def __exit__(self, *_):
        self.client.close()
        self.daemon.__exit__()

    def call(self, layer=0, **changes):
        return self.client.attend(self.model, layer, **{"q": self.t, "out": self.t, **changes})

    def sent(self, layer=0, **changes):
        self.call(layer, **changes)
        return self.daemon.requests[-1].attend

    def refusal(self, kind, **changes):
        before = len(self.daemon.requests)
        text = text_of(kind, self.call, **changes)
        tap.equal(len(self.daemon.requests), before)
        return text


def ints(message):
    return np.frombuffer(message.data, "<i4").tolist()


@tap.test
def every_argument_lands_in_its_field():
    with Attend() as it:
        at = {
            name: it.buffer.view("f32", (1, 1, 4), offset=64 * i)
            for i, name in enumerate(("q", "k", "v", "out", "lse", "stats"))
        }
        attend = it.sent(
            layer=2,
            **at,
            q_lens=[1],
            kv_lens=np.int64([5]),
            tables=[[7, 8]],
            n_contexts=1,
            slots=[-1],
            positions=np.uint8([4]),
            mask="full",
            keys="given",
            batch_invariant=True,
        )
        tap.equal((attend.layer, attend.keys, attend.batch_invariant), (2, 1, True))
        tap.equal([getattr(attend, name).offset for name in at], [0, 64, 128, 192, 256, 320])
        batch = attend.batch
        tap.equal((batch.n_contexts, batch.mask), (1, 1))
        tap.equal(
            [ints(m) for m in (batch.q_lens, batch.kv_lens, batch.slots, batch.positions)],
            [[1], [5], [-1], [4]],
        )
        tap.equal([(t.group, t.width, ints(t.block_ids)) for t in batch.tables], [(0, 2, [7, 8])])


@tap.test
def what_is_not_given_is_not_sent():
    with Attend() as it:
        attend = it.sent()
        for name in ("k", "v", "lse", "stats", "sync"):
            assert not attend.HasField(name), name
        for name in ("q_lens", "kv_lens", "slots", "positions"):
            assert not attend.batch.HasField(name), name
        tap.equal(len(attend.batch.tables), 0)
        tap.equal(attend.WhichOneof("work"), "batch")


@tap.test
def tables_of_any_shape_are_sent_as_rectangles():
    with Attend() as it:
        cases = [
            ([[1, 2, 3], [], [4]], (0, 3, [1, 2, 3, -1, -1, -1, 4, -1, -1])),
            (np.int64([[1, 2], [3, 4]]), (0, 2, [1, 2, 3, 4])),
            ([np.int32([5]), (6, 7)], (0, 2, [5, -1, 6, 7])),
            ([], (0, 0, [])),
            (attnd.Table([[9]], group=1), (1, 1, [9])),
        ]
        for tables, wanted in cases:
            table = it.sent(tables=tables).batch.tables[0]
            tap.equal((table.group, table.width, ints(table.block_ids)), wanted)


@tap.test
def a_table_is_of_the_layers_own_group_unless_it_says_another():
    with Attend() as it:
        tap.equal([t.group for t in it.sent(layer=2, tables=[[1]]).batch.tables], [0])
        tap.equal([t.group for t in it.sent(layer=3, tables=[[1]]).batch.tables], [1])
        both = [attnd.Table([[1]], group=1), attnd.Table([[2]], group=0)]
        tap.equal([t.group for t in it.sent(layer=3, tables=both).batch.tables], [1, 0])


@tap.test
def integers_may_lie_in_a_buffer():
    with Attend() as it:
        lens = it.buffer.view("i32", 2, offset=1024)
        ids = it.buffer.view("i32", 6, offset=1088)
        batch = it.sent(q_lens=lens, tables=attnd.Table(ids, width=3)).batch
        tap.equal((batch.q_lens.ref.offset, batch.q_lens.ref.dtype), (1024, 8))
        tap.equal((batch.tables[0].width, batch.tables[0].block_ids.ref.offset), (3, 1088))
        tap.equal(batch.q_lens.WhichOneof("from"), "ref")
        square = it.buffer.view("i32", (2, 3), offset=1088)
        table = it.sent(tables=square).batch.tables[0]
        tap.equal((table.width, list(table.block_ids.ref.shape)), (3, [6]))
        tap.equal(
            it.refusal(ValueError, tables=square[:, :2]),
            "shape = [2, 2]: has gaps, cannot be one dimension",
        )


@tap.test
def after_names_the_request_that_goes_before():
    with Attend() as it:
        first = it.client.submit(it.model, 0, q=it.t, out=it.t)
        second = it.client.submit(it.model, 1, q=it.t, out=it.t, after=first)
        first.wait(), second.wait()
        one, two = it.daemon.requests[-2:]
        tap.equal((one.after, two.after), (0, first.id))


@tap.test
def attend_many_answers_in_the_order_of_its_calls():
    with Attend() as it:

        def on(request, reply):
            reply.attend.device_us = request.attend.layer
            if request.attend.layer in (2, 3):
                reply.status.code = 3
                reply.status.message = f"layer {request.attend.layer}"
            return True

        it.daemon.on["attend"] = on
        calls = [{"model": it.model, "layer": layer, "q": it.t, "out": it.t} for layer in (1, 0)]
        tap.equal([reply.device_us for reply in it.client.attend_many(calls)], [1, 0])
        calls = [{**calls[0], "layer": layer} for layer in (0, 2, 3, 1)]
        tap.equal(tap.raises(attnd.Error, it.client.attend_many, calls).message, "layer 2")
        tap.equal(len(it.daemon.requests), 3 + 6)


def refused(code, reason, message):
    def on(request, reply):
        reply.status.code = code
        reply.status.reason = reason
        reply.status.message = message
        return True

    return on


def tables_of(field):
    return [(t.group, t.width, ints(t.block_ids)) for t in field]


@tap.test
def a_plan_carries_its_batch_once_and_an_attend_of_it_none():
    with Attend() as it:
        batch = {
            "q_lens": [1, 1],
            "kv_lens": [5, 6],
            "tables": [[7], [8, 9]],
            "n_contexts": 1,
            "slots": [-1, 0],
            "positions": [4, 5],
            "mask": "full",
        }
        with it.client.create_plan(it.model, batch_invariant=True, **batch) as plan:
            sent = it.daemon.requests[-1].create_plan
            tap.equal((sent.model, sent.batch_invariant), (it.model.handle, True))
            tap.equal((sent.batch.n_contexts, sent.batch.mask), (1, 1))
            arrays = (sent.batch.q_lens, sent.batch.kv_lens, sent.batch.slots, sent.batch.positions)
            tap.equal([ints(m) for m in arrays], [[1, 1], [5, 6], [-1, 0], [4, 5]])
            tap.equal(tables_of(sent.batch.tables), [(0, 2, [7, -1, 8, 9])])
            tap.equal((plan.handle, plan.version, plan.model), (66, 1, it.model))
            attend = it.sent(layer=1, plan=plan)
            tap.equal((attend.WhichOneof("work"), attend.plan, attend.layer), ("plan", 66, 1))
            text = it.refusal(ValueError, plan=plan, kv_lens=[5])
            assert text.endswith("kv_lens is given too, the plan has its own"), text
        tap.equal(it.daemon.requests[-1].drop_plan.plan, 66)
        tables = [attnd.Table([[1]]), attnd.Table([[2]]), attnd.Table([[3]], group=7)]
        it.client.create_plan(it.model, tables=tables)
        sent = it.daemon.requests[-1].create_plan.batch.tables
        tap.equal([t.group for t in sent], [0, 1, 7])


@tap.test
def an_update_carries_what_changed_and_counts_its_versions():
    with Attend() as it:
        plan = it.client.create_plan(it.model)
        got = plan.update(
            q_lens=[1], kv_lens=[6, 7], appended=[[], [3]], slots=[9], positions=np.int64([5])
        )
        update = it.daemon.requests[-1].update_plan.update
        tap.equal((got, plan.version, update.plan, update.version), (2, 2, 66, 1))
        arrays = (update.q_lens, update.kv_lens, update.slots, update.positions)
        tap.equal([ints(m) for m in arrays], [[1], [6, 7], [9], [5]])
        tap.equal(tables_of(update.appended), [(0, 1, [-1, 3])])
        plan.update(appended=[[], []])
        update = it.daemon.requests[-1].update_plan.update
        tap.equal(tables_of(update.appended), [(0, 0, [])])
        for name in ("q_lens", "kv_lens", "slots", "positions"):
            assert not update.HasField(name), name
        tap.equal(plan.version, 3)
        pending = plan.submit_update(kv_lens=[4], after=plan.submit_update(kv_lens=[3]))
        tap.equal((pending.wait().version, plan.version), (5, 5))
        first, second = it.daemon.requests[-2:]
        tap.equal((first.after, second.after), (0, first.id))
        tap.equal([one.update_plan.update.version for one in (first, second)], [3, 4])
        it.daemon.on["update_plan"] = refused(9, "STALE", "update.version = 3: …")
        tap.raises(attnd.Error, plan.update)
        tap.equal(plan.version, 5)
        text = text_of(ValueError, plan.update, kv_len=[3])
        tap.equal(text, "update.kv_len: one of q_lens, kv_lens, appended, slots, positions")
        tap.equal(plan.version, 5)


@tap.test
def steps_in_flight_count_their_updates_and_take_refused_ones_back():
    with Attend() as it:
        plan = it.client.create_plan(it.model)
        t = it.buffer.view("f32", (1, 3, 8, 4))
        it.daemon.on["step"] = it.daemon.hold
        pending = [
            it.client.submit_step(plan, 0, 1, q=t, out=t, update={"kv_lens": [n]}) for n in range(3)
        ]
        tap.equal(plan.version, 4)
        held = [it.daemon.held.get(timeout=10) for _ in pending]
        tap.equal([request.step.update.version for _, _, request in held], [1, 2, 3])
        for i, (peer, number, request) in enumerate(held):
            reply = wire.Reply(id=request.id, instance=1)
            reply.status.SetInParent()
            if i:
                refused(9, "STALE", "x")(request, reply)
            else:
                reply.step.version = 2
            peer.socket.sendall(peer.frame(number, reply))
        tap.equal(pending[0].wait().version, 2)
        for one in (pending[2], pending[1]):
            tap.equal(tap.raises(attnd.Error, one.wait).reason, "STALE")
        tap.equal(plan.version, 2)


@tap.test
def a_step_says_where_every_layer_lies():
    with Attend() as it:
        plan = it.client.create_plan(it.model)
        whole = it.buffer.view("f32", (4, 2, 3, 4), offset=64)
        it.client.step(plan, 1, 4, q=whole, out=whole[:, :1], keys="given")
        step = it.daemon.requests[-1].step
        tap.equal((step.plan, step.first_layer, step.n_layers, step.keys), (66, 1, 4, 1))
        tap.equal(place(step.q.first), message_of(whole[0]))
        tap.equal((step.q.layer_stride, step.q.ring), (96, 0))
        tap.equal(place(step.out.first), message_of(whole[0, :1]))
        tap.equal((step.out.layer_stride, step.out.ring), (96, 0))
        for name in ("k", "v", "lse", "update", "sync"):
            assert not step.HasField(name), name
        ring = attnd.LayerTensor(whole[:2], ring=True)
        pending = it.client.submit_step(plan, 0, 9, q=ring, k=ring, v=ring, out=ring, lse=ring)
        pending.wait()
        step = it.daemon.requests[-1].step
        for tensor in (step.q, step.k, step.v, step.out, step.lse):
            tap.equal(place(tensor.first), message_of(whole[0]))
            tap.equal((tensor.layer_stride, tensor.ring), (96, 2))
        it.client.step(plan, 0, 1, q=ring, out=ring, after=pending)
        tap.equal(it.daemon.requests[-1].after, pending.id)


@tap.test
def a_tensor_without_room_for_every_layer_is_refused():
    with Attend() as it:
        plan = it.client.create_plan(it.model)
        t = it.buffer.view("f32", (2, 3, 8, 4))
        before = len(it.daemon.requests)

        def text(kind, **changes):
            return text_of(kind, it.client.step, plan, 0, 3, **{"q": t, "out": t, **changes})

        tap.equal(text(ValueError), "q = 2 layers: the step has 3")
        tap.equal(
            text(ValueError, q=it.buffer.view("f32", 4)),
            "q: shape = [4]: [layers][tokens][…], one layer or more",
        )
        tap.equal(text(TypeError, q=t.array), "q: ndarray: an attnd.Tensor, from Buffer.view()")
        tap.equal(len(it.daemon.requests), before)


@tap.test
def a_merge_names_its_parts():
    with Attend() as it:
        out, lse, stats = (it.buffer.view("f32", (1, 1, 2), offset=64 * i) for i in range(3))
        it.client.merge([(out, lse), attnd.Partial(out, stats=stats)], out=out, lse=lse)
        merge = it.daemon.requests[-1].merge
        first, second = merge.partials
        tap.equal((place(first.out), place(first.lse)), (message_of(out), message_of(lse)))
        tap.equal((place(second.out), place(second.stats)), (message_of(out), message_of(stats)))
        assert not first.HasField("stats") and not second.HasField("lse")
        tap.equal((place(merge.out), place(merge.lse)), (message_of(out), message_of(lse)))
        assert not merge.HasField("stats")
        before = len(it.daemon.requests)
        text = text_of(TypeError, it.client.merge, [(out, lse), (out, lse.array)], out=out)
        tap.equal(text, "partials[1].lse = ndarray: an attnd.Tensor, from Buffer.view()")
        tap.equal(len(it.daemon.requests), before)


@tap.test
def an_argument_no_batch_has_is_refused():
    with Attend() as it:
        text = it.refusal(TypeError, q_len=[1])
        assert text.startswith("attend(): q_len: no such argument; of a batch: q_lens, "), text
        text = text_of(TypeError, it.client.create_plan, it.model, kv_len=[1])
        assert text.startswith("create_plan(): kv_len: no such argument"), text


@tap.test
def what_cannot_be_written_as_a_message_never_leaves():
    with Attend() as it:
        tap.equal(
            it.refusal(TypeError, k=np.zeros(3)), "k = ndarray: an attnd.Tensor, from Buffer.view()"
        )
        tap.equal(it.refusal(TypeError, q_lens=[1.5]), "q_lens = float64: integers")
        tap.equal(
            it.refusal(ValueError, kv_lens=[0, 1 << 31]),
            "kv_lens = 0 .. 2147483648: 32-bit integers",
        )
        tap.equal(
            it.refusal(ValueError, tables=np.int32([1, 2])),
            "tables = 1 dimensions: [sequences][width]",
        )
        tap.equal(it.refusal(TypeError, tables=[[1], [0.5]]), "tables[1] = float64: integers")
        tap.equal(
            it.refusal(ValueError, mask="casual"),
            "batch.mask = 'casual': one of causal, full, variable, custom, tree",
        )


if __name__ == "__main__":
    tap.main()
