"""test_trace.py: what the daemon notes of its requests opens in a viewer, nests, adds up and tells no secret."""

import collections
import json
import os
import stat
import subprocess
import tempfile

from raw import ROW, Session, ok
from support import BUILD, Daemon, attnd

import tap
from models import AUSTEN, AUSTEN_GOLDEN, tokens_of

REQUESTS, THREADS, DEVICE = 1, 2, 3  # processes of the viewer
TRANSPORT, ENGINE = 1, 2  # its threads
BUSY = {"decode", "admit", "order", "check", "plan", "launch", "run", "reply"}


def attnctl(daemon, *words):
    """(exit code, stdout, stderr) of a command."""
    done = subprocess.run(
        [os.path.join(BUILD, "bin", "attnctl"), "--dir", daemon.dir, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def exported(daemon):
    """The file of trace-export as JSON, its text, and what attnctl says of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        code, out, err = attnctl(daemon, "--json", "trace-export", path)
        tap.equal((code, err), (0, ""))
        tap.equal(os.listdir(folder), ["trace.json"])
        tap.equal(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        said = json.loads(out)
        tap.equal(said["file"], path)
        trace = json.loads(text)
        tap.equal(said["events"], len(trace["traceEvents"]))
        return trace, text, said


def ns(us):
    return round(us * 1000)


def spans_of(trace):
    """The X events, begin and end in ns; every event is one or a row's name."""
    spans = []
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            continue
        tap.equal(event["ph"], "X")
        begin = ns(event["ts"])
        assert begin >= 0 and event["dur"] >= 0, event
        spans.append(dict(event, begin=begin, end=begin + ns(event["dur"])))
    return spans


def check_nesting(spans):
    """On one row a span lies inside another or beside it."""
    rows = collections.defaultdict(list)
    for span in spans:
        rows[span["pid"], span["tid"]].append(span)
    for row in rows.values():
        open_spans = []
        for span in sorted(row, key=lambda s: (s["begin"], -s["end"])):
            while open_spans and open_spans[-1]["end"] <= span["begin"]:
                open_spans.pop()
            assert not open_spans or span["end"] <= open_spans[-1]["end"], (open_spans[-1], span)
            open_spans.append(span)
    return rows


def check_sums(spans):
    """Every request's stages fill its total without a gap; the totals."""
    totals = [span for span in spans if span["cat"] == "total"]
    for total in totals:
        row = [s for s in spans if (s["pid"], s["tid"]) == (REQUESTS, total["tid"])]
        stages = [s for s in row if s is not total and total["begin"] <= s["begin"] and s["end"] <= total["end"]]
        at = total["begin"]
        for stage in sorted(stages, key=lambda s: (s["begin"], s["end"])):
            tap.equal(stage["args"]["request"], total["args"]["request"])
            tap.equal(stage["begin"], at)
            at = stage["end"]
        tap.equal(at, total["end"])
    return totals


@tap.test
def the_demo_is_a_trace_that_nests_and_adds_up():
    golden = AUSTEN_GOLDEN[:2]
    with Daemon() as daemon:
        code, out, _ = attnctl(daemon, "trace-start")
        tap.equal((code, out.split()), (0, ["events", "65536", "bytes", out.split()[3]]))
        tokens_of("attnd", AUSTEN, [one["prompt"] for one in golden], 12, "f16", runtime_dir=daemon.dir)
        kernels = {
            k["kernel"]: k["launches"] for k in daemon.rpc("stats.get")["kernels"] if k["launches"]
        }
        tap.equal(json.loads(attnctl(daemon, "--json", "trace-stop")[1])["dropped"], "0")
        trace, _, said = exported(daemon)
        tap.equal(said["dropped"], 0)
        spans = spans_of(trace)
        rows = check_nesting(spans)
        totals = check_sums(spans)
        tap.equal(len(totals), sum(span["name"] == "queue" for span in spans))
        ops = collections.Counter(total["name"] for total in totals)
        assert ops["hello"] == 1 and ops["step"] + ops["attend"] >= 12, ops
        # What a thread is busy with stands on its row too, the device's work on the session's.
        tap.equal({row for row in rows if row[0] == THREADS}, {(THREADS, TRANSPORT), (THREADS, ENGINE)})
        for name in BUSY:
            tid = TRANSPORT if name == "decode" else ENGINE
            own = sum(s["pid"] == REQUESTS and s["cat"] == name for s in spans)
            tap.equal(sum(s["cat"] == name for s in rows[THREADS, tid]), own)
        launched = collections.Counter()
        for span in spans:
            if span["pid"] != DEVICE:
                continue
            tap.equal(span["cat"], "kernel")
            tap.equal(span["tid"], span["args"]["session"])
            launched.update(span["args"]["kernels"])
        tap.equal(launched, collections.Counter(kernels))
        for total in totals:
            mine = [s for s in spans if s["pid"] == DEVICE and s["args"]["request"] == total["args"]["request"]
                    and s["args"]["session"] == total["args"]["session"]
                    and total["begin"] <= s["begin"] <= total["end"]]
            tap.equal([s["args"]["launch"] for s in mine], list(range(total["args"]["launches"])))
            for s in mine:
                assert total["begin"] <= s["begin"] and s["end"] <= total["end"], (total, s)


@tap.test
def ids_sessions_and_refusals_are_told_but_no_secret():
    big = 2**64 - 7
    with Daemon() as daemon, Session(daemon.dir) as session:
        daemon.rpc("trace.start", events=1000)
        ok(session.call("create_buffer", bytes=8 * ROW, id=big))
        session.call("create_buffer", bytes=0, id=big + 1)
        session.call("create_buffer", bytes=1, id=big + 2, after=big + 6, timeout_ms=10)
        daemon.rpc("trace.stop")
        trace, text, _ = exported(daemon)
        spans = spans_of(trace)
        check_nesting(spans)
        totals = check_sums(spans)
        tap.equal([t["args"]["request"] for t in totals], [str(big), str(big + 1), str(big + 2)])
        tap.equal({t["args"]["session"] for t in totals}, {1})
        tap.equal([t["args"].get("refused") for t in totals], [None, "BAD_LENGTH", "TIMED_OUT"])
        (parked,) = [s for s in spans if s["name"] == "parked"]
        tap.equal(parked["args"]["request"], str(big + 2))
        assert parked["end"] - parked["begin"] >= 9_000_000, parked
        for form in (session.number, f"{session.number:x}", session.number - 2**64):
            assert str(form) not in text


@tap.test
def a_small_ring_keeps_the_newest_and_says_what_it_dropped():
    with Daemon() as daemon, attnd.Client(daemon.dir) as client:
        daemon.rpc("trace.start", events=16)
        for _ in range(50):
            client.ping()
        answer = daemon.rpc("trace.stop")
        recorded, dropped = int(answer["recorded"]), int(answer["dropped"])
        assert answer["was_on"] and recorded >= 50 * 6
        tap.equal(dropped, recorded - 16)
        trace, _, said = exported(daemon)
        tap.equal(said["dropped"], dropped)
        spans = spans_of(trace)
        tap.equal(sum(s["pid"] == REQUESTS for s in spans), 16)
        client.ping()
        tap.equal(daemon.rpc("trace.stop")["recorded"], answer["recorded"])


@tap.test
def pages_follow_each_other_while_requests_go_on():
    with Daemon() as daemon, attnd.Client(daemon.dir) as client:
        daemon.rpc("trace.start", events=4096)
        for _ in range(400):
            client.ping()
        first = daemon.rpc("trace.export")
        tap.equal(sum(e["pid"] == REQUESTS and e["ph"] == "X" for e in first["traceEvents"]), 1024)
        tap.equal(first["next"], "1024")
        second = daemon.rpc("trace.export", **{"from": first["next"]})
        assert not any(e["ph"] == "M" for e in second["traceEvents"])
        assert second["traceEvents"][0] not in first["traceEvents"]
        trace, _, _ = exported(daemon)  # It is still on.
        spans = spans_of(trace)
        check_nesting(spans)
        tap.equal(len(check_sums(spans)), 400)


@tap.test
def orders_that_make_no_sense_are_refused():
    with Daemon() as daemon:
        for n in (0, 15, 2**20 + 1):
            wrong = tap.raises(AssertionError, daemon.rpc, "trace.start", events=n)
            assert f"params.events = {n}: 16..1048576" in str(wrong), wrong
        tap.equal(daemon.rpc("trace.stop"), {"was_on": False, "recorded": "0", "dropped": "0"})
        tap.equal(spans_of(exported(daemon)[0]), [])
        daemon.rpc("trace.start", events=2**20)
        wrong = tap.raises(AssertionError, daemon.rpc, "trace.start")
        assert "trace: one is on; stop it first" in str(wrong), wrong
        code, _, err = attnctl(daemon, "trace-export")
        tap.equal(code, 2)
        assert "a file is missing" in err, err
        code, _, err = attnctl(daemon, "trace-export", os.path.join(daemon.dir, "none", "trace"))
        tap.equal(code, 1)
        assert "No such file or directory" in err, err


tap.main()
