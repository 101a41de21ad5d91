"""TAP for Python tests: a test is a function whose name is the sentence it proves.

@tap.test
def a_thing_holds():
    tap.equal(1 + 1, 2)

tap.main()
"""

import sys
import time
import traceback

_tests = []


class Skip(Exception):
    """Raised by a test that cannot run here; the text is the reason."""


def test(function):
    """Marks a test; tests run in the order of their marks."""
    _tests.append(function)
    return function


def main():
    """Runs the tests that are marked and ends the process: 1 when one failed."""
    print(f"1..{len(_tests)}")
    failed = 0
    for number, function in enumerate(_tests, 1):
        name = function.__name__.replace("_", " ")
        try:
            function()
            print(f"ok {number} - {name}")
        except Skip as reason:
            print(f"ok {number} - {name} # SKIP {reason}")
        except Exception:
            failed += 1
            print(f"not ok {number} - {name}")
            for line in traceback.format_exc().splitlines():
                print(f"# {line}")
        sys.stdout.flush()
    sys.exit(1 if failed else 0)


def raises(kind, function, *args, **kwargs):
    """What function raises, which must be a kind; everything else fails the test."""
    try:
        result = function(*args, **kwargs)
    except kind as wrong:
        return wrong
    raise AssertionError(f"{kind.__name__} expected, {result!r} came back")


def equal(got, wanted):
    assert got == wanted, f"\n  got    {got!r}\n  wanted {wanted!r}"


def until(condition, what, seconds=10.0):
    """Waits until condition() is true; its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"not within {seconds} s: {what}")
