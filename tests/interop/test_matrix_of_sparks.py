"""The cases of `make interop-matrix`, and which results of them count; the cases themselves take other Sparks."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from statekeeper.statestore.format.sparks import Spark
from tests.interop.sparks import results
from tests.interop.sparks.cases import Kind, all_cases
from tests.interop.sparks.remote import MINORS
from tests.interop.sparks.results import Result
from tests.support.native import OPERATORS

CASES = list(all_cases())


def test_every_operator_continues_on_every_spark_and_structure() -> None:
    restarts = {(case.group.operator, case.group.structure, case.to) for case in CASES if case.kind is Kind.RESTART}
    assert restarts == {
        (name, structure, minor)
        for name, operator in OPERATORS.items()
        for structure, minor in itertools.product("12", MINORS)
        if operator.runs_on(minor, structure) and (structure == "1" or Spark(minor).knows_v2)
    }


def test_every_upgrade_between_sparks_is_tested() -> None:
    upgrades = {(case.group.minor, case.to) for case in CASES if case.kind is Kind.UPGRADE}
    assert upgrades == set(itertools.combinations(MINORS, 2))


def test_each_case_has_a_unique_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_results_of_other_code_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed, failed = CASES[0], CASES[1]
    results.keep(tmp_path, Result(passed, None, 1.0, ("4.2.0", "4.2.0")))
    results.keep(tmp_path, Result(failed, "AssertionError", 1.0, ("4.2.0", "4.2.0")))
    assert list(results.passed(tmp_path)) == [passed.name]
    assert [result.why for result in results.of(tmp_path, CASES)] == [None, "AssertionError"]
    monkeypatch.setattr(results, "code", lambda: "another")
    assert results.of(tmp_path, CASES) == []
