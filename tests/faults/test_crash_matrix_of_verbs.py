"""The crash matrix of maintenance: each verb that writes dies at its requests.

After a crash at any request, the checkpoint loads what it loaded, or no query starts on it until a rewrite is completed. A
second run completes the verb, and if it can be reversed, its undo restores the files.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from statekeeper.statestore.maintenance import verbs as package
from statekeeper.statestore.maintenance.verbs import contract
from statekeeper.statestore.maintenance.verbs.start_drill import StartDrill
from tests.support.crashes import Crashing, Place
from tests.support.crashes.copies import COPIES
from tests.support.crashes.rewrites import REWRITES
from tests.support.crashes.rollback import ROLLBACK
from tests.support.crashes.upkeep import UPKEEP

VERBS: dict[str, type[Crashing]] = {**UPKEEP, **COPIES, **ROLLBACK, **REWRITES}
"""The name of a verb with its base, as in the ids of the tests -> how it crashes."""
FEWEST_KINDS = 8

Made = Callable[[str, str], Crashing]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Made:
    """Returns a verb with its base in a place. Each is made once."""
    places: dict[str, Place] = {}
    known: dict[tuple[str, str], Crashing] = {}

    def find(verb: str, where: str) -> Crashing:
        if where not in places:
            server = request.getfixturevalue("s3_server") if where == "s3" else None
            places[where] = Place(tmp_path_factory.mktemp(where), server)
        if (verb, where) not in known:
            known[verb, where] = VERBS[verb](places[where])
        return known[verb, where]

    return find


def matrix() -> Iterator[Any]:
    """Yield verb, place and share of the cases."""
    for name, kind in VERBS.items():
        for where, share in (("disk", "some"), ("disk", "all"), ("s3", "some"), ("s3", "all")):
            if where == "s3" and share == "some" and not kind.in_a_bucket:
                continue
            marks = [pytest.mark.timeout(3600)]
            if share == "all" or kind.is_slow:
                marks.append(pytest.mark.slow)
            yield pytest.param(name, where, share, id=f"{name}, {share} on {where}", marks=marks)


@pytest.mark.parametrize(("verb", "where", "share"), list(matrix()))
def test_after_a_crash_at_any_request_of_a_verb_the_checkpoint_loads_and_a_second_run_completes_or_reverses_it(
    verb: str, where: str, share: str, made: Made, record_property: Callable[[str, object], None]
) -> None:
    crashing = made(verb, where)
    assert len(crashing.cases) >= crashing.fewest
    cases = crashing.some(turn=list(VERBS).index(verb))
    assert crashing.every or len(cases) >= FEWEST_KINDS
    if where == "s3":
        cases = crashing.all_in_a_bucket(cases) if share == "all" else crashing.some_in_a_bucket(cases)
    elif share == "all":
        cases = crashing.cases
    plays = [
        (case, back)
        for number, case in enumerate(cases)
        for back in ([False, True] if share == "all" and crashing.is_reversible else [number % 2 == 1])
    ]
    for case, back in plays:
        crashing.play(case, back=back)
    crashing.check_run(cases)
    record_property("crash_matrix_cases", len(plays))
    print(f"{len(plays)} cases of {len(crashing.cases)}")


def test_each_verb_that_writes_is_in_the_matrix() -> None:
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    of_product = {
        kind
        for kind in _below(contract.Verb)
        if not inspect.isabstract(kind) and kind.__module__.startswith(package.__name__)
    }
    # It writes a clone, which is in the matrix, and a record of the history.
    assert {kind.verb for kind in VERBS.values()} == of_product - {StartDrill}


def _below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)
