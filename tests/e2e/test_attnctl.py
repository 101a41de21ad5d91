"""test_attnctl.py: every command against a real daemon: what it prints, and the exit codes."""

import json
import os
import pty
import re
import socket
import subprocess
import tempfile
import threading
import time

from support import BUILD, ROOT, Daemon, attnd

import tap

OK, REFUSED, USAGE, NO_DAEMON, TIMED_OUT = range(5)


def attnctl(*words, env=None):
    """(exit code, stdout, stderr)."""
    done = subprocess.run(
        [os.path.join(BUILD, "bin", "attnctl"), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=60,
        env=env if env is not None else dict(os.environ),
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def ok(daemon, *words):
    """stdout of a command that must succeed and complain of nothing."""
    code, out, err = attnctl("--dir", daemon.dir, *words)
    tap.equal((code, err), (OK, ""))
    for line in out.splitlines():
        tap.equal(line, line.rstrip())
    return out


def table(text):
    """Heads and rows of a printed table without blanks in its cells."""
    lines = [line.split() for line in text.splitlines()]
    return lines[0], lines[1:]


def commands():
    """Commands that --help lists."""
    code, out, err = attnctl("--help")
    tap.equal((code, err), (OK, ""))
    part = out.split("Commands:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in part.splitlines()]


@tap.test
def help_lists_every_command_and_each_has_help_of_its_own():
    listed = commands()
    for name in (
        "methods ping ready info drain shutdown stats models pools sessions buffers kernels "
        "plans explain config reload log-level top call check capture capture-stop trace-start trace-stop trace-export completion "
        "version"
    ).split():
        assert name in listed, name
    for name in listed:
        code, out, err = attnctl(name, "--help")
        tap.equal((code, err), (OK, ""))
        assert out.startswith(f"Usage: attnctl {name} "), out


@tap.test
def every_command_answers_in_both_forms():
    with Daemon() as daemon:
        extra = {
            "explain": ["--n_heads", "8", "--head_dim", "64", "--kv_len", "100"],
            "call": ["server.ping"],
            "top": ["--interval", "0.01", "--count", "1"],
            "completion": ["bash"],
            "check": [os.path.join(ROOT, "tests", "cases", "b001_poison_short_rows.json")],
        }
        for name in commands():
            if name in ("drain", "shutdown", "capture", "trace-start", "trace-export"):
                continue
            assert ok(daemon, name, *extra.get(name, []))
            if name == "completion":
                continue  # Bash reads it, nobody else.
            for line in ok(daemon, "--json", name, *extra.get(name, [])).splitlines():
                assert isinstance(json.loads(line), dict), line


@tap.test
def lists_show_what_a_client_holds():
    with Daemon() as daemon, attnd.Client(daemon.dir, name="lister") as client:
        buffer = client.create_buffer(4096)
        out = ok(daemon, "sessions")
        heads, body = table(out)
        tap.equal(heads[:2], ["session", "client"])
        tap.equal(body[0][1], "lister")
        tap.equal(len(body), 1)
        (listed,) = [json.loads(line) for line in ok(daemon, "buffers", "--json").splitlines()]
        tap.equal(listed["bytes"], "4096")
        tap.equal(listed["freed"], False)
        tap.equal(ok(daemon, "models"), "no models\n")
        tap.equal(ok(daemon, "models", "--json"), "")
        del buffer


@tap.test
def stats_are_tables_and_reset_sets_them_to_zero():
    with Daemon() as daemon:
        with attnd.Client(daemon.dir) as client:
            client.ping()
        out = ok(daemon, "stats")
        assert re.search(r"^  requests +[1-9]\d*$", out, re.M), out
        assert re.search(r"^  op +count +codes$", out, re.M), out
        assert re.search(r"^  hello +1 +OK=1$", out, re.M), out
        assert re.search(
            r"^  hello +total_us +1 +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+$", out, re.M
        ), out
        stats = json.loads(ok(daemon, "--json", "stats"))
        tap.equal(stats["counters"]["sessions_opened"], 1)
        assert isinstance(stats["counters"]["received_bytes"], str)
        tap.equal(json.loads(ok(daemon, "--json", "stats", "--reset")), {"reset": True})
        tap.equal(json.loads(ok(daemon, "--json", "stats"))["counters"]["sessions_opened"], 0)


@tap.test
def stats_watched_come_as_often_as_asked():
    with Daemon() as daemon, attnd.Client(daemon.dir) as client:
        for words in (["--watch=0.05"], ["--watch", "0.05"]):
            out = ok(daemon, "stats", *words, "--count", "3")
            tap.equal(len(re.findall(r"^counters$", out, re.M)), 3)
            assert "\x1b" not in out, "plain when not a terminal"
        lines = ok(daemon, "--json", "stats", "--watch=0.05", "--count=2").splitlines()
        tap.equal(len(lines), 2)
        first, second = (json.loads(line)["counters"]["requests"] for line in lines)
        assert second >= first >= 1
        begin = time.monotonic()
        ok(daemon, "stats", "--watch", "--count", "2")
        assert time.monotonic() - begin >= 1
        client.ping()


@tap.test
def a_watch_ends_when_the_daemon_does():
    with Daemon() as daemon:
        watch = subprocess.Popen(
            [os.path.join(BUILD, "bin", "attnctl"), "--dir", daemon.dir, "stats", "--watch=0.05"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        tap.equal(watch.stdout.readline(), b"counters\n")
        tap.equal(daemon.stop(), 0)
        tap.equal(watch.wait(20), NO_DAEMON)
        assert b"the daemon hung up" in watch.stderr.read()
        watch.stdout.close()
        watch.stderr.close()


@tap.test
def top_shows_rates_of_what_happens_between_two_looks():
    with Daemon() as daemon, attnd.Client(daemon.dir, name="busy") as client:
        done = threading.Event()
        counts = [0]

        def ping():
            model = client.open_model(
                {
                    "layers": [{"n_heads": 1, "head_dim": 4}],
                    "groups": [{"block_size": 16, "kv_dtype": "f32", "n_blocks": 2}],
                }
            )
            buffer = client.create_buffer(4096)
            q, k, v, out = (buffer.view("f32", (1, 1, 4), offset=64 * i) for i in range(4))
            while not done.is_set():
                client.attend(
                    model, 0, q=q, k=k, v=v, out=out, q_lens=[1], kv_lens=[1], tables=[[0]]
                )
                counts[0] += 1

        thread = threading.Thread(target=ping)
        thread.start()
        try:
            tap.until(lambda: counts[0] > 10, "the client works")
            (line,) = ok(daemon, "--json", "top", "--interval=0.3", "--count=1").splitlines()
            text = ok(daemon, "top", "--interval", "0.1", "--count", "2")
        finally:
            done.set()
            thread.join()
        view = json.loads(line)
        assert 0.3 <= view["interval_s"] < 10, view
        rates = view["rates"]
        (attends,) = [op for op in view["ops"] if op["op"] == "attend"]
        (kernel,) = view["kernels"]
        (session,) = view["sessions"]
        tap.equal(session["client"], "busy")
        # Counters are read one after the other, the work goes on meanwhile.
        for rate in (rates["query_tokens"], attends["per_s"], kernel["per_s"], session["per_s"]):
            assert rate > 0 and abs(rate - rates["requests"]) < 0.5 * rates["requests"], view
        tap.equal(attends["refused_per_s"], 0)
        assert 0 < attends["mean_us"] < 1e6 * view["interval_s"]
        assert 0 < kernel["busy"] <= 8
        tap.equal(view["gauges"]["models"], 1)
        tap.equal(len(re.findall(r"^attnd \S+  cpu \w+  \d+ threads  ready  up \d+ s$", text, re.M)), 2)
        assert re.search(r"^requests/s \d+(\.\d+)?  refused/s 0  query_tokens/s ", text, re.M), text
        assert re.search(r"^op +per_s +refused_per_s +mean_us +p50_us +p99_us$", text, re.M), text
        assert "\x1b" not in text, "plain when not a terminal"


@tap.test
def top_of_an_idle_daemon_says_that_nothing_happens():
    with Daemon() as daemon:
        out = ok(daemon, "top", "--interval=0.05", "--count=1")
        tap.equal(out.count("requests/s 0  "), 1)
        assert out.endswith("\n\nno ops\n\nno kernels\n\nno sessions\n"), out


@tap.test
def top_lives_on_a_terminal():
    master, slave = pty.openpty()
    with Daemon() as daemon:
        code = subprocess.run(
            [os.path.join(BUILD, "bin", "attnctl"), "--dir", daemon.dir, "top", "--interval=0.05",
             "--count=2"],
            stdin=subprocess.DEVNULL, stdout=slave, timeout=60,
        ).returncode
    os.close(slave)
    text = os.read(master, 1 << 16).decode()
    os.close(master)
    tap.equal(code, OK)
    assert text.startswith("\x1b[H\x1b[2Jattnd "), repr(text)


@tap.test
def flags_of_watch_and_top_are_checked():
    for words, text in (
        (["stats", "--count", "2"], "--count = 2: goes with --watch"),
        (["stats", "--watch=0"], "--watch = 0: seconds, more than 0 and at most 86400"),
        (["stats", "--watch", "often"], "--watch = often: seconds, more than 0 and at most 86400"),
        (["stats", "--watch", "--reset"], "--reset = given: not with --watch"),
        (["stats", "--watch", "1", "2"], "2: stats takes no more arguments"),
        (["top", "--interval", "-1"], "--interval = -1: seconds, more than 0 and at most 86400"),
        (["top", "--count", "0"], "--count = 0: how often, 1 .. 999999999"),
        (["top", "--count", "2x"], "--count = 2x: how often, 1 .. 999999999"),
        (["completion"], "completion = absent: bash"),
        (["completion", "zsh"], "completion = zsh: bash"),
        (["completion", "bash", "more"], "more: completion takes no more arguments"),
    ):
        tap.equal(attnctl(*words), (USAGE, "", f"attnctl: {text}; see attnctl --help\n"))


@tap.test
def plans_show_what_clients_keep():
    with Daemon() as daemon:
        tap.equal(ok(daemon, "plans"), "no plans\n")
        tap.equal(ok(daemon, "--json", "plans"), "")


@tap.test
def reload_says_what_changed():
    with tempfile.TemporaryDirectory() as home:
        path = os.path.join(home, "attnd.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write("{}")
        with Daemon("--config", path) as daemon:
            tap.equal(ok(daemon, "reload"), "applied  nothing\nneeds_restart  nothing\n")
            with open(path, "w", encoding="utf-8") as file:
                file.write('{"log": {"slow": "5ms"}, "data": {"contexts": 80}}')
            tap.equal(
                ok(daemon, "reload"),
                "applied\n  key       was  now\n  log.slow  1s   5ms\n"
                "needs_restart\n  key            was  now\n  data.contexts   72   80\n",
            )
            with open(path, "w", encoding="utf-8") as file:
                file.write("{")
            code, out, err = attnctl("--dir", daemon.dir, "reload")
            tap.equal((code, out), (REFUSED, ""))
            assert err.endswith(f"{path}:1:2: the file ends: JSON that is closed\n"), err


def completions(*words):
    """What bash offers for the last word."""
    script = (
        'source <("$0" completion bash)\n'
        'COMP_WORDS=(attnctl "$@")\n'
        "COMP_CWORD=$#\n"
        "_attnctl\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script, os.path.join(BUILD, "bin", "attnctl"), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
    )
    return done.stdout.decode().split()


@tap.test
def bash_completes_commands_and_their_flags():
    tap.equal(completions("st"), ["stats"])
    offered = completions("")
    for name in commands():
        assert name in offered, name
    tap.equal(completions("stats", "--w"), ["--watch"])
    tap.equal(completions("--dir", "x", "stats", "--r"), ["--reset"])
    tap.equal(completions("explain", "--kv_l"), ["--kv_lens", "--kv_len"])
    tap.equal(completions("log-level", "d"), ["debug"])
    tap.equal(completions("call", "kernels.e"), ["kernels.explain"])
    tap.equal(completions("completion", "b"), ["bash"])
    tap.equal(completions("top", "--count", ""), [])


@tap.test
def explain_takes_flags_and_lists():
    with Daemon("--device.isa=portable") as daemon:
        problem = [
            "explain",
            "--n_heads",
            "8",
            "--n_kv_heads=2",
            "--head_dim",
            "64",
            "--q_lens",
            "32,1",
            "--kv_lens",
            "32,1000",
            "--dtype",
            "f32",
        ]
        told = json.loads(ok(daemon, "--json", *problem))
        tap.equal([p["phase"] for p in told["phases"]], ["context", "generation"])
        tap.equal(told["problem"]["n_tokens"], 33)
        # K and V of 1032 keys in 2 heads of 64 channels, q and out of 33 tokens in 8 heads, fp32.
        assert int(told["floor"]["bytes"]) >= 4 * (1032 * 2 * 64 * 2 + 33 * 8 * 64 * 2)
        out = ok(daemon, *problem)
        assert re.search(r"^ +kernel +serves +cost_us +reason$", out, re.M), out
        code, out, err = attnctl(
            "--dir",
            daemon.dir,
            "explain",
            "--n_heads",
            "3",
            "--n_kv_heads",
            "2",
            "--head_dim",
            "8",
            "--kv_len",
            "1",
        )
        tap.equal((code, out), (REFUSED, ""))
        tap.equal(
            err,
            f"attnctl: {daemon.dir}/control: params.n_heads = 3: a multiple of n_kv_heads = 2\n",
        )


@tap.test
def explain_takes_a_layer_of_an_open_model():
    with Daemon() as daemon, attnd.Client(daemon.dir) as client:
        spec = attnd.ModelSpec(
            layers=[attnd.Layer(8, 64, n_kv_heads=2, count=3)],
            groups=[attnd.Group("f32", 16, n_blocks=64)],
        )
        client.open_model(spec)
        (model,) = [json.loads(line) for line in ok(daemon, "--json", "models").splitlines()]
        told = json.loads(
            ok(daemon, "--json", "explain", model["model"], "2", "--n_seqs", "4", "--kv_len", "500")
        )
        tap.equal((told["problem"]["n_heads"], told["problem"]["kv_dtype"]), (8, "f32"))
        code, _, err = attnctl("--dir", daemon.dir, "explain", model["model"], "3", "--kv_len", "1")
        tap.equal(code, REFUSED)
        assert "no open model has this handle and a layer 3" in err, err


@tap.test
def config_and_log_level_take_a_word():
    with Daemon("--log.level=error") as daemon:
        tap.equal(ok(daemon, "config", "log.level"), "log.level  error\n")
        tap.equal(
            json.loads(ok(daemon, "--json", "log-level", "debug")),
            {"level": "debug", "was": "error"},
        )
        tap.equal(
            json.loads(ok(daemon, "--json", "config", "log.level")),
            {"config": {"log.level": "debug"}},
        )
        code, out, err = attnctl("--dir", daemon.dir, "--json", "log-level", "loud")
        tap.equal((code, out), (REFUSED, ""))
        tap.equal(json.loads(err)["data"]["reason"], "BAD_MESSAGE")


@tap.test
def call_reaches_any_method():
    with Daemon() as daemon:
        tap.equal(
            ok(daemon, "call", "config.get", '{"key": "device.slots"}'),
            '{"config":{"device.slots":"64"}}\n',
        )
        code, _, err = attnctl("--dir", daemon.dir, "call", "server.pong")
        tap.equal(code, REFUSED)
        assert "the nearest is server.ping" in err, err


@tap.test
def usage_errors_end_with_2_and_reach_no_daemon():
    for words in (
        [],
        ["nope"],
        ["--nope"],
        ["ping", "--nope"],
        ["ping", "word"],
        ["config", "a", "b"],
        ["explain", "--n_heads", "x"],
        ["explain", "--q_lens", "1,,2"],
        ["call"],
        ["call", "server.ping", "[1]"],
        ["--timeout", "0", "ping"],
        ["--timeout", "x", "ping"],
        ["log-level", "info", "--level", "warn"],
        ["--socket"],
    ):
        code, out, err = attnctl("--dir", "/nowhere", *words)
        tap.equal((words, code, out), (words, USAGE, ""))
        assert err.startswith("attnctl: ") and err.endswith("; see attnctl --help\n"), err


@tap.test
def without_a_daemon_every_socket_tried_is_named():
    code, out, err = attnctl("--socket", "/nowhere/control", "ping")
    tap.equal((code, out), (NO_DAEMON, ""))
    assert err.startswith("attnctl: /nowhere/control: No such file or directory\n"), err
    code, _, err = attnctl(
        "ping", env={"RUNTIME_DIRECTORY": "/nowhere/a", "XDG_RUNTIME_DIR": "/nowhere/b"}
    )
    # A daemon of this machine's own may answer at the two places behind these.
    assert code in (OK, NO_DAEMON), err
    if code == NO_DAEMON:
        for path in (
            "/nowhere/a/control",
            "/nowhere/b/attnd/control",
            "/run/attnd/control",
            f"/tmp/attnd-{os.getuid()}/control",
        ):
            assert f"attnctl: {path}: " in err, err
    code, _, err = attnctl("--dir", "/" + "x" * 200, "ping")
    tap.equal(code, NO_DAEMON)
    assert "File name too long" in err, err


@tap.test
def the_runtime_directory_of_the_environment_is_found():
    with Daemon() as daemon:
        home = tempfile.mkdtemp()
        os.symlink(daemon.dir, os.path.join(home, "attnd"))
        for env in (
            {"RUNTIME_DIRECTORY": daemon.dir},
            {"RUNTIME_DIRECTORY": "/nowhere", "XDG_RUNTIME_DIR": home},
        ):
            code, out, err = attnctl("--json", "info", env=env)
            tap.equal((code, err), (OK, ""))
            tap.equal(json.loads(out)["runtime_dir"], daemon.dir)
        os.unlink(os.path.join(home, "attnd"))
        os.rmdir(home)


class Listener:
    """A socket that accepts and then does what a test says to each connection."""

    def __init__(self, act):
        self._home = tempfile.mkdtemp()
        self.path = os.path.join(self._home, "control")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, args=(act,), daemon=True)
        self._thread.start()

    def _serve(self, act):
        connection, _ = self._socket.accept()
        with connection:
            connection.recv(65536)
            act(connection)

    def close(self):
        self._thread.join(10)
        self._socket.close()
        os.unlink(self.path)
        os.rmdir(self._home)


@tap.test
def a_daemon_that_is_silent_hangs_up_or_babbles_is_told_apart():
    hold = threading.Event()
    cases = (
        (lambda c: hold.wait(10), TIMED_OUT, "no answer in time"),
        (lambda c: None, NO_DAEMON, "hung up"),
        (lambda c: c.sendall(b"hel"), NO_DAEMON, "hung up"),
        (lambda c: c.sendall(b"hello\n"), REFUSED, "no JSON object"),
        (lambda c: c.sendall(b'{"jsonrpc":"2.0","id":1}\n'), REFUSED, "refused without a word"),
    )
    for act, wanted, text in cases:
        listener = Listener(act)
        code, out, err = attnctl("--socket", listener.path, "--timeout", "0.3", "ping")
        tap.equal((code, out), (wanted, ""))
        assert text in err and listener.path in err, err
        hold.set()
        listener.close()


@tap.test
def what_a_client_calls_itself_does_not_reach_the_terminal():
    row = {"sessions": [{"session": 1, "client": "a\u001b[2Jb"}]}
    answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": row}).encode() + b"\n"
    listener = Listener(lambda c: c.sendall(answer))
    code, out, _ = attnctl("--socket", listener.path, "sessions")
    listener.close()
    tap.equal((code, out), (OK, "session  client\n      1  a?[2Jb\n"))


@tap.test
def check_does_not_wait_for_a_pipe():
    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "pipe.json")
        os.mkfifo(pipe)
        code, out, _ = attnctl("check", "--oracle", pipe, folder)
        tap.equal(code, REFUSED)
        tap.equal(out.count("neither a file nor a directory"), 2)


@tap.test
def drain_waits_until_the_daemon_has_left():
    with Daemon(keeper=True) as daemon:
        tap.equal(ok(daemon, "--json", "drain", "--wait"), '{"draining":true}\n')
        tap.equal(daemon.process.wait(5), 0)
        tap.equal(sorted(os.listdir(daemon.dir)), ["lock"])


@tap.test
def shutdown_answers_and_leaves():
    with Daemon(keeper=True) as daemon:
        tap.equal(ok(daemon, "shutdown"), "leaving  true\n")
        tap.equal(daemon.process.wait(5), 0)
        tap.equal(sorted(os.listdir(daemon.dir)), ["lock"])


@tap.test
def a_daemon_that_is_not_ready_ends_with_1():
    with Daemon() as daemon:
        tap.equal(ok(daemon, "ready").split(), ["ready", "true", "why"])
    result = {"ready": False, "why": "draining"}
    answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode() + b"\n"
    listener = Listener(lambda c: c.sendall(answer))
    code, out, err = attnctl("--socket", listener.path, "ready")
    listener.close()
    tap.equal((code, out, err), (REFUSED, "ready  false\nwhy    draining\n", ""))


if __name__ == "__main__":
    tap.main()
