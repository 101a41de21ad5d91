"""soak.py: the long counts of what `make test` runs short, as one TAP program.

soak.py [PART]: only the tests whose name has that part.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

from support import Daemon

import tap

import flat
import fuzz
import kills
import order

LINGER_S = 0.5
LINGER = f"--session.linger={LINGER_S * 1000:.0f}ms"


def test(function):
    if len(sys.argv) < 2 or sys.argv[1] in function.__name__:
        tap.test(function)


@test
def order_is_kept_ten_thousand_times():
    with Daemon("--log.level=error") as daemon:
        order.chains(daemon, 10000)
        tap.equal(daemon.stop(), 0)


@test
def a_thousand_killed_clients_cost_nobody_a_bit_and_leave_nothing():
    with Daemon(LINGER, "--log.level=error", keeper=True) as daemon:
        stages = kills.kills(daemon, 1000, LINGER_S)
        print(f"# seen when killed: {stages}")
        tap.equal(daemon.counter("device_errors"), 0)
        tap.equal(daemon.log(), "")
        tap.equal(daemon.stop(), 0)


@test
def a_million_requests_leave_it_as_large_as_it_was():
    with Daemon("--log.level=error") as daemon:
        flat.requests(daemon, 1000000)
        tap.equal(daemon.stop(), 0)


@test
def a_hundred_thousand_connections_leave_it_as_large_as_it_was():
    """The connections of B148."""
    with Daemon("--log.level=error") as daemon:
        flat.churn(daemon, 100000)
        tap.equal(daemon.stop(), 0)


@test
def a_million_messages_that_nobody_would_send_are_answered():
    with Daemon(LINGER, "--log.level=error") as daemon:
        codes = fuzz.messages(daemon, 1000000)
        print(f"# answered with codes: {codes}")
        tap.equal(daemon.counter("device_errors"), 0)
        tap.equal(daemon.log(), "")
        tap.equal(daemon.stop(), 0)


tap.main()
