"""Runs test programs one after the other and closes with the counts.

Every program speaks TAP on stdout: `ok N - name`, `not ok N - name`, and `# SKIP reason` behind a name
that did not run. cmocka programs are told to by CMOCKA_MESSAGE_OUTPUT. A program that dies, prints no
test, exits non-zero without a failed test or prints a sanitizer's report, its own or that of a process
it started, counts as one failure.
"""

import argparse
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))

import sanitizer

LINE = re.compile(r"^(not )?ok\b\s*(\d+)?\s*(?:-\s*)?(.*)$")
TIMEOUT_S = 540
if os.path.basename(os.environ.get("ATTND_BUILD", "")) in ("asan", "tsan"):
    TIMEOUT_S *= 5  # up to twenty times slower where nothing is vectorised, on a machine of two cores


def command(path):
    if path.endswith(".py"):
        return [sys.executable, path]
    if path.endswith(".sh"):
        return ["bash", path]
    return [path]


def run(path):
    """Runs one program: (passed, failed, [(name, reason skipped)], text)."""
    env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", PYTHONUNBUFFERED="1")
    try:
        done = subprocess.run(command(path), env=env, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text, code = done.stdout.decode("utf-8", "replace"), done.returncode
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode("utf-8", "replace")
        code = f"nothing after {TIMEOUT_S} s"
    passed, failed, skipped = 0, 0, []
    for line in text.splitlines():
        match = LINE.match(line)
        if not match:
            continue
        name, _, reason = match.group(3).partition("# SKIP")
        if "# SKIP" in match.group(3):
            skipped.append((name.strip(" -"), reason.strip()))
        elif match.group(1):
            failed += 1
        else:
            passed += 1
    if (code != 0 and not failed) or not (passed or failed or skipped):
        failed += 1
        text += f"\n{path}: ended with {code} and no failed test\n"
    report = sanitizer.first_report(text)
    if report and not failed:
        failed += 1
        text += f"\n{path}: a sanitizer's report and no failed test: {report}\n"
    return passed, failed, skipped, text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="part of a program's name")
    parser.add_argument("programs", nargs="*")
    args = parser.parse_args()
    total = [0, 0, 0]
    for path in args.programs:
        if args.only not in path:
            continue
        begin = time.monotonic()
        passed, failed, skipped, text = run(path)
        name = os.path.basename(path)
        print(f"  {'FAIL' if failed else 'ok':5}{name:40} {passed:4} passed {failed:3} failed "
              f"{len(skipped):3} skipped {time.monotonic() - begin:7.1f} s", flush=True)
        for test, reason in skipped:
            print(f"        skipped: {test}: {reason or 'no reason given'}")
        if failed:
            print(text, flush=True)
        for i, n in enumerate((passed, failed, len(skipped))):
            total[i] += n
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped", flush=True)
    return 1 if total[1] or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main())
