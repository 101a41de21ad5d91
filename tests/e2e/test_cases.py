"""test_cases.py: every case file of tests/cases against a real daemon: inline, through plans, and on each
instruction set of the CPU.

One TAP line is one case file in one of these runs; its variants are counted in it.
"""

import json
import os
import re
import subprocess

from support import BUILD, IS_SANITIZED, ROOT, Daemon

import tap

CASES = os.path.join(ROOT, "tests", "cases")
TIMEOUT_S = 500


def check(*words):
    """(exit code, rows) of attnctl check on all cases."""
    done = subprocess.run(
        [os.path.join(BUILD, "bin", "attnctl"), "--json", "check", *words, CASES],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def judge(rows):
    """Of one case: fails with the messages of variants that failed; skips when none was run."""
    failed = [f"{row['variant']}: {row['message']}" for row in rows if row["verdict"] == "failed"]
    assert not failed, "\n".join(failed)
    skipped = [row["message"] for row in rows if row["verdict"] == "skipped"]
    if len(skipped) == len(rows):
        raise tap.Skip(skipped[0])


def add(run, name, rows):
    """A test for one case in one run."""

    def one():
        judge(rows)

    one.__name__ = f"{name} {run} ({len(rows)})" if len(rows) > 1 else f"{name} {run}"
    tap.test(one)


def add_all(run, code, rows):
    """A test for each case, and one that all of them were there and the exit code agrees."""
    names = list(dict.fromkeys(row["case"] for row in rows))
    files = {file[:-5] for file in os.listdir(CASES) if file.endswith(".json")}

    def whole():
        tap.equal(set(names), files)
        tap.equal(code, int(any(row["verdict"] == "failed" for row in rows)))

    whole.__name__ = f"every case file was run {run}"
    tap.test(whole)
    for name in names:
        add(run, name, [row for row in rows if row["case"] == name])


def add_skip(run, reason):
    def skipped():
        raise tap.Skip(reason)

    skipped.__name__ = f"cases {run}"
    tap.test(skipped)


def run_daemon(run, flags, *words):
    try:
        daemon = Daemon(*flags)
    except AssertionError as wrong:
        if "isa = " not in str(wrong):
            raise
        add_skip(run, str(wrong).splitlines()[-1])
        return
    with daemon:
        add_all(run, *check("--dir", daemon.dir, *words))


def isas():
    """Those that are not the daemon's own choice."""
    with Daemon() as daemon:
        own = daemon.rpc("server.info").get("device", {}).get("isa")
    return [isa for isa in ("avx512", "avx2", "portable") if isa != own]


@tap.test
def the_page_of_faults_names_every_file_and_no_other():
    with open(os.path.join(CASES, "README.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| (B\d{3}) \| (.*?) \| (.*?) \|$", file.read(), re.M)
    named = {
        f"{fault.lower()}_{name}.json" for fault, names, _ in rows for name in names.replace("`", "").split(", ") if name
    }
    tap.equal(named, {name for name in os.listdir(CASES) if re.match(r"b\d{3}_", name)})
    tap.equal([fault for fault, names, elsewhere in rows if not names and not elsewhere], [])
    for path in {word for *_, text in rows for word in re.findall(r"`(tests/[\w/.]+)`", text)}:
        assert os.path.exists(os.path.join(ROOT, path)), path


add_all("by the evaluator alone", *check("--oracle"))
run_daemon("as they are", [])
if IS_SANITIZED:
    add_skip("through plans, and on other instruction sets", "sanitized: too slow for all of them")
else:
    run_daemon("through plans", [], "--plans")
    for name in isas():
        run_daemon(f"on {name}", [f"--device.isa={name}"])

tap.main()
