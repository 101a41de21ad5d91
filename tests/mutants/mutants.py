#!/usr/bin/env python3
"""Plants the faults of faults.py in a copy of the source, one at a time, and runs the tests that must find
them. A fault that a test lets pass is a fault of the suite.

    mutants.py [--only TEXT] [--dir build/mutants] [--make make]
    mutants.py --check       only looks whether the list still fits the source

Only what a fault touches is built again. A test that crashes or hangs has found its fault."""

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time

from faults import FAULTS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COPIED = ["Makefile", "daemon", "proto", "kernels", "kvcache", "config", "tests", "scripts"]
LIMIT_S = 300


def source_of(test):
    return f"tests/{test}" if test.endswith(".py") else f"tests/{test}.c"


def problems(root):
    """What is wrong with the list, in words."""
    found = []
    for fault in FAULTS:
        with open(os.path.join(root, fault.file)) as file:
            n = file.read().count(fault.old)
        if n != 1:
            found.append(f"{fault.name}: its old text stands {n} times in {fault.file}")
        if fault.old == fault.new:
            found.append(f"{fault.name}: nothing changes")
        if not fault.tests:
            found.append(f"{fault.name}: no test must find it")
        found += [f"{fault.name}: there is no {source_of(test)}" for test in fault.tests
                  if not os.path.exists(os.path.join(root, source_of(test)))]
    names = [fault.name for fault in FAULTS]
    found += [f"{name}: two faults have this name" for name in set(names) if names.count(name) > 1]
    return found


def write_if_changed(path, text):
    """Keeps the time of a file that is as it should be, so that nothing is built for it."""
    if os.path.exists(path):
        with open(path, "rb") as file:
            if file.read() == text:
                return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(text)


def copy_source(to):
    """The source as it stands, over what an earlier run left."""
    kept = set()
    for top in COPIED:
        walked = os.walk(os.path.join(ROOT, top)) if os.path.isdir(os.path.join(ROOT, top)) else [
            (ROOT, [], [top])]
        for folder, _, files in walked:
            if "__pycache__" in folder:
                continue
            for name in files:
                path = os.path.relpath(os.path.join(folder, name), ROOT)
                kept.add(path)
                with open(os.path.join(ROOT, path), "rb") as file:
                    write_if_changed(os.path.join(to, path), file.read())
                shutil.copymode(os.path.join(ROOT, path), os.path.join(to, path))
    for top in COPIED:
        for folder, _, files in os.walk(os.path.join(to, top)):
            for name in files:
                path = os.path.relpath(os.path.join(folder, name), to)
                if path not in kept and "__pycache__" not in path:
                    os.remove(os.path.join(to, path))


class Tree:
    def __init__(self, folder, make):
        self.folder, self.make = folder, make
        self.build_dir = "build/release"

    def build(self, tests):
        """None, or what the compiler said."""
        programs = [f"{self.build_dir}/tests/{test}" for test in tests if not test.endswith(".py")]
        if any(test.endswith(".py") for test in tests):
            programs.append("all")
        # A fault may leave a variable unused. What is built over and over is built quickly.
        done = subprocess.run([self.make, "-s", "CFLAGS=-Wno-error -g0", "KERNEL_OPT=-O1", "CUDA=", *programs],
                              cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return None if done.returncode == 0 else done.stdout.decode("utf-8", "replace")[-2000:]

    def run(self, test):
        """(whether it passed, the first thing that failed)."""
        python = test.endswith(".py")
        command = [sys.executable, source_of(test)] if python else [f"{self.build_dir}/tests/{test}"]
        env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP",
                   ATTND_BUILD=os.path.join(self.folder, self.build_dir))
        # The first failure says enough: what runs after it costs more than all before.
        child = subprocess.Popen(command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        late = threading.Timer(LIMIT_S, child.kill)
        late.start()
        failed = ""
        for line in child.stdout:
            line = line.decode("utf-8", "replace").strip()
            if line.startswith("not ok") and "# SKIP" not in line:
                failed = line[len("not ok "):]
                child.kill()
                break
        code = child.wait()
        child.stdout.close()
        hung = not late.is_alive()
        late.cancel()
        if failed or hung or code:
            return False, failed or ("it hangs" if hung else f"it ends with {code}")
        return True, ""


def plant(tree, fault):
    """[(test, found by)] of each test; raises ValueError when the fault does not build."""
    path = os.path.join(tree.folder, fault.file)
    with open(path) as file:
        right = file.read()
    try:
        with open(path, "w") as file:
            file.write(right.replace(fault.old, fault.new))
        said = tree.build(fault.tests)
        if said:
            raise ValueError(said)
        return [(test, *tree.run(test)) for test in fault.tests]
    finally:
        with open(path, "w") as file:
            file.write(right)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="part of a fault's name or file")
    parser.add_argument("--dir", default=os.path.join(ROOT, "build", "mutants"))
    parser.add_argument("--make", default="make")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    wrong = problems(ROOT)
    for line in wrong:
        print(line)
    if args.check or wrong:
        return 1 if wrong else 0
    chosen = [fault for fault in FAULTS if args.only in fault.name or args.only in fault.file]
    copy_source(args.dir)
    tree = Tree(args.dir, args.make)
    tests = sorted({test for fault in chosen for test in fault.tests})
    said = tree.build(tests)
    if said:
        print(f"the source itself does not build:\n{said}")
        return 1
    for test in tests:
        passed, why = tree.run(test)
        if not passed:
            print(f"{test} fails without any fault: {why}")
            return 1
    survived = 0
    print(f"{'fault':62} {'test':26} seconds  found by", flush=True)
    # Those of one file together: it is built again for the next of them anyway.
    for fault in sorted(chosen, key=lambda one: one.file):
        begin = time.monotonic()
        try:
            results = plant(tree, fault)
        except ValueError as said:
            print(f"{fault.name:62} does not build: {said}")
            survived += 1
            continue
        for test, passed, why in results:
            survived += passed
            print(f"{fault.name:62} {test:26} {time.monotonic() - begin:7.1f}  "
                  f"{'NOTHING' if passed else why}", flush=True)
    print(f"{len(chosen)} faults, {survived} not found by a test that must find them")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
