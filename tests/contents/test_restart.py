"""What a start reads: the logs of a checkpoint, and the ways to a start after a batch."""

from __future__ import annotations

import pytest

from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents import restart
from statekeeper.statestore.contents import restart as starts
from statekeeper.statestore.contents.restart import Way
from statekeeper.statestore.format import names
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.storage import Entry

NATIVE, OWN = Origin.NATIVE, Origin.OWN


@pytest.mark.parametrize(
    ("batch", "newest", "begun", "lost", "expected"),
    [
        (7, 7, 7, {}, Way.AS_IS),
        (7, 7, 8, {}, Way.AS_IS),
        (7, 7, 7, {5}, Way.AS_IS),
        (7, 7, 8, {6}, Way.AS_IS),  # Spark reads 7 and 8
        (7, 7, 7, {6}, Way.REPAIR),
        (7, 7, 7, {7}, None),
        (7, 7, 7, {6, 7}, None),
        (7, 7, 8, {8}, Way.REWIND),
        (7, 7, 8, {7}, None),
        (7, 7, 8, {6, 8}, None),
        (7, 7, 9, {}, Way.REWIND),  # the commit of batch 8 is lost
        (6, 7, 7, {7}, Way.REWIND),
        (6, 7, 7, {5}, None),
        (0, 0, 0, {}, Way.AS_IS),
        (0, 0, 1, {1}, Way.REWIND),
    ],
)
def test_the_way_to_a_start_depends_on_the_offsets_that_spark_reads(
    batch: int, newest: int, begun: int, lost: set[int], expected: Way | None
) -> None:
    way = restart.way(batch, newest=newest, begun=begun, lost=set(lost), needed_from=[], origin=NATIVE)
    assert way is expected


def test_a_job_reads_only_its_newest_offsets() -> None:
    assert restart.way(7, newest=7, begun=7, lost={6}, needed_from=[], origin=OWN) is Way.AS_IS
    assert restart.way(7, newest=7, begun=7, lost={7}, needed_from=[], origin=OWN) is None


def test_lost_entries_of_a_source_allow_only_a_rewind_to_a_batch_before_them() -> None:
    ways = [restart.way(one, newest=7, begun=7, lost=(), needed_from=[6], origin=NATIVE) for one in (5, 6, 7)]
    assert ways == [Way.REWIND, None, None]
    # No batch has read the entry yet: a rewind to the newest batch moves it away.
    assert restart.way(7, newest=7, begun=7, lost=(), needed_from=[8], origin=NATIVE) is Way.REWIND


def test_only_the_root_of_a_job_needs_no_log_of_a_file_source() -> None:
    files = {path: Entry(path, 9, None) for path in (names.offsets(0), names.offsets(1), names.BINDING)}
    assert [*starts.lost_logs(1, files, Positions({"0": 1}), has_state=True)] == []
    del files[names.BINDING]
    [refusal] = starts.lost_logs(1, files, Positions({"0": 1}), has_state=True)
    assert refusal.path == "sources/0/0"


def _lost(*entries: str, read: int, empty: str = "") -> list[tuple[int, str]]:
    files = {path: Entry(path, 0 if name == empty else 9, None) for name in entries if (path := f"sources/0/{name}")}
    return [(one.first, one.problem.text) for one in restart.lost_entries(Positions({"0": read}), files)]


def test_a_source_needs_all_entries_since_its_newest_compaction() -> None:
    assert _lost("0", "1", "2", read=2) == []
    assert _lost("0", "2", read=2) == [(1, "is missing")]
    assert _lost("0", "1", "2", read=2, empty="1") == [(1, "is empty")]
    assert _lost("9.compact", "10", read=10) == []
    assert _lost("8", "9.compact", "10", read=10, empty="8") == [], "a compaction has the earlier entries"
    assert _lost("10", read=10) == [(0, "and all entries up to 9 are missing")]
    assert _lost(read=2) == [(0, "and all entries up to 2 are missing")]
    assert _lost("0", "1", read=4) == [(2, "and all entries up to 4 are missing")]
    assert _lost("0", "1", "2", read=1, empty="2") == [(2, "is empty")], (
        "Spark also reads entries that no batch has read"
    )


def test_the_log_of_another_kind_of_source_may_have_lost_its_oldest_entries() -> None:
    files = {path: Entry(path, 9, None) for path in ("sources/0/0", "sources/1/7", "sources/1/8")}
    assert list(restart.lost_entries(Positions({"0": 0}), files)) == []


def test_an_entry_counts_as_lost_if_its_content_is_damaged() -> None:
    files = {f"sources/0/{number}": Entry(f"sources/0/{number}", 9, None) for number in range(3)}

    def problem_of(entry: Entry) -> FileProblem | None:
        return FileProblem(entry.path, Flaw.CORRUPT, "was cut") if entry.path.endswith("1") else None

    [lost] = restart.lost_entries(Positions({"0": 2}), files, problem_of)
    assert (lost.first, str(lost.problem)) == (1, "sources/0/1: was cut")


def test_a_query_without_state_may_log_only_some_batches() -> None:
    files = {path: Entry(path, 9, None) for path in ("offsets/2", "offsets/4", "commits/2", "commits/4")}
    assert list(restart.lost_offsets(4, files, has_state=False)) == []
    assert [lost.path for lost in restart.lost_offsets(4, files)] == ["offsets/3"]
    files["commits/3"] = Entry("commits/3", 9, None)
    assert [lost.path for lost in restart.lost_offsets(4, files, has_state=False)] == ["offsets/3"]


def test_a_position_in_untrusted_bytes_costs_no_time() -> None:
    assert _lost("0", read=10**17) == [(1, f"and all entries up to {10**17} are missing")]
