"""test_racing.py: integers in shared memory that change while a request is on its way (B137): the reply is
the one to what they were, or INVALID_ARGUMENT; no byte of a pool or a buffer is another than it should be.

A process of its own flips one integer between a good and a bad value as fast as it can.
"""

import contextlib
import os
import signal
import sys

from support import ROOT, Daemon

import numpy as np
import tap

sys.path.insert(0, os.path.join(ROOT, "tests", "fuzz"))

import fields

ROUNDS = 12  # requests for each integer and bad value
LONG, LONG_ROUNDS = 16384, 20  # entries of a table, requests
BAD = (10**9, -1, -(2**31))
# Where they lie in the buffer of integers, and what is good.
LAYOUT = {
    "q_lens": (0, [1, 1]),
    "kv_lens": (2, [6, 3]),
    "block_ids": (4, [1, 2, 5]),
    "slots": (8, [9, 22]),
    "positions": (10, [5, 2]),
    "appended": (12, [7]),
    "next_lens": (14, [7, 5]),
}


@contextlib.contextmanager
def flipping(values, at, good, bad):
    """values[at] is good, then bad, then good … until it ends with good."""
    child = os.fork()
    if not child:
        try:
            while True:
                for _ in range(1000):
                    values[at] = bad
                    values[at] = good
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        values[at] = good


def ref(world, name):
    at, good = LAYOUT[name]
    return {"ref": {"buffer": world.indices, "offset": 4 * at, "dtype": "i32", "shape": [len(good)]}}


def prepare(world):
    for at, good in LAYOUT.values():
        world.index_bytes.view("<i4")[at : at + len(good)] = good


def attend(world):
    batch = {name: ref(world, name) for name in ("q_lens", "kv_lens", "slots", "positions")}
    batch["tables"] = [{"block_ids": ref(world, "block_ids")}]
    tensors = fields.call_tensors(world, 2)
    return fields.message(
        "attend", world.mine.number, next(world.mine.ids), model=world.model, batch=batch, **tensors
    )


def step(world, plan):
    tensors = fields.call_tensors(world, 2)
    layers = {name: {"first": t} for name, t in tensors.items()}
    tables = [{"group": g, "block_ids": ref(world, "appended")} for g in (0, 1)]
    update = {"plan": plan, "version": 1, "kv_lens": ref(world, "next_lens"), "appended": tables}
    return fields.message(
        "step", world.mine.number, next(world.mine.ids), plan=plan, update=update, n_layers=1, **layers
    )


def memory(world):
    """What a request may change: the pools and the buffer of tensors."""
    return [p.copy() for p in world.pools] + [world.bytes.copy()]


def is_same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b))


def race(world, names, make, give_back):
    """How many requests were done, and how many refused."""
    values = world.index_bytes.view("<i4")
    prepare(world)
    reply = world.mine.raw.exchange(make())
    assert not reply.status.code, reply.status
    give_back()
    done, refused = 0, 0
    right = memory(world)  # appends and outputs are the same every time
    for name in names:
        at, good = LAYOUT[name]
        for i, bad in ((i, bad) for i in range(len(good)) for bad in BAD):
            if name == "slots" and bad == -1:
                continue  # stored nowhere: another right answer
            with flipping(values, at + i, good[i], bad):
                for _ in range(ROUNDS):
                    reply = world.mine.raw.exchange(make())
                    give_back()
                    done += not reply.status.code
                    refused += reply.status.code == 3
                    assert reply.status.code in (0, 3), (name, i, bad, reply.status)
                    assert is_same(memory(world), right), (name, i, bad, reply.status)
    return done, refused


@tap.test
def integers_of_a_batch_may_change_at_any_moment():
    world = fields.World(daemon)
    names = ("q_lens", "kv_lens", "block_ids", "slots", "positions")
    done, refused = race(world, names, lambda: attend(world), lambda: None)
    assert done and refused, (done, refused)
    world.mine.__exit__()
    world.other.__exit__()


@tap.test
def integers_of_an_update_may_change_at_any_moment():
    world = fields.World(daemon)
    plans = []

    def make():
        plans.append(world.new_plan())
        return step(world, plans[-1])

    def give_back():
        world.mine.call("drop_plan", plan=plans.pop())

    done, refused = race(world, ("next_lens", "appended"), make, give_back)
    assert done and refused, (done, refused)
    world.mine.__exit__()
    world.other.__exit__()


@tap.test
def a_long_table_may_change_while_its_keys_are_read():
    """Long enough that whoever flips has his turn between the check of an entry and its use."""
    world = fields.World(daemon)
    handle, data = world.new_buffer(4 * LONG)
    table = data.view("<i4")
    table[:] = np.arange(LONG) % fields.BLOCKS
    ids = {"ref": {"buffer": handle, "dtype": "i32", "shape": [LONG]}}
    lens = [{"data": fields.ints([n])} for n in (1, LONG * fields.T)]
    batch = {"q_lens": lens[0], "kv_lens": lens[1], "tables": [{"block_ids": ids}]}
    tensors = fields.call_tensors(world, 1)
    seen = set()
    right = None
    for at in (LONG // 2, LONG - 1, LONG // 4):
        for bad in (0x7FFFFFFF, 10**9):
            with flipping(table, at, int(table[at]), bad):
                for _ in range(LONG_ROUNDS):
                    reply = world.mine.call(
                        "attend",
                        model=world.model,
                        batch=batch,
                        q=tensors["q"],
                        out=tensors["out"],
                    )
                    seen.add((reply.status.code, reply.status.reason))
                    if reply.status.code:
                        continue
                    right = right or memory(world)
                    assert is_same(memory(world), right), (at, bad)
    tap.equal(seen - {(0, ""), (3, "BAD_BLOCK")}, set())
    assert right and len(seen) == 2, seen
    world.mine.__exit__()
    world.other.__exit__()


with Daemon("--log.level=error") as daemon:
    tap.main()
