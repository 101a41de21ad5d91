"""test_operations.py: metrics and probes, reload, the log under a flood, the service manager."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import numpy as np

from support import BUILD, IS_SANITIZED, Daemon, attnd

import prometheus
import tap

from raw import Session

SPEC = {
    "layers": [{"n_heads": 2, "head_dim": 16}],
    "groups": [{"block_size": 16, "kv_dtype": "f32", "n_blocks": 4}],
}


class Work:
    """A client with a model, and one call that attends 3 tokens."""

    def __init__(self, daemon):
        self.client = attnd.Client(daemon.dir, name="work")
        self.model = self.client.open_model(SPEC)
        self.buffer = self.client.create_buffer(4096)
        self.rows = [self.buffer.view("f32", (3, 2, 16), offset=384 * i) for i in range(4)]

    def attend(self, **more):
        q, k, v, out = self.rows
        call = dict(q=q, k=k, v=v, out=out, n_contexts=1, q_lens=[3], kv_lens=[3], tables=[[0]])
        return self.client.attend(self.model, 0, **{**call, **more})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()


class Config:
    """A config file that changes."""

    def __init__(self, **sections):
        self._home = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._home.name, "attnd.json")
        self.write(**sections)

    def write(self, **sections):
        self.write_text(json.dumps(sections))

    def write_text(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._home.cleanup()


def port_of(daemon):
    return int(re.search(r"^info  http  address=\S+ port=(\d+)$", daemon.log(), re.M).group(1))


def get(port, path):
    """(status, text) of one page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as wrong:
        return wrong.code, wrong.read().decode()


def value(daemon, key):
    return daemon.rpc("config.get", key=key)["config"][key]


# ---- Metrics ---------------------------------------------------------------------------------------


@tap.test
def metrics_keep_the_rules_of_promtool_and_equal_the_stats():
    with Daemon("--http.address=127.0.0.1:0") as daemon, Work(daemon) as work:
        for _ in range(20):
            work.attend()
        for _ in range(3):
            wrong = tap.raises(attnd.Error, work.attend, tables=[[9]])
            tap.equal(wrong.reason, "BAD_BLOCK")
        port = port_of(daemon)
        stats = daemon.rpc("stats.get")
        status, text = get(port, "/metrics")
        tap.equal(status, 200)
        metrics = prometheus.parse(text)
        for op in stats["ops"]:
            for code, n in op["codes"].items():
                tap.equal(metrics["attnd_requests_total"].value(op=op["op"], code=code), n)
            total = metrics["attnd_request_duration_seconds"]
            tap.equal(total.value("_count", op=op["op"]), op["total_us"]["count"])
            assert abs(total.value("_sum", op=op["op"]) * 1e6 - op["total_us"]["sum"]) < 1
        tap.equal(metrics["attnd_requests_total"].value(op="attend", code="OK"), 20)
        tap.equal(metrics["attnd_requests_total"].value(op="attend", code="INVALID_ARGUMENT"), 3)
        for kernel in stats["kernels"]:
            name = {"kernel": kernel["kernel"]}
            tap.equal(metrics["attnd_kernel_launches_total"].value(**name), kernel["launches"])
            tap.equal(metrics["attnd_kernel_floor_bytes_total"].value(**name), int(kernel["bytes"]))
            duration = metrics["attnd_kernel_duration_seconds"]
            tap.equal(duration.value("_count", **name), kernel["device_us"]["count"])
        tap.equal(metrics["attnd_batch_tokens"].value("_sum"), 60)
        tap.equal(metrics["attnd_batch_rows"].value("_count"), 20)
        for name in ("sessions", "models", "buffers", "buffer_bytes", "pool_bytes"):
            tap.equal(metrics[f"attnd_{name}"].value(), int(stats["gauges"][name]))
        for name in ("query_tokens", "appended_tokens", "launches", "sessions_opened"):
            tap.equal(metrics[f"attnd_{name}_total"].value(), int(stats["counters"][name]))
        tap.equal(metrics["attnd_refused_total"].value(), 3)
        tap.equal(metrics["attnd_errors_total"].value(), 0)
        assert metrics["attnd_client_disconnects_total"].value() >= 0
        assert metrics["process_resident_memory_bytes"].value() > 1 << 20
        assert abs(metrics["process_start_time_seconds"].value() - time.time()) < 300
        assert metrics["process_open_fds"].value() > 5


@tap.test
def pools_and_what_waits_have_their_metrics():
    with Daemon("--http.address=127.0.0.1:0") as daemon, Work(daemon) as work:
        port = port_of(daemon)
        pools = daemon.rpc("pools.list")["pools"]
        names = {"model": daemon.rpc("models.list")["models"][0]["name"], "pool": pools[0]["name"]}

        def look():
            return prometheus.parse(get(port, "/metrics")[1])

        metrics = look()
        tap.equal(metrics["attnd_engine_up"].value(), 1)
        tap.equal(metrics["attnd_kv_pools"].value(), 1)
        blocks = metrics["attnd_kv_blocks"]
        tap.equal([blocks.value(state=s, **names) for s in ("client", "free", "used")], [4, 0, 0])
        tap.equal(metrics["attnd_kv_pool_bytes"].value(**names), int(pools[0]["bytes"]))
        tap.equal(metrics["attnd_requests_waiting"].value(), 0)
        with Session(daemon.dir) as session:
            for number in (2, 3, 2):  # the last one is a repeat that waits for the first
                session.send("create_buffer", bytes=1, id=number, after=1)
            tap.until(lambda: daemon.gauge("parked") == 3, "they wait")
            metrics = look()
            tap.equal(metrics["attnd_requests_waiting"].value(), 3)
            tap.equal(metrics["attnd_requests_running"].value(), 0)
            session.send("create_buffer", bytes=1, id=1)
            for _ in range(4):
                session.raw.receive()
            tap.equal((daemon.gauge("parked"), daemon.gauge("queued")), (0, 0))
            tap.equal(look()["attnd_requests_waiting"].value(), 0)
        work.model.close()
        tap.equal(look()["attnd_kv_pools"].value(), 0)


@tap.test
def every_counter_and_gauge_of_the_stats_has_its_metric():
    renamed = {
        "requests": "requests",
        "in_flight": "requests_running",
        "queued": "requests_waiting",
        "parked": "requests_waiting",
        "device_errors": "errors",
        "disconnects": "client_disconnects",
    }
    with Daemon("--http.address=127.0.0.1:0") as daemon:
        metrics = prometheus.parse(get(port_of(daemon), "/metrics")[1])
        stats = daemon.rpc("stats.get")
        for name in stats["counters"]:
            tap.equal(metrics[f"attnd_{renamed.get(name, name)}_total"].type, "counter")
        for name in stats["gauges"]:
            tap.equal(metrics[f"attnd_{renamed.get(name, name)}"].type, "gauge")


@tap.test
def metrics_keep_the_rules_while_clients_work():
    with Daemon("--http.address=127.0.0.1:0") as daemon, Work(daemon) as work:
        port, done = port_of(daemon), threading.Event()

        def attend():
            while not done.is_set():
                work.attend()

        thread = threading.Thread(target=attend)
        thread.start()
        try:
            before = -1
            for _ in range(30):
                metrics = prometheus.parse(get(port, "/metrics")[1])
                now = metrics["attnd_query_tokens_total"].value()
                assert now >= before
                before = now
        finally:
            done.set()
            thread.join()
        assert before > 0


@tap.test
def probes_tell_healthy_and_draining_apart():
    with Daemon("--http.address=127.0.0.1:0", "--drain.grace=20s") as daemon:
        port = port_of(daemon)
        tap.equal(get(port, "/healthz"), (200, '{"healthy":true}\n'))
        tap.equal(get(port, "/readyz"), (200, '{"ready":true}\n'))
        with Work(daemon) as work:
            # A large call keeps the daemon draining while it is asked.
            n = 1024 if IS_SANITIZED else 4096
            buffer = work.client.create_buffer(4 * n * 4096)
            rows = [buffer.view("f32", (n, 8, 128), offset=n * 4096 * i) for i in range(4)]
            model = work.client.open_model(
                {
                    "layers": [{"n_heads": 8, "head_dim": 128}],
                    "groups": [{"block_size": 16, "kv_dtype": "f32", "n_blocks": n // 16}],
                }
            )
            q, k, v, out = rows
            pending = work.client.submit(
                model, 0, q=q, k=k, v=v, out=out, n_contexts=1, q_lens=[n], kv_lens=[n],
                tables=[list(range(n // 16))],
            )
            tap.until(lambda: daemon.rpc("stats.get")["gauges"]["in_flight"], "it runs")
            daemon.process.send_signal(signal.SIGTERM)
            tap.until(
                lambda: get(port, "/readyz") == (503, '{"ready":false,"why":"draining"}\n'),
                "draining is told",
            )
            tap.equal(get(port, "/healthz")[0], 200)
            pending.wait()
        tap.equal(daemon.process.wait(20), 0)


@tap.test
def http_is_off_unless_asked_for_and_stays_at_home():
    with Daemon() as daemon:
        assert "http  address" not in daemon.log()
    for flags, code, text in (
        (["--http.address=0.0.0.0:0"], 78, "http.address = 0.0.0.0:0: not a loopback address; "),
        (["--http.address=9464"], 78, "http.address = 9464: a number and a port, 127.0.0.1:9464 "),
        (["--http.expose=perhaps"], 64, "--http.expose = perhaps: true | false"),
    ):
        done = subprocess.run(
            [os.path.join(BUILD, "bin", "attnd"), *flags], stderr=subprocess.PIPE, timeout=60
        )
        tap.equal(done.returncode, code)
        assert done.stderr.decode().startswith(f"attnd: {text}"), done.stderr


@tap.test
def a_port_in_use_ends_the_start_with_its_reason():
    with socket.create_server(("127.0.0.1", 0)) as taken, tempfile.TemporaryDirectory() as home:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [os.path.join(BUILD, "bin", "attnd"), f"--runtime.dir={home}/run",
             f"--http.address={address}"],
            stderr=subprocess.PIPE,
            timeout=60,
        )
        tap.equal(done.returncode, 69)
        assert f"http.address = {address}: Address already in use" in done.stderr.decode()


# ---- Reload ----------------------------------------------------------------------------------------


@tap.test
def a_reload_applies_live_keys_and_names_the_others():
    with Config(log={"slow": "9s"}) as config, Daemon("--config", config.path) as daemon:
        config.write(log={"slow": "8s"}, session={"linger": "5s"}, data={"contexts": 100})
        tap.equal(
            daemon.rpc("config.reload"),
            {
                "applied": [
                    {"key": "session.linger", "was": "2s", "now": "5s"},
                    {"key": "log.slow", "was": "9s", "now": "8s"},
                ],
                "needs_restart": [{"key": "data.contexts", "was": "72", "now": "100"}],
            },
        )
        tap.equal(value(daemon, "log.slow"), "8s")
        tap.equal(value(daemon, "session.linger"), "5s")
        tap.equal(value(daemon, "data.contexts"), "72")


@tap.test
def a_flag_still_comes_before_the_file():
    with Config() as config, Daemon("--config", config.path, "--log.slow=7s") as daemon:
        config.write(log={"slow": "1s", "rate": 9})
        tap.equal(
            daemon.rpc("config.reload"),
            {"applied": [{"key": "log.rate", "was": "50", "now": "9"}], "needs_restart": []},
        )
        tap.equal(value(daemon, "log.slow"), "7s")


@tap.test
def a_broken_file_changes_nothing_and_is_told():
    with Config() as config, Daemon("--config", config.path) as daemon:
        for text, why in (
            ('{"log": {"slow": "5ms", "lever": "warn"}}', ":1:25: log.lever: no such key, nearest"),
            ('{"log": {"slow": "5ms"', ":1:23: the file ends: JSON that is closed"),
            ('{"log": {"slow": "5ms"}, "http": {"address": "0.0.0.0:1"}}', "not a loopback"),
        ):
            config.write_text(text)
            wrong = tap.raises(AssertionError, daemon.rpc, "config.reload")
            assert why in str(wrong) and "BAD_CONFIG" in str(wrong), wrong
            tap.equal(value(daemon, "log.slow"), "1s")
        os.remove(config.path)
        wrong = tap.raises(AssertionError, daemon.rpc, "config.reload")
        assert "No such file or directory" in str(wrong), wrong
        assert daemon.rpc("server.ready")["ready"]


@tap.test
def a_hangup_reloads_through_the_keeper_too():
    for keeper in (False, True):
        with Config() as config, Daemon("--config", config.path, keeper=keeper) as daemon:
            config.write(log={"level": "debug", "slow": "6s"})
            daemon.process.send_signal(signal.SIGHUP)
            tap.until(lambda: value(daemon, "log.slow") == "6s", "the new value is in force")
            tap.equal(value(daemon, "log.level"), "debug")
            assert 'info  config changed  key=log.slow was="1s" now="6s"\n' in daemon.log()
            config.write_text("nonsense")
            daemon.process.send_signal(signal.SIGHUP)
            tap.until(lambda: "warn  config not reloaded  why=" in daemon.log(), "it is told")
            tap.equal(value(daemon, "log.slow"), "6s")
            tap.equal(daemon.stop(), 0)


@tap.test
def reloads_disturb_no_work_and_reach_the_engine():
    with Config() as config, Daemon("--config", config.path) as daemon, Work(daemon) as work:
        done, failed, n = threading.Event(), [], [0]
        q, k, v, out = work.rows
        for tensor in (q, k, v):
            tensor.set(np.ones((3, 2, 16), np.float32))

        def attend():
            try:
                while not done.is_set():
                    work.attend()
                    assert np.array_equal(out.float32(), np.ones((3, 2, 16), np.float32))
                    n[0] += 1
            except Exception as wrong:
                failed.append(wrong)

        thread = threading.Thread(target=attend)
        thread.start()
        try:
            for i in range(200):
                config.write(log={"slow": 2000 + i}, session={"linger": 3000 + i})
                answer = daemon.rpc("config.reload")
                tap.equal(len(answer["applied"]), 2)
            config.write(log={"level": "debug"})
            daemon.rpc("config.reload")
            tap.until(lambda: "debug attend ok  request=" in daemon.log(), "requests at debug")
        finally:
            done.set()
            thread.join()
        tap.equal(failed, [])
        assert n[0] > 0


@tap.test
def a_session_lingers_as_long_as_the_reloaded_config_says():
    with Config(session={"linger": "1h"}) as config, Daemon("--config", config.path) as daemon:
        config.write(session={"linger": "50ms"})
        daemon.rpc("config.reload")
        die(daemon)
        tap.equal(daemon.rpc("stats.get")["counters"]["sessions_opened"], 1)
        tap.until(lambda: not daemon.rpc("sessions.list")["sessions"], "no session is left", 5)


def die(daemon):
    """A client that ends without a goodbye."""
    code = (
        "import attnd, os, sys\n"
        "c = attnd.Client(sys.argv[1], name='dies')\n"
        "c.create_buffer(4096)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    env = dict(os.environ, PYTHONPATH=os.path.join(BUILD, "python"))
    done = subprocess.run([sys.executable, "-c", code, daemon.dir], env=env, timeout=60)
    tap.equal(done.returncode, -9)


# ---- The log ---------------------------------------------------------------------------------------


@tap.test
def a_flood_of_refusals_is_counted_and_not_written():
    with Daemon("--log.rate=10") as daemon, Work(daemon) as work:
        begin, n = time.monotonic(), 1000
        for _ in range(n):
            tap.raises(attnd.Error, work.attend, tables=[[9]])
        seconds = time.monotonic() - begin
        tap.until(lambda: counted(daemon) == n, f"{n} refusals are written or counted")
        written = len(re.findall(r"^info  refused  op=attend ", daemon.log(), re.M))
        assert 10 <= written <= 10 * (seconds + 2), written
        tap.equal(daemon.rpc("stats.get")["counters"]["refused"], n)


def counted(daemon):
    log = daemon.log()
    left_out = re.findall(r'^warn  lines left out  n=(\d+) kind="refused" in_ms=\d+$', log, re.M)
    return len(re.findall(r"^info  refused  ", log, re.M)) + sum(map(int, left_out))


@tap.test
def a_slow_request_is_logged_with_its_stages():
    with Daemon("--log.slow=1ms", "--device.threads=1") as daemon:
        with attnd.Client(daemon.dir) as client:
            n = 512
            model = client.open_model(
                {
                    "layers": [{"n_heads": 8, "head_dim": 128}],
                    "groups": [{"block_size": 16, "kv_dtype": "f32", "n_blocks": n // 16}],
                }
            )
            buffer = client.create_buffer(4 * n * 4096)
            q, k, v, out = (
                buffer.view("f32", (n, 8, 128), offset=n * 4096 * i) for i in range(4)
            )
            client.attend(model, 0, q=q, k=k, v=v, out=out, n_contexts=1, q_lens=[n], kv_lens=[n],
                          tables=[list(range(n // 16))])
        found = tap.until(
            lambda: re.search(
                r"^info  attend ok  request=\d+ session=1 sequences=1 decode_us=(\d+) queue_us=(\d+) "
                r"validate_us=(\d+) plan_us=(\d+) launch_us=(\d+) total_us=(\d+)$",
                daemon.log(),
                re.M,
            ),
            "the slow request stands in the log",
        )
        *stages, total = map(int, found.groups())
        assert total >= 1000 and stages[-1] > 0, found.group()
        assert sum(stages) <= total + 6, found.group()


@tap.test
def a_fast_request_is_not_logged():
    with Daemon("--log.slow=1h") as daemon:
        with Work(daemon) as work:
            work.attend()
        tap.equal(daemon.stop(), 0)
        assert " ok  request=" not in daemon.log(), daemon.log()


# ---- The service manager ---------------------------------------------------------------------------


class Manager:
    """What systemd listens on; abstract: a name without a file."""

    def __init__(self, abstract):
        self._home = tempfile.TemporaryDirectory()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.name = os.path.join(self._home.name, "notify")
        self.socket.bind("\0" + self.name if abstract else self.name)
        os.environ["NOTIFY_SOCKET"] = ("@" if abstract else "") + self.name
        self.socket.settimeout(20)

    def hear(self):
        return self.socket.recv(4096).decode().split("\n")

    def hear_reload(self, ask):
        """What one reload says, from its beginning, which is after ask() is called, to its end."""
        before = time.monotonic_ns() // 1000
        ask()
        begins, at = self.hear()
        tap.equal(begins, "RELOADING=1")
        assert re.fullmatch(r"MONOTONIC_USEC=\d+", at), at
        assert before <= int(at.split("=")[1]) <= time.monotonic_ns() // 1000
        tap.equal(self.hear(), ["READY=1"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        del os.environ["NOTIFY_SOCKET"]
        self.socket.close()
        self._home.cleanup()


@tap.test
def the_keeper_tells_the_service_manager_how_things_stand():
    for abstract in (False, True):
        with Manager(abstract) as manager, Daemon(keeper=True) as daemon:
            tap.equal(manager.hear(), ["READY=1", "STATUS=serves"])
            manager.hear_reload(lambda: daemon.process.send_signal(signal.SIGHUP))
            manager.hear_reload(lambda: daemon.rpc("config.reload"))
            os.kill(daemon.rpc("server.info")["pid"], signal.SIGKILL)
            tap.equal(manager.hear(), ["STATUS=the engine died and is started again"])
            tap.equal(manager.hear(), ["READY=1", "STATUS=serves"])
            tap.equal(daemon.stop(), 0)
            tap.equal(manager.hear(), ["STOPPING=1", "STATUS=drains"])


@tap.test
def an_engine_alone_tells_it_itself():
    with Manager(False) as manager, Daemon() as daemon:
        tap.equal(manager.hear(), ["READY=1", "STATUS=serves"])
        manager.hear_reload(lambda: daemon.process.send_signal(signal.SIGHUP))
        manager.hear_reload(lambda: daemon.rpc("config.reload"))
        tap.equal(daemon.stop(), 0)
        tap.equal(manager.hear(), ["STOPPING=1"])


@tap.test
def the_service_manager_hears_of_a_reload_before_it_and_after_it():
    for keeper in (False, True):
        with (
            Manager(False) as manager,
            Config() as config,
            Daemon("--config", config.path, keeper=keeper) as daemon,
        ):
            tap.equal(manager.hear(), ["READY=1", "STATUS=serves"])
            # Whoever opens the file waits for what is written into it.
            os.remove(config.path)
            os.mkfifo(config.path)
            daemon.process.send_signal(signal.SIGHUP)
            tap.equal(manager.hear()[0], "RELOADING=1")
            manager.socket.settimeout(0.3)
            tap.raises(socket.timeout, manager.hear)
            manager.socket.settimeout(20)
            config.write_text('{"log": {"slow": "6s"}}')
            tap.equal(manager.hear(), ["READY=1"])
            tap.equal(value(daemon, "log.slow"), "6s")
            # One that is refused ends too.
            os.remove(config.path)
            config.write_text("nonsense")
            manager.hear_reload(lambda: daemon.process.send_signal(signal.SIGHUP))
            tap.equal(daemon.stop(), 0)


@tap.test
def a_service_manager_that_is_gone_stops_nothing():
    os.environ["NOTIFY_SOCKET"] = "/nowhere/notify"
    try:
        with Daemon(keeper=True) as daemon:
            tap.equal(daemon.stop(), 0)
    finally:
        del os.environ["NOTIFY_SOCKET"]


if __name__ == "__main__":
    tap.main()
