"""order.py: requests that name another in `after` run behind it, however they are sent.

A round is a chain: store, load, store, load … in one block, each after the one before, sent in
shuffled order over several connections. A load that ran too early or too late finds another value.
"""

import random

import numpy as np
import tap

from raw import DIM, ROW, Raw, Session, ok

N_LINKS = 14  # requests of a chain, below the limit of requests in flight
N_CONNECTIONS = 4
BLOCK = 3


def chains(daemon, n, seed=1):
    """Runs n chains; AssertionError for the first value that is not the one before it."""
    rng = random.Random(seed)
    raws = [Raw(daemon.dir) for _ in range(N_CONNECTIONS)]
    with Session(daemon.dir, "order") as session:
        session.open_model()
        buffer = ok(session.call("create_buffer", bytes=N_LINKS * 4 * ROW)).buffer
        memory = session.fetch(session.lease(), buffer).view("<f4").reshape(N_LINKS, 4, DIM)
        for chain in range(n):
            one_chain(session, buffer, memory, raws, rng, chain)
    for raw in raws:
        raw.close()


def one_chain(session, buffer, memory, raws, rng, chain):
    requests, before = [], 0
    for link in range(N_LINKS):
        make = session.load if link % 2 else session.store
        request = make(buffer, link * 4 * ROW, BLOCK, after=before)
        before = request.id
        requests.append(request)
    memory[:] = 0
    # Small whole numbers: exact in fp32, different from link to link and from chain to chain.
    values = (chain % 100000) * N_LINKS + np.arange(N_LINKS)
    memory[0::2, 2] = values[0::2, None]
    rng.shuffle(requests)
    sent = [(raw, raw.send(request)) for request in requests for raw in [rng.choice(raws)]]
    for raw, _ in sent:
        ok(raw.receive()[1])
    got, wanted = memory[1::2, 1, 0].tolist(), values[0::2].tolist()
    assert got == wanted, f"chain {chain}: loads saw {got}, stored was {wanted}"
    tap.equal(memory[1::2, 1].min(axis=1).tolist(), wanted)
