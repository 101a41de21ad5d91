"""kills.py: clients that die at a random instant of Hello, CreateBuffer and Attend cost nobody
anything.

Victims are processes that do these three in a loop until SIGKILL. Workers are clients that decode
meanwhile; each round's outputs must be the bytes of its first round, when nobody was killed.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

from support import BUILD, attnd

import numpy as np
import tap

N_HEADS, N_KV_HEADS, DIM, T = 4, 2, 32, 16
N_LAYERS, N_STEPS = 2, 6
N_WORKERS = 3

VICTIM = """
import os, sys
sys.path.insert(0, sys.argv[1])
import attnd, numpy
os.write(1, b"up")
while True:
    client = attnd.Client(sys.argv[2], name="victim")
    model = client.open_model({"layers": [{"n_heads": 4, "head_dim": 64}],
                               "groups": [{"kv_dtype": "f32", "block_size": 16, "n_blocks": 8}]})
    for _ in range(3):
        rows = client.create_buffer(4 * 128 * 4 * 64 * 4).view("f32", (4, 128, 4, 64))
        q, k, v, out = (rows[i:i + 1] for i in range(4))
        flat = [attnd.Tensor(t.buffer, "f32", t.array[0]) for t in (q, k, v, out)]
        for _ in range(4):
            client.attend(model, 0, q=flat[0], k=flat[1], v=flat[2], out=flat[3], n_contexts=1,
                          q_lens=[128], kv_lens=[128], tables=[list(range(8))])
    client.close()
"""


class Worker(threading.Thread):
    """A client that prefills and decodes over and over; wrong says what went wrong."""

    def __init__(self, daemon, seed):
        super().__init__()
        self.client = attnd.Client(daemon.dir, name=f"worker{seed}", timeout=60)
        self.stop = threading.Event()
        self.wrong = None
        self.n_rounds = 0
        rng = np.random.default_rng(seed)
        n_blocks = 8
        self.table = rng.permutation(n_blocks).tolist()
        self.model = self.client.open_model(
            {
                "layers": [
                    {
                        "n_heads": N_HEADS,
                        "n_kv_heads": N_KV_HEADS,
                        "head_dim": DIM,
                        "count": N_LAYERS,
                    }
                ],
                "groups": [{"kv_dtype": "f32", "block_size": T, "n_blocks": n_blocks}],
            }
        )
        self.n_prompt = 40 + seed
        n = self.n_prompt + N_STEPS
        sizes = (N_HEADS, N_KV_HEADS, N_KV_HEADS, N_HEADS)
        buffer = self.client.create_buffer(n * sum(sizes) * DIM * 4)
        self.tensors, at = [], 0
        for heads in sizes:
            self.tensors.append(buffer.view("f32", (n, heads, DIM), offset=at))
            at += n * heads * DIM * 4
        for tensor in self.tensors[:3]:
            tensor.set(rng.normal(size=tensor.shape))
        self.first = self.round()

    def round(self):
        """Prefill and steps of every layer; the bytes of all outputs."""
        out, got = self.tensors[3], []
        for layer in range(N_LAYERS):
            out.set(np.nan)
            spans = [(0, self.n_prompt)] + [(self.n_prompt + i, 1) for i in range(N_STEPS)]
            for first, n in spans:
                q, k, v, o = (tensor[first : first + n] for tensor in self.tensors)
                self.client.attend(
                    self.model,
                    layer,
                    q=q,
                    k=k,
                    v=v,
                    out=o,
                    q_lens=[n],
                    kv_lens=[first + n],
                    tables=[self.table],
                    n_contexts=int(n > 1),
                )
            got.append(out.array.tobytes())
        return got

    def run(self):
        try:
            while not self.stop.is_set():
                assert self.round() == self.first, f"round {self.n_rounds}: other bits"
                self.n_rounds += 1
        except Exception as wrong:
            self.wrong = wrong

    def end(self):
        self.stop.set()
        self.join(60)
        self.client.close()
        if self.wrong:
            raise self.wrong
        assert self.n_rounds, "a worker did not work"


def what_is_held(daemon):
    """Everything a client could leak: what the daemon counts and what the system does."""
    gauges = daemon.rpc("stats.get")["gauges"]
    names = ("sessions", "models", "buffers", "buffer_bytes", "pool_bytes")
    held = {name: int(gauges[name]) for name in names}
    fds = descriptors(daemon.engine())
    held["memory files"] = sum("memfd:" in fd for fd in fds)
    held["sockets"] = sum("socket:" in fd for fd in fds)
    held["descriptors"] = len(fds)
    with open(f"/proc/{daemon.engine()}/maps", encoding="ascii") as file:
        held["mappings"] = sum("memfd:" in line for line in file)
    held["threads"] = len(os.listdir(f"/proc/{daemon.engine()}/task"))
    if daemon.engine() != daemon.process.pid:
        held["the keeper's descriptors"] = len(descriptors(daemon.process.pid))
    return held


def descriptors(pid):
    """What a process has open; it may close one while we look."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            pass
    return found


def start_victim(daemon):
    command = [sys.executable, "-c", VICTIM, os.path.join(BUILD, "python"), daemon.dir]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kills(daemon, n, linger_s, seed=1, at_once=4):
    """Kills n clients while workers work; AssertionError when one of them notices or anything is
    left after the linger. Returns how many kills fell into each state of a victim's session."""
    rng = random.Random(seed)
    workers = [Worker(daemon, i) for i in range(N_WORKERS)]
    tap.until(lambda: daemon.gauge("in_flight") == 0, "nothing is in flight")
    before = what_is_held(daemon)
    for worker in workers:
        worker.start()
    stages = {}
    victims = []
    try:
        for _ in range(min(at_once, n)):
            victims.append(start_victim(daemon))
        for i in range(n):
            victim = victims.pop(0)
            if i + at_once < n:
                victims.append(start_victim(daemon))
            tap.equal(victim.stdout.read(2), b"up")
            # Its loop takes some 40 ms; an instant of it, from the first connect on.
            time.sleep(rng.uniform(0, 0.05))
            sessions = daemon.rpc("sessions.list")["sessions"] if i % 4 == 0 else []
            victim.kill()
            victim.wait()
            said = victim.stderr.read().decode()
            assert not said, f"seed {seed}, victim {i}: {said}"
            victim.stdout.close()
            victim.stderr.close()
            for one in sessions:
                if one["client"] == "victim" and one["n_requests"]:
                    stage = ("model", "buffer")[one["n_buffers"] > 0]
                    stages[stage] = stages.get(stage, 0) + 1
    finally:
        for victim in victims:
            victim.kill()
            victim.wait()
            victim.stdout.close()
            victim.stderr.close()
    try:
        wait_until_given_back(daemon, before, linger_s)
    finally:
        for worker in workers:
            worker.end()
    return stages


def wait_until_given_back(daemon, before, linger_s):
    last = {}

    def given_back():
        last.update(what_is_held(daemon))
        # Asking costs a connection of the control socket itself.
        return all(last[name] <= before[name] for name in before)

    try:
        tap.until(given_back, "all is given back", linger_s + 8)
    except AssertionError:
        raise AssertionError(f"left behind: before {before}, now {last}") from None
