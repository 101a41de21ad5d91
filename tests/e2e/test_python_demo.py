"""test_python_demo.py: scripts/demo.sh shows a model's text, leaves nothing, and says what went wrong."""

import os
import subprocess
import tempfile

from support import BUILD, ROOT

import tap
from models import AUSTEN_GOLDEN


def demo(build, home):
    """The demo with an empty directory for temporary files: (exit code, stdout, stderr, what is
    left there)."""
    done = subprocess.run(
        [os.path.join(ROOT, "scripts", "demo.sh")],
        env=dict(os.environ, ATTND_BUILD=build, TMPDIR=home),
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout, done.stderr, os.listdir(home)


@tap.test
def it_shows_the_golden_texts_the_numbers_and_a_clean_stop():
    with tempfile.TemporaryDirectory() as home:
        code, out, err, left = demo(BUILD, home)
        tap.equal((code, left), (0, []))
        for one in AUSTEN_GOLDEN:
            assert one["text"] + "\n" in out, out
        assert "tokens/s; attention: attnd, f16" in err, err
        assert "query_tokens" in out and "attnd left with 0." in out, out


@tap.test
def make_calls_it_so_that_it_runs():
    """The very line of the Makefile, with what make adds to the environment."""
    where = f"B={os.path.relpath(BUILD, ROOT)}"
    dry = subprocess.run(
        ["make", "-s", "-n", where, "demo"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    lines = [line for line in dry.stdout.splitlines() if "scripts/demo.sh" in line]
    tap.equal(len(lines), 1)
    done = subprocess.run(
        ["sh", "-c", lines[0]], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    tap.equal((done.returncode, done.stderr if done.returncode else ""), (0, ""))
    assert AUSTEN_GOLDEN[0]["text"] in done.stdout, done.stdout


@tap.test
def a_daemon_that_does_not_start_is_told_with_its_log():
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as build:
        os.mkdir(os.path.join(build, "bin"))
        programs = {"attnd": "echo 'attnd: no luck today' >&2; exit 73", "attnctl": "exit 3"}
        for name, script in programs.items():
            path = os.path.join(build, "bin", name)
            with open(path, "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\n{script}\n")
            os.chmod(path, 0o755)
        code, out, err, left = demo(build, home)
        tap.equal((code, left), (1, []))
        tap.equal(err, "demo: attnd did not start; the daemon's log:\nattnd: no luck today\n")
        assert "tokens" not in out, out


if __name__ == "__main__":
    tap.main()
