"""test_fields.py: a share of tests/fuzz/fields.py: requests with one field changed are refused by that
field's name and change nothing, or are done right. `make fuzz T=fields` tries every change.
"""

import os
import sys

from support import ROOT, Daemon

import tap

sys.path.insert(0, os.path.join(ROOT, "tests", "fuzz"))

import fields

EVERY = 5


@tap.test
def a_changed_field_is_named_or_done_right():
    with Daemon("--log.level=error", "--session.max_models=4") as daemon:
        n, broken = fields.run(daemon, EVERY)
        assert daemon.process.poll() is None
    assert n > 800, n
    assert not broken, "\n" + "\n".join(broken)


tap.main()
