"""test_python_daemon.py: the Python client against a real daemon: results, typed refusals,
time-outs, and what happens when either side goes away."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

from support import BUILD, Daemon, attnd, error_of, freeze

import numpy as np
import tap

daemon = None

N_HEADS, N_KV_HEADS, DIM, BLOCK = 4, 2, 16, 4


def open_model(client, dtype="f32", n_blocks=16, **layer):
    return client.open_model(
        attnd.ModelSpec(
            layers=[attnd.Layer(N_HEADS, DIM, n_kv_heads=N_KV_HEADS, count=2, **layer)],
            groups=[attnd.Group(dtype, BLOCK, n_blocks=n_blocks, name="main")],
        )
    )


class Rows:
    """q, k, v, out and lse of n tokens in a buffer of their own, drawn from a seed."""

    def __init__(self, client, n, dtype="f32", seed=1):
        self.seed = seed
        rng = np.random.default_rng(seed)
        self.buffer = client.create_buffer(5 * 4096)
        self.q, self.k, self.v, self.out = (
            self.buffer.view(dtype, (n, heads, DIM), offset=4096 * i)
            for i, heads in enumerate((N_HEADS, N_KV_HEADS, N_KV_HEADS, N_HEADS))
        )
        self.lse = self.buffer.view("f32", (n, N_HEADS), offset=4096 * 4)
        for tensor in (self.q, self.k, self.v):
            tensor.set(rng.normal(size=tensor.shape))
        self.out.set(np.nan)
        self.lse.set(np.nan)

    def tensors(self):
        return {"q": self.q, "k": self.k, "v": self.v, "out": self.out, "lse": self.lse}


def expected(q, k, v, first):
    """(out, lse) in float64: row i sees keys 0 .. first + i."""
    k, v = (np.repeat(x.astype(float), N_HEADS // N_KV_HEADS, axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->ihj", q.astype(float), k) / np.sqrt(DIM)
    is_hidden = np.arange(len(k)) > first + np.arange(len(q))[:, None]
    scores[np.broadcast_to(is_hidden[:, None], scores.shape)] = -np.inf
    p = np.exp(scores)
    return np.einsum("ihj,jhd->ihd", p / p.sum(axis=2, keepdims=True), v), np.log(p.sum(axis=2))


def check(rows, first=0, keys=None, values=None):
    out, lse = expected(
        rows.q.float32(),
        rows.k.float32() if keys is None else keys,
        rows.v.float32() if values is None else values,
        first,
    )
    worst = np.abs(rows.out.float32() - out).max(), np.abs(rows.lse.float32() - lse).max()
    assert max(worst) < 1e-5, f"seed {rows.seed}: out, lse off by {worst}"


def joined(prompt, step):
    """Keys and values that a decode step behind a prompt sees."""
    pairs = (prompt.k, step.k), (prompt.v, step.v)
    return [np.concatenate((a.float32(), b.float32())) for a, b in pairs]


# ---- What is served ------------------------------------------------------------------------------


@tap.test
def hello_says_what_the_daemon_is():
    with attnd.Client(daemon.dir) as client:
        info = client.info
        tap.equal((info.protocol, info.device.backend), (1, "cpu"))
        assert info.version and info.device.n_threads > 0 and info.limits.max_in_flight > 0, info
        assert "attend" in info.features, info.features
        listed = daemon.rpc("sessions.list")["sessions"]
        tap.equal([one["client"] for one in listed], ["python"])
        assert 0 < client.ping() < 5


@tap.test
def an_attend_is_right_and_a_decode_step_reads_what_it_stored():
    with attnd.Client(daemon.dir) as client:
        model, prompt, step = open_model(client), Rows(client, 6), Rows(client, 1, seed=2)
        tap.equal([pool.n_blocks for pool in model.pools], [16])
        for layer in range(model.n_layers):
            client.attend(
                model,
                layer,
                **prompt.tensors(),
                q_lens=[6],
                kv_lens=[6],
                tables=[[9, 2]],
                n_contexts=1,
            )
            check(prompt)
        client.attend(model, 0, **step.tensors(), q_lens=[1], kv_lens=[7], tables=[[9, 2]])
        check(step, 6, *joined(prompt, step))


@tap.test
def lengths_and_tables_may_lie_in_a_buffer():
    with attnd.Client(daemon.dir) as client:
        model, rows = open_model(client), Rows(client, 5)
        ints = client.create_buffer(64)
        q_lens, ids = ints.view("i32", 1), ints.view("i32", 3, offset=16)
        q_lens.set([5])
        ids.set([3, 0, -1])
        client.attend(
            model,
            1,
            **rows.tensors(),
            q_lens=q_lens,
            kv_lens=q_lens,
            tables=attnd.Table(ids, width=3),
            n_contexts=1,
        )
        check(rows)


@tap.test
def two_requests_in_flight_each_get_their_own():
    with attnd.Client(daemon.dir) as client:
        model, one, two = open_model(client), Rows(client, 5), Rows(client, 7, seed=2)
        for _ in range(20):
            for rows in (one, two):
                rows.out.set(np.nan)
            pending = [
                client.submit(
                    model,
                    0,
                    **one.tensors(),
                    q_lens=[5],
                    kv_lens=[5],
                    tables=[[0, 1]],
                    n_contexts=1,
                ),
                client.submit(
                    model,
                    1,
                    **two.tensors(),
                    q_lens=[7],
                    kv_lens=[7],
                    tables=[[2, 3]],
                    n_contexts=1,
                ),
            ]
            for wanted in reversed(pending):
                wanted.wait()
            check(one)
            check(two)


@tap.test
def attend_many_answers_each_and_raises_the_first_refusal():
    with attnd.Client(daemon.dir) as client:
        model, rows = open_model(client), [Rows(client, 3, seed=i) for i in range(4)]
        calls = [
            {
                "model": model,
                "layer": 0,
                **one.tensors(),
                "q_lens": [3],
                "kv_lens": [3],
                "tables": [[i]],
                "n_contexts": 1,
            }
            for i, one in enumerate(rows)
        ]
        tap.equal(len(client.attend_many(calls)), 4)
        for one in rows:
            check(one)
        calls[2]["tables"] = [[16]]
        wrong = tap.raises(attnd.Error, client.attend_many, calls)
        tap.equal(wrong.reason, "BAD_BLOCK")


@tap.test
def a_request_runs_after_the_one_it_names():
    with attnd.Client(daemon.dir) as client:
        model, prompt, step = open_model(client), Rows(client, 6), Rows(client, 1, seed=2)
        table = {"tables": [[0, 1]]}
        first = client.submit(
            model, 0, **prompt.tensors(), q_lens=[6], kv_lens=[6], n_contexts=1, **table
        )
        second = client.submit(
            model, 0, **step.tensors(), q_lens=[1], kv_lens=[7], after=first, **table
        )
        first.wait()
        check(prompt)
        second.wait()
        check(step, 6, *joined(prompt, step))
        refused = client.submit(model, 9, **step.tensors(), q_lens=[1], kv_lens=[7], **table)
        behind = client.submit(
            model, 0, **step.tensors(), q_lens=[1], kv_lens=[7], after=refused, **table
        )
        tap.equal(error_of(refused.wait)[:2], ("INVALID_ARGUMENT", "BAD_GEOMETRY"))
        tap.equal(error_of(behind.wait)[:3], ("FAILED_PRECONDITION", "STALE", "after"))


# ---- Plans, steps, merging -----------------------------------------------------------------------


class Layers:
    """q, k, v, out and lse of n tokens for both layers of a model, [layers][tokens][heads][dim]."""

    def __init__(self, client, n, n_layers=2, seed=3):
        rng = np.random.default_rng(seed)
        self.buffer = client.create_buffer(n_layers * n * 16 * 1024)
        at = 0
        for name, shape in (
            ("q", (n_layers, n, N_HEADS, DIM)),
            ("k", (n_layers, n, N_KV_HEADS, DIM)),
            ("v", (n_layers, n, N_KV_HEADS, DIM)),
            ("out", (n_layers, n, N_HEADS, DIM)),
            ("lse", (n_layers, n, N_HEADS)),
        ):
            tensor = self.buffer.view("f32", shape, offset=at)
            tensor.set(rng.normal(size=shape))
            setattr(self, name, tensor)
            at += -(-int(np.prod(shape)) * 4 // 64) * 64
        self.out.set(np.nan)
        self.lse.set(np.nan)

    def tensors(self):
        return {name: getattr(self, name) for name in ("q", "k", "v", "out", "lse")}


def check_layers(layers, before=()):
    """Both layers, whose tokens follow those of before."""
    for i in range(layers.q.shape[0]):
        keys = np.concatenate([one.k[i].float32() for one in (*before, layers)])
        values = np.concatenate([one.v[i].float32() for one in (*before, layers)])
        first = len(keys) - layers.q.shape[1]
        out, lse = expected(layers.q[i].float32(), keys, values, first)
        worst = (
            np.abs(layers.out[i].float32() - out).max(),
            np.abs(layers.lse[i].float32() - lse).max(),
        )
        assert max(worst) < 1e-5, f"layer {i}: out, lse off by {worst}"


@tap.test
def a_plan_serves_every_layer_and_the_steps_that_follow():
    with attnd.Client(daemon.dir) as client:
        model, prompt = open_model(client), Layers(client, 6)
        with client.create_plan(
            model, q_lens=[6], kv_lens=[6], tables=[[9, 2]], n_contexts=1
        ) as plan:
            tap.equal((plan.version, plan.model), (1, model))
            for i in range(model.n_layers):
                call = {name: tensor[i] for name, tensor in prompt.tensors().items()}
                client.attend(model, i, plan=plan, **call)
            check_layers(prompt)
        tap.equal(error_of(plan.drop)[:2], ("NOT_FOUND", "NO_SUCH_HANDLE"))
        with client.create_plan(model, q_lens=[1], kv_lens=[7], tables=[[9, 2]]) as plan:
            seen = [prompt]
            for kv_len in range(7, 14):
                one = Layers(client, 1, seed=kv_len)
                update = None
                if kv_len > 7:  # block 5 for tokens 8 .. 11, block 0 for 12
                    appended = [[{9: 5, 13: 0}[kv_len]] if kv_len in (9, 13) else []]
                    update = {"kv_lens": [kv_len], "appended": appended}
                reply = client.step(plan, 0, 2, update=update, **one.tensors())
                tap.equal((reply.version, plan.version), (kv_len - 6, kv_len - 6))
                check_layers(one, seen)
                seen.append(one)


@tap.test
def steps_in_flight_bring_their_updates():
    with attnd.Client(daemon.dir) as client:
        model, prompt = open_model(client), Layers(client, 4)
        with client.create_plan(model, q_lens=[4], kv_lens=[4], tables=[[3]]) as plan:
            steps, seen = [client.submit_step(plan, 0, 2, **prompt.tensors())], [prompt]
            for i in range(8):
                one = Layers(client, 1, seed=i)
                update = {"q_lens": [1], "kv_lens": [5 + i]}
                update["appended"] = [[4 + i // 4]] if i % 4 == 0 else [[]]
                steps.append(
                    client.submit_step(plan, 0, 2, update=update, after=steps[-1], **one.tensors())
                )
                seen.append(one)
            for i, step in enumerate(steps):
                tap.equal(step.wait().version, 1 + i)
                check_layers(seen[i], seen[:i])


@tap.test
def updates_in_flight_are_in_order_by_after():
    with attnd.Client(daemon.dir) as client:
        model, seen, pending = open_model(client), [], []
        with client.create_plan(model, q_lens=[1], kv_lens=[1], tables=[[3]]) as plan:
            for i in range(8):
                one = Layers(client, 1, seed=i)
                if i:
                    appended = [[3 + i // BLOCK]] if i % BLOCK == 0 else None
                    pending.append(
                        plan.submit_update(kv_lens=[1 + i], appended=appended, after=pending[-1])
                    )
                after = pending[-1] if pending else None
                pending.append(client.submit_step(plan, 0, 2, after=after, **one.tensors()))
                seen.append(one)
            versions = [one.wait().version for one in pending]
            tap.equal(versions, [1] + [n for i in range(2, 9) for n in (i, i)])
            for i, one in enumerate(seen):
                check_layers(one, seen[:i])


@tap.test
def a_refused_update_leaves_the_plan_as_it_was():
    with attnd.Client(daemon.dir) as client:
        model, rows = open_model(client), Layers(client, 1)
        with client.create_plan(model, q_lens=[1], kv_lens=[1], tables=[[3]]) as plan:
            got = error_of(plan.update, kv_lens=[9], appended=[[4, 99]])
            tap.equal(got[:3], ("INVALID_ARGUMENT", "BAD_BLOCK", "update.appended[0].block_ids[1]"))
            tap.equal(plan.version, 1)
            got = error_of(
                client.step, plan, 0, 2, update={"kv_lens": [900]}, q=rows.q, out=rows.out
            )
            tap.equal(got[0], "INVALID_ARGUMENT")
            tap.equal(plan.version, 1)
            tap.equal(plan.update(kv_lens=[2]), 2)
            plan.version = 1
            got = error_of(plan.update, kv_lens=[3])
            tap.equal(got[:3], ("FAILED_PRECONDITION", "STALE", "update.version"))


@tap.test
def a_ring_holds_fewer_layers_than_the_step():
    with attnd.Client(daemon.dir) as client:
        model, rows = open_model(client), Layers(client, 3)
        ring = attnd.LayerTensor(rows.q[:1], ring=True)
        with client.create_plan(model, q_lens=[3], kv_lens=[3], tables=[[1]]) as plan:
            call = {**rows.tensors(), "q": ring}
            client.step(plan, 0, 2, **call)
        rows.q.array[1] = rows.q.array[0]
        check_layers(rows)


@tap.test
def parts_merge_to_the_whole():
    with attnd.Client(daemon.dir) as client:
        model, prompt = open_model(client), Rows(client, 8)
        client.attend(
            model, 0, **prompt.tensors(), q_lens=[8], kv_lens=[8], tables=[[1, 2]], n_contexts=1
        )
        asked = Rows(client, 4, seed=7)

        def attention(kv_len, table):
            rows = Rows(client, 4, seed=7)
            arguments = {"q_lens": [4], "kv_lens": [kv_len], "tables": [table], "mask": "full"}
            client.attend(model, 0, q=asked.q, out=rows.out, lse=rows.lse, **arguments)
            return rows

        parts, whole = [attention(4, [1]), attention(4, [2])], attention(8, [1, 2])
        merged = Rows(client, 4)
        reply = client.merge(
            [(parts[0].out, parts[0].lse), attnd.Partial(parts[1].out, lse=parts[1].lse)],
            out=merged.out,
            lse=merged.lse,
        )
        assert reply.device_us < 10**7
        assert np.abs(merged.out.float32() - whole.out.float32()).max() < 1e-5
        assert np.abs(merged.lse.float32() - whole.lse.float32()).max() < 1e-5


# ---- Connections that break ----------------------------------------------------------------------


def cut(*sockets):
    for sock in sockets:
        sock.shutdown(socket.SHUT_RDWR)


@tap.test
def a_session_goes_on_over_new_connections():
    with attnd.Client(daemon.dir) as client:
        ordinal = [one["session"] for one in daemon.rpc("sessions.list")["sessions"]]
        model, prompt, step = open_model(client), Rows(client, 6), Rows(client, 1, seed=2)
        table = {"tables": [[9, 2]]}
        client.attend(model, 0, **prompt.tensors(), q_lens=[6], kv_lens=[6], n_contexts=1, **table)
        link = client._link
        cut(link._connection._socket)
        client.attend(model, 0, **step.tensors(), q_lens=[1], kv_lens=[7], **table)
        check(step, 6, *joined(prompt, step))
        cut(link._lease._socket)
        step.out.set(np.nan)
        client.attend(model, 0, **step.tensors(), q_lens=[1], kv_lens=[7], **table)
        check(step, 6, *joined(prompt, step))
        cut(link._connection._socket, link._lease._socket)
        step.out.set(np.nan)
        client.attend(model, 0, **step.tensors(), q_lens=[1], kv_lens=[7], **table)
        check(step, 6, *joined(prompt, step))
        tap.equal(client.create_buffer(64).bytes, 64)
        sessions = daemon.rpc("sessions.list")["sessions"]
        tap.equal([one["session"] for one in sessions], ordinal)


@tap.test
def what_is_in_flight_when_both_connections_break_runs_once():
    with attnd.Client(daemon.dir) as client:
        model, rows = open_model(client), [Rows(client, 4, seed=i) for i in range(8)]
        before = int(daemon.rpc("stats.get")["counters"]["repeats"])
        buffers = [
            client._submit(client._request("create_buffer", {"bytes": 64})[0], 10) for _ in range(4)
        ]
        pending = [
            client.submit(model, 1, **one.tensors(), q_lens=[4], kv_lens=[4], tables=[[i]])
            for i, one in enumerate(rows)
        ]
        cut(client._link._connection._socket, client._link._lease._socket)
        for one, rows_of_one in zip(pending, rows):
            one.wait()
            check(rows_of_one)
        handles = {one.wait().buffer for one in buffers}
        tap.equal(len(handles), 4)
        tap.equal(len(daemon.rpc("buffers.list")["buffers"]), 8 + 4)  # made once each
        after = int(daemon.rpc("stats.get")["counters"]["repeats"])
        assert 0 <= after - before <= 12, after - before


@tap.test
def a_session_nobody_took_up_within_its_linger_has_ended():
    with attnd.Client(daemon.dir) as client:
        client.create_buffer(64)
        cut(client._link._connection._socket, client._link._lease._socket)
        tap.until(lambda: not daemon.rpc("sessions.list")["sessions"], "the end of its linger")
        got = error_of(client.create_buffer, 64)
        tap.equal(got[:2], ("UNAVAILABLE", "RESTARTED"))
        tap.equal(error_of(client.ping)[:2], ("UNAVAILABLE", "RESTARTED"))


@tap.test
def threads_share_a_client():
    with attnd.Client(daemon.dir) as client:
        model, wrong = open_model(client), []
        rows = [Rows(client, 4, seed=i) for i in range(4)]

        def work(i):
            try:
                for _ in range(25):
                    rows[i].out.set(np.nan)
                    client.attend(
                        model,
                        0,
                        **rows[i].tensors(),
                        q_lens=[4],
                        kv_lens=[4],
                        tables=[[i]],
                        n_contexts=1,
                    )
                    check(rows[i])
            except Exception as raised:
                wrong.append(raised)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        tap.equal(wrong, [])


# ---- Refusals ------------------------------------------------------------------------------------


@tap.test
def a_refusal_is_typed_and_writes_nothing():
    with attnd.Client(daemon.dir) as client:
        model, rows = open_model(client), Rows(client, 6)
        other = attnd.Tensor(rows.buffer, "f16", rows.q.array.view(np.float16)[..., :DIM])
        good = {
            "q_lens": [6],
            "kv_lens": [6],
            "tables": [[9, 2]],
            "n_contexts": 1,
            **rows.tensors(),
        }
        cases = [
            (
                {"tables": [[9, 16]]},
                "INVALID_ARGUMENT",
                "BAD_BLOCK",
                "batch.tables[0].block_ids[1]",
            ),
            (
                {"tables": [[9, -1]]},
                "INVALID_ARGUMENT",
                "BAD_BLOCK",
                "batch.tables[0].block_ids[1]",
            ),
            ({"tables": [[9]]}, "INVALID_ARGUMENT", "KV_LEN_EXCEEDS_POOL", "batch.kv_lens[0]"),
            ({"kv_lens": [5]}, "INVALID_ARGUMENT", "BAD_LENGTH", "batch.kv_lens[0]"),
            ({"n_contexts": 2}, "INVALID_ARGUMENT", "BAD_PHASE", "batch.n_contexts"),
            ({"layer": 2}, "INVALID_ARGUMENT", "BAD_GEOMETRY", "layer"),
            ({"q": other}, "INVALID_ARGUMENT", "BAD_QUANT", "q.dtype"),
            ({"mask": "tree"}, "UNIMPLEMENTED", "UNSUPPORTED", "batch.mask"),
            ({"keys": "given"}, "UNIMPLEMENTED", "UNSUPPORTED", "keys"),
        ]
        for changes, *wanted in cases:
            call = {"layer": 0, **good, **changes}
            code, reason, field, message = error_of(client.attend, model, **call)
            tap.equal([code, reason, field], wanted)
            assert message.startswith(field), message
            assert np.isnan(rows.out.array).all(), "out was written"
        client.attend(model, 0, **good)
        check(rows)


@tap.test
def a_bad_spec_is_refused_with_its_path():
    with attnd.Client(daemon.dir) as client:
        layer, group = {"n_heads": 4, "head_dim": 16}, {
            "kv_dtype": "f32",
            "block_size": 4,
            "n_blocks": 1,
        }
        cases = [
            ({"layers": [{**layer, "n_kv_heads": 3}], "groups": [group]}, "spec.layers[0].n_heads"),
            ({"layers": [layer, {**layer, "group": 1}], "groups": [group]}, "spec.layers[1].group"),
            (
                {"layers": [layer], "groups": [{**group, "block_size": 3}]},
                "spec.groups[0].block_size",
            ),
        ]
        for model_spec, field in cases:
            tap.equal(
                error_of(client.open_model, model_spec)[:3],
                ("INVALID_ARGUMENT", "BAD_GEOMETRY", field),
            )
        tap.equal(daemon.rpc("models.list")["models"], [])


@tap.test
def what_was_given_back_is_gone():
    with attnd.Client(daemon.dir) as client:
        model, rows = open_model(client), Rows(client, 1)
        call = {**rows.tensors(), "q_lens": [1], "kv_lens": [1], "tables": [[0]]}
        rows.buffer.free()
        code, reason, field, _ = error_of(client.attend, model, 0, **call)
        tap.equal((code, reason), ("NOT_FOUND", "NO_SUCH_HANDLE"))
        assert field.startswith("q"), field
        tap.equal(error_of(rows.buffer.free)[:3], ("NOT_FOUND", "NO_SUCH_HANDLE", "buffer"))
        model.close()
        tap.equal(error_of(model.close)[:3], ("NOT_FOUND", "NO_SUCH_HANDLE", "model"))


@tap.test
def what_was_used_and_given_back_frees_its_memory_while_the_session_lives():
    with attnd.Client(daemon.dir) as client:
        model, rows = open_model(client), Rows(client, 3)
        client.attend(
            model, 0, **rows.tensors(), q_lens=[3], kv_lens=[3], tables=[[0]], n_contexts=1
        )
        model.close()
        rows.buffer.free()
        for what in ("models", "pools", "buffers"):
            tap.until(lambda what=what: daemon.rpc(f"{what}.list")[what] == [], f"no {what}")
        client.ping()


@tap.test
def another_sessions_things_cannot_be_named():
    with attnd.Client(daemon.dir) as mine, attnd.Client(daemon.dir) as theirs:
        model, rows = open_model(mine), Rows(theirs, 1)
        own, own_rows = open_model(theirs), Rows(mine, 1)
        batch = {"q_lens": [1], "kv_lens": [1], "tables": [[0]]}
        for call in ((theirs, model, rows), (theirs, own, own_rows)):
            client, some_model, some_rows = call
            got = error_of(client.attend, some_model, 0, **some_rows.tensors(), **batch)
            tap.equal(got[:2], ("NOT_FOUND", "NO_SUCH_HANDLE"))


@tap.test
def a_request_larger_than_a_message_is_refused_before_it_is_sent():
    spec = {
        "layers": [{"n_heads": 1, "head_dim": 4}],
        "groups": [{"block_size": 1, "kv_dtype": "f32", "n_blocks": 4096}],
    }
    with Daemon("--data.max_message=8KiB") as small, attnd.Client(small.dir) as client:
        model = client.open_model(spec)

        def plan(n_keys):
            return client.create_plan(model, q_lens=[1], kv_lens=[n_keys], tables=[list(range(n_keys))])

        sent, low, high = 0, 1, 4096
        while low < high:  # the longest table that is sent
            middle = (low + high + 1) // 2
            try:
                plan(middle).drop()
                sent, low = middle, middle
            except attnd.Error as wrong:
                tap.equal((wrong.code, wrong.reason, wrong.field), ("INVALID_ARGUMENT", "TOO_LARGE", "request"))
                high = middle - 1
        assert 8192 - 4 * sent < 128, sent
        client.ping()
        tap.equal(small.counter("disconnects"), 0)
        tap.equal(small.stop(), 0)


@tap.test
def quotas_are_named():
    with Daemon("--session.max_buffer=64KiB") as small, attnd.Client(small.dir) as client:
        client.create_buffer(40 << 10)
        code, reason, field, _ = error_of(client.create_buffer, 40 << 10)
        tap.equal((code, reason, field), ("RESOURCE_EXHAUSTED", "NO_ROOM", "bytes"))
        code, reason, field, _ = error_of(client.create_buffer, 65 << 10)
        tap.equal((code, reason, field), ("INVALID_ARGUMENT", "TOO_LARGE", "bytes"))
        tap.equal(small.stop(), 0)


# ---- Coming and going ----------------------------------------------------------------------------


@tap.test
def an_idle_client_is_a_healthy_client():
    with attnd.Client(daemon.dir) as client:
        model, rows = open_model(client), Rows(client, 3)
        time.sleep(3)
        client.attend(
            model, 0, **rows.tensors(), q_lens=[3], kv_lens=[3], tables=[[0]], n_contexts=1
        )
        check(rows)


@tap.test
def a_client_that_leaves_leaves_nothing():
    with attnd.Client(daemon.dir) as client:
        open_model(client)
        client.create_buffer(4096)
    for what in ("sessions", "models", "buffers", "pools"):
        tap.until(lambda what=what: daemon.rpc(f"{what}.list")[what] == [], f"no {what}")


@tap.test
def a_client_that_is_killed_leaves_nothing():
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import attnd, time
client = attnd.Client(sys.argv[2], name="victim")
client.open_model({"layers": [{"n_heads": 1, "head_dim": 16}],
                   "groups": [{"kv_dtype": "f32", "block_size": 16, "n_blocks": 8}]})
client.create_buffer(1 << 20)
print("up", flush=True)
time.sleep(60)
"""
    victim = subprocess.Popen(
        [sys.executable, "-c", program, os.path.join(BUILD, "python"), daemon.dir],
        stdout=subprocess.PIPE,
    )
    with victim, attnd.Client(daemon.dir) as client:
        tap.equal(victim.stdout.readline(), b"up\n")
        tap.equal(len(daemon.rpc("buffers.list")["buffers"]), 1)
        victim.kill()
        for what in ("models", "buffers", "pools"):
            tap.until(lambda what=what: daemon.rpc(f"{what}.list")[what] == [], f"no {what}")
        tap.equal([one["client"] for one in daemon.rpc("sessions.list")["sessions"]], ["python"])
        client.ping()


@tap.test
def a_daemon_that_hangs_times_out_and_serves_on():
    with Daemon() as own:
        client = attnd.Client(own.dir, timeout=20)
        model, rows = open_model(client), Rows(client, 3)
        freeze(own.process.pid)
        try:
            begin = time.monotonic()
            tap.equal(error_of(client.ping, timeout=0.2)[:2], ("DEADLINE_EXCEEDED", "TIMED_OUT"))
            late = client.submit(
                model, 0, q=rows.q, out=rows.out, q_lens=[3], kv_lens=[3], tables=[[99]]
            )
            tap.equal(error_of(late.wait, 0.2)[:2], ("DEADLINE_EXCEEDED", "TIMED_OUT"))
            assert time.monotonic() - begin < 5
        finally:
            os.kill(own.process.pid, signal.SIGCONT)
        tap.equal(error_of(late.wait)[:2], ("INVALID_ARGUMENT", "BAD_BLOCK"))
        client.ping()
        client.close()
        tap.equal(own.stop(), 0)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def killed_with_a_request_in_flight(own, pid):
    client = attnd.Client(own.dir, timeout=60)
    freeze(pid)
    got = []
    thread = threading.Thread(target=lambda: got.append(error_of(client.ping)))
    thread.start()
    time.sleep(0.2)
    tap.equal(got, [])
    os.kill(pid, signal.SIGKILL)
    thread.join(10)
    tap.equal([one[:2] for one in got], [("UNAVAILABLE", "RESTARTED")])
    tap.equal(error_of(client.create_buffer, 64)[:2], ("UNAVAILABLE", "RESTARTED"))
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 2, "close() waits for a daemon that is gone"


@tap.test
def a_killed_daemon_is_unavailable_at_once():
    """B128."""
    with Daemon() as own:
        killed_with_a_request_in_flight(own, own.process.pid)
        own.process.wait()
        # The socket file is still there and nobody listens.
        code, reason, field, message = error_of(attnd.Client, own.dir)
        tap.equal((code, reason, field), ("UNAVAILABLE", "UNREACHABLE", "data"))
        assert f"{own.dir}/data" in message, message


@tap.test
def a_killed_engine_is_unavailable_and_the_next_one_serves():
    with Daemon(keeper=True) as own:
        engines = children(own.process.pid)
        tap.equal(len(engines), 1)
        killed_with_a_request_in_flight(own, engines[0])
        own.wait_ready()
        with attnd.Client(own.dir) as client:
            model, rows = open_model(client), Rows(client, 3)
            client.attend(
                model, 0, **rows.tensors(), q_lens=[3], kv_lens=[3], tables=[[0]], n_contexts=1
            )
            check(rows)
        tap.equal(own.stop(), 0)


@tap.test
def a_daemon_that_is_told_to_stop_ends_with_clients_connected():
    with Daemon() as own:
        client = attnd.Client(own.dir)
        tap.equal(own.stop(), 0)
        tap.equal(error_of(client.ping, timeout=10)[0], "UNAVAILABLE")
        client.close()


if __name__ == "__main__":
    with Daemon() as daemon:
        tap.main()
