"""test_together.py: eight clients at once do all that there is to do, and the bits of none change.

Its worth is what the sanitizers see meanwhile: make asan, make tsan.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

from support import Daemon

import tap

CROWD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "crowd.py")
N_CLIENTS = 8
SECONDS = 4


def http_port(daemon):
    return re.search(r"^info  http  address=\S+ port=(\d+)$", daemon.log(), re.M).group(1)


def start_client(daemon, seed):
    command = [sys.executable, CROWD, daemon.dir, str(seed), str(SECONDS), http_port(daemon)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(client):
    client.kill()
    client.wait()
    client.stdout.close()
    client.stderr.close()


def eight_at_once(keeper):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump({"log": {"slow": "1s"}}, config)
        config.flush()
        flags = ["--session.linger=100ms", "--http.address=127.0.0.1:0", "--device.threads=4"]
        with Daemon(f"--config={config.name}", *flags, keeper=keeper) as daemon:
            clients = [start_client(daemon, seed) for seed in range(N_CLIENTS)]
            try:
                for client in clients:
                    up = client.stdout.readline()
                    assert up, client.stderr.read().decode()
                for level in ("debug", "info", "error", "warn"):
                    daemon.rpc("log.level", level=level)
                    daemon.rpc("config.reload")
                    time.sleep(SECONDS / 10)
                clients[0].kill()
                tap.equal(clients.pop(0).wait(), -9)
                for seed, client in enumerate(clients, 1):
                    out, said = client.communicate(timeout=120)
                    tap.equal((seed, said.decode(), client.returncode), (seed, "", 0))
                    assert int(out), out
            finally:
                for client in clients:
                    end(client)
            tap.until(lambda: daemon.gauge("sessions") == 0, "every session has ended")
            for name in ("models", "plans", "buffers", "buffer_bytes", "pool_bytes", "in_flight"):
                tap.equal((name, daemon.gauge(name)), (name, 0))
            tap.equal(daemon.counter("device_errors"), 0)
            tap.equal(daemon.stop(), 0)


@tap.test
def eight_clients_at_once_keep_their_bits_though_one_is_killed():
    eight_at_once(keeper=False)


@tap.test
def so_they_do_beside_a_keeper():
    eight_at_once(keeper=True)


tap.main()
