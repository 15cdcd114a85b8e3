"""The files that restore a version: decisions for many random histories, compared with a model."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from statekeeper.statestore.checkpoint.lineage import (
    BaseKind,
    Lineage,
    LoadPlan,
    LocalCopy,
    NeedsHeader,
    NotLoadable,
    next_step,
    shortened,
)
from statekeeper.statestore.format.names import EMPTY, VersionId


def named(number: int, attempt: str = "a") -> VersionId:
    return VersionId(number, f"{attempt}{number}")


def chain(first: int, last: int, attempt: str = "a") -> Lineage:
    return tuple(named(number, attempt) for number in range(first, last + 1))


def decide(
    target: VersionId,
    *,
    snapshots: set[VersionId],
    local: LocalCopy | None,
    in_storage: dict[VersionId, Lineage],
) -> tuple[LoadPlan | NotLoadable | None, list[VersionId]]:
    """Answer questions until there is a decision (None: a header was asked for that is missing); and the questions."""
    headers: dict[VersionId, Lineage] = {}
    asked: list[VersionId] = []
    while True:
        step = next_step(target, snapshots=snapshots, local=local, headers=headers)
        if not isinstance(step, NeedsHeader):
            return step, asked
        assert step.version not in asked, "asked twice"
        asked.append(step.version)
        if step.version not in in_storage:
            return None, asked
        headers[step.version] = in_storage[step.version]


# --- by name ------------------------------------------------------------------------------------------------------


def test_the_empty_version_needs_no_files() -> None:
    step = next_step(EMPTY, snapshots={named(1)}, local=LocalCopy(named(4), chain(1, 4)), headers={})
    assert step == LoadPlan(BaseKind.NOTHING, EMPTY, (), ())


def test_a_local_copy_of_the_version_is_used_without_a_request() -> None:
    step = next_step(named(4), snapshots={named(3)}, local=LocalCopy(named(4), chain(1, 4)), headers={})
    assert step == LoadPlan(BaseKind.LOCAL, named(4), (), chain(3, 4))


def test_a_snapshot_of_the_version_starts_its_lineage() -> None:
    step = next_step(named(4), snapshots={named(2), named(4)}, local=None, headers={})
    assert step == LoadPlan(BaseKind.SNAPSHOT, named(4), (), (named(4),))


def test_a_local_ancestor_wins_over_a_newer_snapshot_and_the_lineage_starts_there() -> None:
    local = LocalCopy(named(3), chain(1, 3))
    step = next_step(named(5), snapshots={named(4)}, local=local, headers={named(5): chain(1, 4)})
    assert step == LoadPlan(BaseKind.LOCAL, named(3), chain(4, 5), chain(4, 5))
    head = next_step(named(5), snapshots={named(5)}, local=local, headers={named(5): chain(1, 4)})
    assert head == LoadPlan(BaseKind.LOCAL, named(3), chain(4, 5), chain(5, 5))


@pytest.mark.parametrize("local", [named(3, "b"), named(5, "b"), named(9)])
def test_a_copy_outside_the_lineage_is_no_base(local: VersionId) -> None:
    copy = LocalCopy(local, ())
    step = next_step(named(5), snapshots={named(2)}, local=copy, headers={named(5): chain(1, 4)})
    assert step == LoadPlan(BaseKind.SNAPSHOT, named(2), chain(3, 5), chain(2, 5))


def test_a_snapshot_outside_the_lineage_is_no_base() -> None:
    step = next_step(named(5), snapshots={named(4, "b")}, local=None, headers={named(5): chain(1, 4)})
    assert step == LoadPlan(BaseKind.NOTHING, EMPTY, chain(1, 5), chain(1, 5))


def test_if_the_presumed_snapshot_is_missing_its_changelog_is_read() -> None:
    headers = {named(9): chain(5, 8)}
    assert next_step(named(9), snapshots=set(), local=None, headers=headers) == NeedsHeader(named(5))
    headers[named(5)] = chain(2, 4)
    assert next_step(named(9), snapshots={named(2)}, local=None, headers=headers) == LoadPlan(
        BaseKind.SNAPSHOT, named(2), chain(3, 9), chain(2, 9)
    )


def test_a_changelog_without_predecessors_ends_the_trace() -> None:
    step = next_step(named(9), snapshots=set(), local=None, headers={named(9): ()})
    assert isinstance(step, NotLoadable)
    assert step.missing == named(9)


@pytest.mark.parametrize(
    "lineage", [(named(1), named(3)), (named(3), named(2), named(1)), (named(3), named(3)), (named(4),), chain(1, 2)]
)
def test_a_lineage_with_a_gap_is_rejected(lineage: Lineage) -> None:
    step = next_step(named(4), snapshots={named(1)}, local=None, headers={named(4): lineage})
    assert isinstance(step, NotLoadable)
    assert "jumps" in step.reason


def test_a_cyclic_lineage_does_not_loop_forever() -> None:
    """Each header leads back to the same version; no writer creates this."""
    decision, asked = decide(
        named(3), snapshots=set(), local=None, in_storage={named(3): (named(2),), named(2): (named(2),)}
    )
    assert isinstance(decision, NotLoadable)
    assert len(asked) <= 3


def test_the_lineage_is_cut_at_the_newest_snapshot_on_it() -> None:
    assert shortened(chain(1, 6), {named(2), named(4), named(5, "b")}) == chain(4, 6)
    assert shortened(chain(1, 6), {named(7)}) == chain(1, 6)
    assert shortened((), {named(1)}) == ()


# --- random trees of attempts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """Attempts with their parents, the lineages in their headers, the files that storage has, and the local copy."""

    parents: dict[VersionId, VersionId]
    headers: dict[VersionId, Lineage]
    snapshots: set[VersionId]
    local: LocalCopy | None
    target: VersionId

    def ancestors(self, version: VersionId) -> Lineage:
        """From version 1 to `version`, by the truth."""
        line: list[VersionId] = []
        while version != EMPTY:
            line.append(version)
            version = self.parents[version]
        return tuple(reversed(line))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    parents: dict[VersionId, VersionId] = {}
    attempts = [EMPTY]
    for number in range(draw(st.integers(1, 14))):
        # Mostly the newest: long branches, with dead attempts at their sides.
        back = draw(st.sampled_from([1, 1, 1, 1, 2, 3]))
        parent = attempts[-min(back, len(attempts))]
        version = VersionId(parent.version + 1, f"id{number}")
        parents[version] = parent
        attempts.append(version)
    some = st.sets(st.sampled_from(attempts[1:]))
    snapshots = draw(some)
    tree = Tree(parents, {}, set(), None, EMPTY)
    headers = {}
    for version in attempts[1:]:
        before = tree.ancestors(version)[:-1]
        # The writer knew some snapshots. Some of them may be deleted now, and others may be new.
        known = [index for index, item in enumerate(before) if item in snapshots and draw(st.booleans())]
        headers[version] = before[known[-1] :] if known else before
    missing = draw(some) if draw(st.booleans()) else set()
    headers = {version: lineage for version, lineage in headers.items() if version not in missing}
    left = snapshots - draw(some) if draw(st.booleans()) else snapshots
    local = draw(st.none() | st.sampled_from(attempts))
    copy = None if local is None else LocalCopy(local, tree.ancestors(local))
    return Tree(parents, headers, left, copy, draw(st.sampled_from(attempts)))


@given(trees())
@settings(max_examples=800)
def test_each_decision_equals_that_of_the_model(tree: Tree) -> None:
    decision, asked = decide(tree.target, snapshots=tree.snapshots, local=tree.local, in_storage=tree.headers)
    line = tree.ancestors(tree.target)
    local = tree.local.version if tree.local is not None and tree.local.version in (EMPTY, *line) else None
    assert set(asked) <= set(line)
    if decision is None:
        # It stopped at a missing changelog: rightly so when nothing from there on is a base.
        event("a header is missing")
        above = line[line.index(asked[-1]) :]
        assert asked[-1] not in tree.headers
        if tree.local is None or tree.local.version.version >= tree.target.version:
            assert not set(above) & tree.snapshots
        assert local is None or local not in above
        return
    assert isinstance(decision, LoadPlan)
    event(decision.base_kind.value)
    # It leads from the base to the target and over nothing else.
    whole = (decision.base, *decision.replay)
    assert whole[-1] == tree.target
    if decision.base == EMPTY:
        assert decision.base_kind is not BaseKind.SNAPSHOT
        assert decision.replay == line
    else:
        assert whole == line[line.index(decision.base) :]
    match decision.base_kind:
        case BaseKind.LOCAL:
            assert decision.base == local
        case BaseKind.SNAPSHOT:
            assert decision.base in tree.snapshots
            assert not set(decision.replay) & tree.snapshots
            assert local not in decision.replay
        case BaseKind.NOTHING:
            assert not set(line) & tree.snapshots
            assert local is None or tree.target == EMPTY
    # The lineage of the next version starts at a base, and not before the newest snapshot.
    assert decision.lineage == () or decision.lineage[-1] == tree.target
    if tree.target != EMPTY:
        carried = decision.lineage
        assert carried == line[len(line) - len(carried) :]
        newest = max((item for item in line if item in tree.snapshots), default=None)
        if newest is not None and newest in carried:
            assert carried[0] == newest
