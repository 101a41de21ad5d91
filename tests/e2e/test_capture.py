"""test_capture.py: live requests become case files, and these are right on another daemon."""

import json
import os
import stat
import subprocess
import tempfile
import threading
import time

from support import BUILD, ROOT, Daemon, attnd

import tap
from models import AUSTEN, AUSTEN_GOLDEN, tokens_of

N_REQUESTS = 24


def attnctl(daemon, *words):
    """(exit code, stdout) of a command."""
    done = subprocess.run(
        [os.path.join(BUILD, "bin", "attnctl"), "--dir", daemon.dir, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout.decode()


def rows_of(daemon, *words):
    """Exit code of attnctl check, and its rows."""
    code, out = attnctl(daemon, "--json", "check", *words)
    return code, [json.loads(line) for line in out.splitlines()]


def finish(daemon):
    """Stops and waits until all files are written; the counts."""
    counts = {}

    def is_written():
        counts.update(daemon.rpc("capture.stop"))
        return not counts["pending"]

    left = daemon.rpc("capture.stop")["left"]
    tap.until(is_written, "captured files are written", 60)
    return dict(counts, left=left)


def files_in(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def run_demo(daemon):
    """The demo's model and prompts; true when it says what it should."""
    golden = AUSTEN_GOLDEN[:2]
    texts = [one["prompt"] for one in golden]
    _, whole = tokens_of("attnd", AUSTEN, texts, 12, "f16", runtime_dir=daemon.dir)
    return all(one["text"].startswith(text) for one, text in zip(golden, whole))


@tap.test
def the_demos_requests_are_right_on_another_daemon_bit_for_bit():
    with tempfile.TemporaryDirectory() as folder:
        with Daemon() as first:
            tap.equal(first.rpc("capture.start", n=N_REQUESTS, into=folder)["requests"], N_REQUESTS)
            assert run_demo(first)
            counts = finish(first)
        tap.equal((counts["written"], counts["left"], counts["failed"]), (N_REQUESTS, 0, 0))
        tap.equal(len(files_in(folder)), N_REQUESTS)
        with Daemon() as second:
            code, rows = rows_of(second, "--exact", folder)
            tap.equal([row["verdict"] for row in rows], ["ok"] * N_REQUESTS)
            tap.equal(code, 0)
            tap.equal(rows_of(second, "--plans", folder)[0], 0)
        with Daemon("--device.isa=portable") as other:
            tap.equal(rows_of(other, folder)[0], 0)


@tap.test
def a_captured_output_that_is_another_is_found():
    with tempfile.TemporaryDirectory() as folder, Daemon() as daemon:
        daemon.rpc("capture.start", n=1, into=folder)
        tap.equal(attnctl(daemon, "check", os.path.join(ROOT, "tests/cases/b022_window_counts_its_own_key.json"))[0], 0)
        finish(daemon)
        (path,) = files_in(folder)
        with open(path, encoding="utf-8") as file:
            case = json.load(file)
        exact = case["steps"][-1]["expect"]["exact"]
        exact["out"] = "0" * 16
        with open(path, "w", encoding="utf-8") as file:
            json.dump(case, file)
        tap.equal(rows_of(daemon, path)[0], 0)
        code, (row,) = rows_of(daemon, "--exact", path)
        tap.equal(code, 1)
        assert "0000000000000000 was captured" in row["message"], row


@tap.test
def slots_plans_steps_merges_and_fused_tensors_are_captured():
    names = (
        "b007_padding_rows b016_empty_piece b026_chunked_prefill_window5 b029_chunk_mask b056_table_ends_with_its_memory "
        "b079_far_positions b106_plan_across_the_window fused_and_apart layers_of_a_step append_reaches_its_rows_only"
    ).split()
    cases = [os.path.join(ROOT, "tests", "cases", f"{name}.json") for name in names]
    with tempfile.TemporaryDirectory() as folder:
        with Daemon() as first:
            first.rpc("capture.start", n=1000, into=folder)
            tap.equal(rows_of(first, *cases)[0], 0)
            counts = finish(first)
        tap.equal((counts["dropped"], counts["failed"]), (0, 0))
        with Daemon() as second:
            code, rows = rows_of(second, "--exact", folder)
            tap.equal([row for row in rows if row["verdict"] != "ok"], [])
            tap.equal((code, len(rows)), (0, counts["written"]))
        kinds = set()
        for path in files_in(folder):
            with open(path, encoding="utf-8") as file:
                case = json.load(file)
            for step in case["steps"]:
                kinds.update(step)
                kinds.update(step.get("attend", {}).get("batch", {}))
        assert {"attend", "merge", "write", "slots", "positions"} <= kinds, kinds


@tap.test
def hashes_alone_hold_no_values_and_replay_with_others():
    with tempfile.TemporaryDirectory() as folder, Daemon() as daemon:
        daemon.rpc("capture.start", n=4, into=folder, tensors="hash")
        assert run_demo(daemon)
        finish(daemon)
        for path in files_in(folder):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            assert "base64" not in text and '"write"' not in text
            assert "hash" in text
        code, rows = rows_of(daemon, "--exact", folder)
        tap.equal((code, [row["verdict"] for row in rows]), (0, ["ok"] * 4))


@tap.test
def files_are_the_owners_and_tell_no_secret():
    with tempfile.TemporaryDirectory() as folder, Daemon() as daemon:
        with attnd.Client(daemon.dir, name="quiet one") as client:
            daemon.rpc("capture.start", n=2, into=folder)
            assert run_demo(daemon)
            finish(daemon)
            secret = client._session  # pylint: disable=protected-access
        paths = files_in(folder)
        tap.equal(len(paths), 2)
        for path in paths:
            tap.equal(stat.S_IMODE(os.stat(path).st_mode), 0o600)
            assert os.path.basename(path).startswith("capture-") and path.endswith(".json"), path
            with open(path, encoding="utf-8") as file:
                text = file.read()
            assert str(secret) not in text and f"{secret:x}" not in text


@tap.test
def one_session_alone_is_recorded_and_the_default_place_is_the_daemons_own():
    with Daemon() as daemon, attnd.Client(daemon.dir) as other:
        ordinal = daemon.rpc("sessions.list")["sessions"][0]["session"]
        answer = daemon.rpc("capture.start", n=5, session=int(ordinal))
        tap.equal(answer["dir"], os.path.join(daemon.dir, "captures"))
        assert run_demo(daemon)
        counts = finish(daemon)
        tap.equal((counts["written"], counts["dropped"], counts["left"]), (0, 0, 5))
        tap.equal(stat.S_IMODE(os.stat(answer["dir"]).st_mode), 0o700)
        other.ping()


@tap.test
def orders_that_make_no_sense_are_refused():
    with tempfile.TemporaryDirectory() as folder, Daemon() as daemon:
        for wanted, params in (
            ("params.n = 0: 1..100000", {"n": 0}),
            ("params.n = 100001: 1..100000", {"n": 100001}),
            ("params.into = here: a path from the root", {"n": 1, "into": "here"}),
            ("No such file or directory", {"n": 1, "into": os.path.join(folder, "none")}),
            ("params.tensors = some: data or hash", {"n": 1, "tensors": "some"}),
        ):
            wrong = tap.raises(AssertionError, daemon.rpc, "capture.start", **params)
            assert wanted in str(wrong), wrong
        daemon.rpc("capture.start", n=1, into=folder)
        wrong = tap.raises(AssertionError, daemon.rpc, "capture.start", n=1, into=folder)
        assert "1 requests of the last one are still to come" in str(wrong), wrong
        daemon.rpc("capture.stop")
        daemon.rpc("capture.start", n=1, into=folder)
        tap.equal(daemon.stop(), 0)
        tap.equal(os.listdir(folder), [])


def attend_over_and_over(client, seconds):
    """One small request after the other, one at least."""
    spec = {
        "layers": [{"n_heads": 1, "head_dim": 4}],
        "groups": [{"block_size": 16, "kv_dtype": "f32", "n_blocks": 1}],
    }
    model, buffer = client.open_model(spec), client.create_buffer(4096)
    q, k, v, out = (buffer.view("f32", (1, 1, 4), offset=64 * i) for i in range(4))
    end = time.monotonic() + seconds
    while True:
        client.attend(model, 0, q=q, k=k, v=v, out=out, q_lens=[1], kv_lens=[1], tables=[[0]])
        if time.monotonic() >= end:
            break


@tap.test
def orders_of_one_second_keep_each_others_files():
    with tempfile.TemporaryDirectory() as folder, Daemon() as daemon, attnd.Client(daemon.dir) as client:
        for _ in range(4):
            daemon.rpc("capture.start", n=1, into=folder)
            attend_over_and_over(client, 0)
            tap.equal(finish(daemon)["written"], 1)
        tap.equal(len(files_in(folder)), 4)


@tap.test
def requests_faster_than_files_leave_descriptors_for_others():
    with tempfile.TemporaryDirectory() as folder, Daemon(nofile=96) as daemon:
        with attnd.Client(daemon.dir) as client:
            daemon.rpc("capture.start", n=100000, into=folder)
            load = threading.Thread(target=attend_over_and_over, args=(client, 2))
            load.start()
            while load.is_alive():
                with attnd.Client(daemon.dir) as other:
                    other.ping()
                tap.equal(daemon.rpc("server.ready")["ready"], True)
            load.join()
            counts = finish(daemon)
        tap.equal(counts["failed"], 0)
        tap.equal(len(files_in(folder)), counts["written"])


@tap.test
def attnctl_starts_and_stops_it():
    with tempfile.TemporaryDirectory() as folder, Daemon() as daemon:
        code, out = attnctl(daemon, "capture", "3", "--into", folder, "--tensors", "hash")
        tap.equal((code, out.split()[:4]), (0, ["requests", "3", "tensors", "hash"]))
        code, out = attnctl(daemon, "--json", "capture-stop")
        tap.equal((code, json.loads(out)["left"]), (0, 3))
        tap.equal(attnctl(daemon, "capture")[0], 1)


tap.main()
