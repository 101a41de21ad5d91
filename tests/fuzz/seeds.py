"""seeds.py: writes the corpora: valid inputs of every fuzz target, made by hand, from which fuzzers start.

What fuzzing found beside them (regressions) is committed by itself and not written here.
"""

import json
import os
import re
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("ATTND_BUILD") or os.path.join(ROOT, "build", "release")
sys.path.insert(0, os.path.join(BUILD, "python"))

from attnd import wire

import numpy as np

# Those of world.h.
SESSION = 0x0123456789ABCDEF
MODEL, BUFFER, INTS, PLAN, SLOTS = 1, 2, 3, 4, 5
HEADS, DIM = 2, 8


def write(target, name, data):
    folder = os.path.join(HERE, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


# ---- Requests ----


def message(op, body=None, id=0, after=0, session=SESSION):
    request = wire.Request(session=session, id=id, after=after)
    getattr(request, op).SetInParent()
    wire.fill(getattr(request, op), body or {})
    return request


def data(*values):
    return {"data": np.array(values, "<i4").tobytes()}


def ref(n, at=0):
    return {"ref": {"buffer": INTS, "offset": at, "dtype": "i32", "shape": [n]}}


def tensor(offset, *shape, dtype="f32", **more):
    return dict({"buffer": BUFFER, "offset": offset, "dtype": dtype, "shape": list(shape)}, **more)


def batch(q, kv, ids, group=0, **more):
    table = {"group": group, "block_ids": data(*ids)}
    return dict({"q_lens": data(*q), "kv_lens": data(*kv), "tables": [table]}, **more)


def attend(n, layer=0, keys=True, **more):
    out = {"model": MODEL, "layer": layer, "q": tensor(0, n, HEADS, DIM), "out": tensor(2048, n, HEADS, DIM)}
    if keys:
        out.update(k=tensor(1024, n, 1, DIM), v=tensor(1536, n, 1, DIM))
    return dict(out, **more)


def layers(offset, *shape, stride=0, ring=0):
    return {"first": tensor(offset, *shape), "layer_stride": stride, "ring": ring}


def step(n, **more):
    out = {
        "plan": PLAN,
        "n_layers": 3,
        "q": layers(0, n, HEADS, DIM),
        "k": layers(512, n, 1, DIM),
        "v": layers(640, n, 1, DIM),
        "out": layers(1024, n, HEADS, DIM, stride=256),
        "lse": layers(3072, n, HEADS, stride=64),
    }
    return dict(out, **more)


LAYER = {"n_heads": 2, "n_kv_heads": 1, "head_dim": 8}
GROUP = {"block_size": 4, "kv_dtype": "f32", "n_blocks": 4, "name": "main"}
UPDATE = {"plan": PLAN, "version": 1, "kv_lens": data(7, 4)}
GROWS = {
    "plan": PLAN,
    "version": 1,
    "kv_lens": data(9, 5),
    "appended": [{"group": g, "block_ids": data(6, 7)} for g in (0, 1)],
}
PARTIAL = {"out": tensor(0, 2, 2, 4), "lse": tensor(256, 2, 2)}
PARTIAL_STATS = {"out": tensor(512, 2, 2, 4, dtype="f16"), "stats": tensor(768, 2, 2, 2)}

REQUESTS = {
    "ping": [message("ping", session=0)],
    "hello": [message("hello", {"protocol": 1, "client": "seed"}, session=0)],
    "goodbye": [message("goodbye")],
    "open_model": [message("open_model", {"spec": {"name": "m", "layers": [LAYER], "groups": [GROUP]}})],
    "open_model_rich": [
        message(
            "open_model",
            {
                "spec": {
                    "name": "rich",
                    "layers": [
                        dict(LAYER, rope={"pairing": "gptj", "dim": 4, "theta": 1e6}, softcap=5.0),
                        dict(LAYER, group=1, head_dim_v=4, chunk=8, count=2, sm_scale=0.5),
                    ],
                    "groups": [
                        dict(GROUP, layout="nhd", max_kv_len=12, window=5),
                        {"block_size": 16, "kv_dtype": "bf16", "bytes": 16384},
                    ],
                }
            },
        )
    ],
    "close_model": [message("close_model", {"model": MODEL})],
    "create_buffer": [message("create_buffer", {"bytes": 4096})],
    "create_named": [message("create_buffer", {"bytes": 64, "named": True})],
    "free_buffer": [message("free_buffer", {"buffer": BUFFER})],
    "create_plan": [message("create_plan", {"model": MODEL, "batch": batch([2, 1], [6, 3], [1, 2, 5], n_contexts=1)})],
    "create_plan_refs": [
        message(
            "create_plan",
            {
                "model": MODEL,
                "batch_invariant": True,
                "batch": {
                    "q_lens": ref(2, 4),
                    "kv_lens": ref(2, 8),
                    "tables": [{"group": 1, "width": 2, "block_ids": ref(4)}],
                },
            },
        )
    ],
    "update_plan": [message("update_plan", {"update": UPDATE})],
    "update_plan_grows": [message("update_plan", {"update": GROWS})],
    "update_plan_slots": [
        message(
            "update_plan",
            {"update": dict(UPDATE, plan=SLOTS, slots=data(10, 23), positions=data(7, 4))},
        )
    ],
    "drop_plan": [message("drop_plan", {"plan": PLAN})],
    "attend": [message("attend", attend(2, batch=batch([1, 1], [6, 3], [1, 2, 5])))],
    "attend_context": [
        message("attend", attend(3, layer=1, batch=batch([2, 1], [6, 3], [1, 2, 5], group=1, n_contexts=1), lse=tensor(3072, 3, 2), stats=tensor(3584, 3, 2, 2)))
    ],
    "attend_fused": [
        message("attend", attend(2, keys=False, batch=batch([1, 1], [6, 3], [1, 2, 5]), q=tensor(0, 2, HEADS * DIM + 2 * DIM)))
    ],
    "attend_reads": [
        message("attend", attend(2, keys=False, batch=batch([1, 1], [6, 3], [1, 2, 5], mask="full"), out=tensor(2048, 2, HEADS, DIM, dtype="bf16")))
    ],
    "attend_refs": [
        message("attend", attend(2, batch={"q_lens": ref(2, 4), "kv_lens": ref(2, 12), "tables": [{"width": 2, "block_ids": ref(4, 8)}]}))
    ],
    "attend_slots": [
        message("attend", attend(2, batch=batch([1, 1], [6, 3], [1, 2, 5], slots=data(9, -1), positions=data(40, 2))))
    ],
    "attend_plan": [message("attend", attend(2, layer=1, plan=PLAN))],
    "attend_strides": [
        message("attend", attend(2, batch=batch([1, 1], [6, 3], [1, 2, 5]), q=tensor(0, 2, HEADS, DIM, strides=[128, 32, 4])))
    ],
    "step": [message("step", step(2))],
    "step_update": [message("step", step(2, update=GROWS))],
    "step_ring": [message("step", step(2, q=layers(0, 2, HEADS, DIM, stride=128, ring=2), first_layer=1, n_layers=2))],
    "merge": [message("merge", {"partials": [PARTIAL, PARTIAL_STATS], "out": tensor(1024, 2, 2, 4), "lse": tensor(2048, 2, 2), "stats": tensor(2304, 2, 2, 2)})],
    "several": [
        message("step", step(2, update=UPDATE), id=1),
        message("update_plan", {"update": dict(UPDATE, version=2, kv_lens=data(8, 4))}, id=2, after=1),
        message("attend", attend(2, plan=PLAN), id=3, after=2),
        message("step", step(2, update=UPDATE), id=1),
    ],
    "while_it_runs": [
        message("attend", attend(2, plan=PLAN), id=5),
        message("free_buffer", {"buffer": BUFFER}, id=6),
        message("close_model", {"model": MODEL}, id=7),
        message("goodbye", id=8),
    ],
    "three_versions": [
        message("step", step(2)),
        message("step", step(2, update=UPDATE)),
        message("update_plan", {"update": dict(UPDATE, version=2)}),
        message("drop_plan", {"plan": PLAN}, after=9),
    ],
    "after_nothing": [message("attend", attend(2, plan=PLAN), id=5, after=77)],
}


def requests():
    for name, list_ in REQUESTS.items():
        parts = [r.SerializeToString() for r in list_]
        write("request", name, b"".join(struct.pack("<H", len(p)) + p for p in parts))
        for i, part in enumerate(parts):
            write("proto", f"{name}{i or ''}", part)


# ---- The buffer socket and the data socket ----


def packets():
    def packet(**fields):
        return wire.FdRequest(**fields).SerializeToString()

    lease, buffer = packet(session=SESSION), packet(session=SESSION, buffer=BUFFER)
    lists = {
        "lease": [lease],
        "buffer": [buffer],
        "no_buffer": [packet(session=SESSION, buffer=99)],
        "no_session": [packet(session=99, buffer=BUFFER)],
        "empty": [b""],
        "long": [lease * 114],
        "two": [lease, packet(session=SESSION, buffer=INTS)],
        "twice": [buffer, buffer],
        "other_session": [buffer, packet(session=5, buffer=BUFFER), lease],
        "half": [lease[:5], lease],
    }
    for name, parts in lists.items():
        write("packet", name, b"".join(struct.pack("<H", len(p)) + p for p in parts))


def frames():
    hello = bytes.fromhex("0053500000300000")

    def frame(payload, hops=b"\x80\0\0\1"):
        return b"\x01" + struct.pack(">Q", len(hops) + len(payload)) + hops + payload

    bytes_of = {name: [r.SerializeToString() for r in list_] for name, list_ in REQUESTS.items()}
    ping = bytes_of["ping"][0]
    whole = {
        "hello": hello,
        "wrong_hello": b"\0SP\0\0\x31\0\0" + frame(ping),
        "ping": hello + frame(ping),
        "hops": hello + frame(ping, b"\0\0\0\5\0\0\0\6\x80\0\0\7"),
        "endless_hops": hello + frame(ping, b"\0\0\0\5" * 8),
        "no_payload": hello + frame(b""),
        "nothing": hello + frame(b"", b""),
        "huge": hello + b"\x01" + b"\xff" * 8,
        "promise": hello + b"\x01" + struct.pack(">Q", 4000) + b"\x80\0\0\1",
        "many": hello + frame(ping) * 24,
        "hellos": hello + frame(bytes_of["hello"][0]) * 9,
        "several": hello + b"".join(frame(p) for p in bytes_of["several"]),
        "while_it_runs": hello + b"".join(frame(p) for p in bytes_of["while_it_runs"]),
        "attend_step": hello + frame(bytes_of["attend"][0]) + frame(bytes_of["step"][0]),
        "waits": hello + frame(bytes_of["after_nothing"][0]) * 5,
    }
    for name, stream in whole.items():
        write("frames", name, b"\x0f" + stream)
    for name in ("ping", "hops", "several"):
        write("frames", name + "_in_pieces", b"\x01" + whole[name])
    for name in ("hellos", "many"):
        write("frames", name + "_unread", b"\x1f" + whole[name])


# ---- Text ----


def control():
    def call(method, id=1, **params):
        return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()

    with open(os.path.join(ROOT, "daemon", "methods.def"), encoding="utf-8") as table:
        methods = re.findall(r'^METHOD\(\w+, "([\w.]+)"', table.read(), re.M)
    for method in methods:
        write("control", method, call(method) + b"\n")
    shape = dict(n_heads=4, n_kv_heads=2, head_dim=64, dtype="f32")
    lines = {
        "explain": call("kernels.explain", q_lens=[5, 1], kv_lens=[5, 9], **shape),
        "explain_equal": call("kernels.explain", n_seqs=3, q_len=2, kv_len=70, window=5, n_splits=2, **shape),
        "explain_model": call("kernels.explain", model="1", layer=1, kv_len=12),
        "key": call("config.get", key="log.level"),
        "level": call("log.level", level="warn"),
        "batch": b"[" + call("server.ping", 1) + b"," + call("sessions.list", "two") + b"]",
        "notification": b'{"jsonrpc":"2.0","method":"server.ping"}',
        "no_such": call("no.such"),
        "no_such_parameter": call("server.ping", x=1),
        "escapes": b'{"jsonrpc":"2.0","id":"\\u00e9\\n\\ud83d\\ude00","method":"server.ping"}',
        "twice": b'{"jsonrpc":"2.0","id":1,"id":2,"method":"server.ping"}',
        "half": b'{"jsonrpc":"2.0","id":',
        "deep": b"[" * 300,
        "large_id": b'{"jsonrpc":"2.0","id":9007199254740993,"method":"server.ping"}',
        "two": call("server.ping") + b"\n\n" + call("plans.list"),
    }
    for name, line in lines.items():
        write("control", name, line + b"\n")


def config():
    texts = {
        "empty": "{}",
        "comments": '// of a line\n{ /* of\nmany */ "log": {"level": "warn", // last\n "slow": "2s"} }',
        "values": '{"data": {"max_message": "8MiB", "contexts": 16, "send_timeout": 100}, "http": {"expose": true}}',
        "unknown": '{"data": {"max_mesage": 1}}',
        "twice": '{"log": {"slow": 1, "slow": 2}}',
        "range": '{"device": {"threads": 99999999999999999999}}',
        "float": '{"device": {"threads": 1.5}}',
        "escape": '{"runtime": {"dir": "/tmp/\\u00e9\\"x"}}',
        "zero": '{"runtime": {"dir": "a\\u0000b"}}',
        "open": '{"log": {"level": "warn"',
        "bom": "\ufeff{}",
        "model": '{"models": [{"name": "m", "layers": [{"n_heads": 8, "n_kv_heads": 2, "head_dim": 64, "count": 32}],'
        ' "groups": [{"block_size": 16, "kv_dtype": "bf16", "n_blocks": 1024}]}]}',
        "model_rich": '{"models": [{"name": "m", "layers": [{"kind": "mla", "n_heads": 16, "head_dim": 576, "head_dim_v": 512},'
        ' {"kind": "gqa", "group": 1, "n_heads": 4, "head_dim": 64, "window": 128, "rope": {"pairing": "neox", "theta": 1e6}}],'
        ' "groups": [{"block_size": 64, "kv_dtype": "bf16", "bytes": 1048576},'
        ' {"name": "w", "block_size": 16, "kv_dtype": "f32", "n_blocks": 4, "layout": "nhd", "max_kv_len": 99}]}]}',
        "no_group": '{"models": [{"name": "m", "layers": [{"n_heads": 8, "head_dim": 64, "group": 7}], "groups": []}]}',
        "list": "[1, 2]",
        "deep": '{"a": ' * 200,
    }
    for name, text in texts.items():
        write("config", name, text.encode())


def cases():
    """Parts of the format; whole files are those of tests/cases."""
    with open(os.path.join(ROOT, "tests", "cases", "append_reaches_its_rows_only.json"), encoding="utf-8") as file:
        whole = file.read()
    texts = {
        "empty": "{}",
        "list": "[]",
        "whole": whole,
        "half": whole[: len(whole) // 2],
        "no_such": whole.replace('"steps"', '"stepps"'),
        "numbers": re.sub(r"(?<=[: ])\d+", "-9223372036854775808", whole),
        "large": re.sub(r"(?<=[: ])\d+", "18446744073709551615", whole),
    }
    for name, text in texts.items():
        write("case", name, text.encode())


if __name__ == "__main__":
    cases()
    requests()
    packets()
    frames()
    control()
    config()
