"""test_mutants.py: the list of planted faults fits the source, and a list that does not is told so."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
sys.path.insert(0, os.path.join(ROOT, "tests", "mutants"))

import mutants
import tap


@tap.test
def every_fault_has_one_place_and_a_test():
    tap.equal(mutants.problems(ROOT), [])
    tap.equal(len(mutants.FAULTS) >= 24, True)


@tap.test
def a_list_that_does_not_fit_is_told_so():
    whole = mutants.FAULTS
    one = whole[0]
    mutants.FAULTS = [
        one._replace(name="gone", old="no such text"),
        one._replace(name="twice", old="float"),
        one._replace(name="same", new=one.old),
        one._replace(name="untested", tests=[]),
        one._replace(name="lost", tests=["unit/test_of_nothing"]),
        one,
        one,
    ]
    said = "\n".join(mutants.problems(ROOT))
    mutants.FAULTS = whole
    for part in (
        "gone: its old text stands 0 times",
        "twice: its old text stands",
        "same: nothing changes",
        "untested: no test must find it",
        "lost: there is no tests/unit/test_of_nothing.c",
        f"{one.name}: two faults have this name",
    ):
        tap.equal(part in said, True)


tap.main()
