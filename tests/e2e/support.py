"""What end-to-end tests in Python share: a daemon of their own, started and stopped.

with Daemon() as daemon, attnd.Client(daemon.dir) as client: …
"""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("ATTND_BUILD") or os.path.join(ROOT, "build", "release")
# Slower then, many times over, and freed memory is kept for a while to see it used.
IS_SANITIZED = os.path.basename(BUILD) in ("asan", "tsan")
sys.path[:0] = [
    os.path.join(BUILD, "python"),
    *(os.path.join(ROOT, "tests", folder) for folder in ("support", "e2e", "soak")),
]

import attnd
import sanitizer
import tap

START_S = 30.0  # a sanitized build on a busy machine included


class Daemon:
    """attnd in a runtime directory of its own, ready when the constructor returns.

    A sanitizer's report in what it or its engine printed fails the test when the daemon ends.

    dir      the runtime directory
    process  the one that was started: the keeper, or the engine when keeper is False
    nofile   how many descriptors it may have
    build    where its bin/attnd lies

    It computes on the CPU, whatever this machine has, unless a flag says otherwise.
    """

    def __init__(self, *flags, keeper=False, nofile=None, build=BUILD):
        self._home = tempfile.mkdtemp(prefix="attnd-test-")
        self.dir = os.path.join(self._home, "run")
        self._log = os.path.join(self._home, "log")
        self._ids = itertools.count(1)
        self._keeper = keeper
        program = os.path.join(build, "bin", "attnd")
        command = [program, f"--runtime.dir={self.dir}", "--device.backend=cpu", *flags]
        if not keeper:
            command.append("--no-keeper")
        if nofile:
            command[:0] = ["prlimit", f"--nofile={nofile}:{nofile}"]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self.wait_ready()
        except BaseException:
            self.end()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def wait_ready(self, seconds=START_S):
        """Returns when server.ready says so; fails when the process ends first."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"attnd ended with {self.process.returncode}:\n{self.log()}")
            try:
                if self.rpc("server.ready").get("ready"):
                    return
            except OSError:
                pass  # It does not listen yet.
            time.sleep(0.01)
        raise AssertionError(f"attnd is not ready after {seconds} s:\n{self.log()}")

    def rpc(self, method, **params):
        """Result of a method of the control socket; AssertionError with the error it answers."""
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(os.path.join(self.dir, "control"))
            sock.sendall(json.dumps(request).encode() + b"\n")
            with sock.makefile("rb") as lines:
                line = lines.readline()
        if not line:
            raise ConnectionResetError(f"{method}: attnd closed the control socket")
        answer = json.loads(line)
        assert "result" in answer, f"{method}: {answer.get('error')}"
        return answer["result"]

    def log(self):
        with open(self._log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def stop(self, seconds=20.0):
        """SIGTERM; the exit code. AssertionError when it does not end in time."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(seconds)
            if code:
                print("\n".join(f"# {line}" for line in self.log().splitlines()))
            return code
        except subprocess.TimeoutExpired:
            raise AssertionError(f"attnd does not end after SIGTERM:\n{self.log()}") from None

    def gauge(self, name):
        return int(self.rpc("stats.get")["gauges"][name])

    def counter(self, name):
        return int(self.rpc("stats.get")["counters"][name])

    def engine(self):
        """Pid of the engine process; None while the keeper has none."""
        pid = self.process.pid
        if not self._keeper:
            return pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = file.read().split()
        return int(children[0]) if children else None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Whatever state it is in: no process and no file is left.

        It is told to stop first: sanitizers have their last word then."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.kill()
        log = self.log()
        shutil.rmtree(self._home)
        assert not sanitizer.first_report(log), f"attnd has a sanitizer's report:\n{log}"


def freeze(pid):
    """SIGSTOP; returns when every thread of the process has stopped."""

    def is_frozen():
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="ascii") as file:
                if file.read().rpartition(")")[2].split()[0] != "T":
                    return False
        return True

    os.kill(pid, signal.SIGSTOP)
    tap.until(is_frozen, f"process {pid} stopped")


def error_of(function, *args, **kwargs):
    """(code, reason, field, message) of the attnd.Error that function raises."""
    wrong = tap.raises(attnd.Error, function, *args, **kwargs)
    return wrong.code, wrong.reason, wrong.field, wrong.message
