"""crowd.py: a client that does a bit of everything over and over: crowd.py DIR SEED SECONDS PORT.

Every round: a model, a buffer, a prompt by inline batches, decode steps by a plan whose
updates are in flight together, refusals, looks at the control socket and at /metrics, and most of it
given back, the rest left to the session's end. A round's outputs must be the bytes of the first one's.
Says "up" after its first round; prints its rounds at the end.
"""

import json
import os
import socket
import sys
import time
import urllib.request

from support import attnd

import numpy as np
import tap

N_HEADS, N_KV_HEADS, DIM, T = 4, 2, 16, 8
N_LAYERS, N_PROMPT, N_STEPS, N_BLOCKS = 3, 21, 9, 6
N_TOGETHER = 4  # requests in flight of one client; eight clients stay below what a daemon takes
SHAPES = {"q": N_HEADS, "k": N_KV_HEADS, "v": N_KV_HEADS, "out": N_HEADS}
POLLS = (
    *("server.ready", "server.info", "stats.get", "kernels.list", "config.get"),
    *("sessions.list", "models.list", "pools.list", "buffers.list", "plans.list"),
)


def views(buffer, n_tokens):
    """{name: Tensor [layers][tokens][heads][dim]}, one behind the other in the buffer."""
    tensors, at = {}, 0
    for name, heads in SHAPES.items():
        shape = (N_LAYERS, n_tokens, heads, DIM)
        tensors[name] = buffer.view("f32", shape, offset=at)
        at += int(np.prod(shape)) * 4
    return tensors


def poll(directory):
    """One look at each list of the control socket, in one connection."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(os.path.join(directory, "control"))
        with sock.makefile("rwb") as lines:
            for i, method in enumerate(POLLS):
                ask = {"jsonrpc": "2.0", "id": i, "method": method}
                lines.write(json.dumps(ask).encode() + b"\n")
                lines.flush()
                answer = json.loads(lines.readline())
                assert answer["id"] == i and "result" in answer, answer


def one_round(client, directory, seed, port):
    rng = np.random.default_rng(seed)
    layer = {"n_heads": N_HEADS, "n_kv_heads": N_KV_HEADS, "head_dim": DIM, "count": N_LAYERS}
    model = client.open_model(
        {"layers": [layer], "groups": [{"kv_dtype": "f32", "block_size": T, "n_blocks": N_BLOCKS}]}
    )
    n_bytes = N_LAYERS * sum(SHAPES.values()) * DIM * 4
    table = rng.permutation(N_BLOCKS)[: -(-(N_PROMPT + N_STEPS) // T)].tolist()
    used = -(-N_PROMPT // T)
    got = []

    prompt = client.create_buffer(n_bytes * N_PROMPT)
    tensors = views(prompt, N_PROMPT)
    for name in ("q", "k", "v"):
        tensors[name].set(rng.normal(size=tensors[name].shape))
    for i in range(N_LAYERS):
        call = {name: tensor[i] for name, tensor in tensors.items()}
        client.attend(
            model, i, q_lens=[N_PROMPT], kv_lens=[N_PROMPT], tables=[table[:used]], n_contexts=1,
            **call,
        )
    got.append(tensors["out"].array.tobytes())
    poll(directory)

    buffers = [client.create_buffer(n_bytes) for _ in range(N_STEPS)]
    plan = client.create_plan(model, q_lens=[1], kv_lens=[N_PROMPT + 1], tables=[table[:used]])
    steps = []
    for step, buffer in enumerate(buffers):
        tensors = views(buffer, 1)
        for name in ("q", "k", "v"):
            tensors[name].set(rng.normal(size=tensors[name].shape))
        update = None
        if step:
            kv_len = N_PROMPT + 1 + step
            needed = -(-kv_len // T)
            update = {"kv_lens": [kv_len], "appended": [table[used:needed]]}
            used = needed
        if step >= N_TOGETHER:
            steps[step - N_TOGETHER].wait()
        after = steps[-1] if steps else None
        steps.append(client.submit_step(plan, 0, N_LAYERS, update=update, after=after, **tensors))
    for step in steps[-N_TOGETHER:]:
        step.wait()
    got += [views(buffer, 1)["out"].array.tobytes() for buffer in buffers]

    wrong = tap.raises(attnd.Error, client.step, plan, 1, N_LAYERS, **tensors)
    tap.equal(wrong.code, "INVALID_ARGUMENT")
    plan.drop()
    tap.equal(tap.raises(attnd.Error, plan.drop).reason, "NO_SUCH_HANDLE")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        assert b"attnd_" in page.read()
    for buffer in [prompt, *buffers[::2]]:
        buffer.free()  # the others go with the session
    model.close()
    return got


def main():
    directory, seed, seconds, port = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    first, n_rounds = None, 0
    end = time.monotonic() + seconds
    while first is None or time.monotonic() < end:
        with attnd.Client(directory, name=f"crowd{seed}", timeout=60) as client:
            for _ in range(3):
                got = one_round(client, directory, seed, port)
                if first is None:
                    first = got
                    print("up", flush=True)
                assert got == first, f"round {n_rounds}: other bits"
                n_rounds += 1
    print(n_rounds)


main()
