"""test_sanitizer.py: what a sanitizer prints is found, what a daemon prints is not."""

import os
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))

import sanitizer
import tap

REPORTS = (
    "==23712==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000005010",
    "==7==ERROR: LeakSanitizer: detected memory leaks",
    "AddressSanitizer:DEADLYSIGNAL",
    "daemon/engine.c:164:31: runtime error: signed integer overflow: 2147483647 + 1",
    "WARNING: ThreadSanitizer: data race (pid=25958)",
    "FATAL: ThreadSanitizer: unexpected memory mapping 0x5581c3b5c000-0x5581c3bfb000",
)

LOG = textwrap.dedent(
    """\
    info  ready  dir=/tmp/run version=0.1.0 backend=cpu threads=2
    info  refused  op=step request=26 session=29 field=n_layers " = 3: runtime error: no"
    error  kernel failed  request=7 kernel=decode_any_avx2
    """
)


@tap.test
def a_report_is_found_wherever_it_stands():
    for report in REPORTS:
        tap.equal(sanitizer.first_report(f"{LOG}{report}\n    #0 f a.c:1\n{LOG}"), report)
        tap.equal(sanitizer.first_report(report), report)


@tap.test
def a_log_has_none():
    tap.equal(sanitizer.first_report(LOG), None)
    tap.equal(sanitizer.first_report(""), None)


tap.main()
