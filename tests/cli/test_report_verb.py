"""`statekeeper report`: the page has the health, the findings and the drills, and needs nothing but itself."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import NotACheckpoint
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records.history import FailedRun
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.html_page import Section, page
from statekeeper.statestore.maintenance.verbs.overview import Growth, overview
from statekeeper.statestore.maintenance.verbs.report import decimal
from statekeeper.statestore.storage import open_storage
from tests.support import planted
from tests.support.audits import audited
from tests.support.clocks import SleeplessClock
from tests.support.commands import run
from tests.support.drills import drilled
from tests.support.histories import DAY, a_run
from tests.support.keyed_roots import KeyedRoot
from tests.support.maintainers import maintainer
from tests.support.switching import take_snapshots

_VOID = {"meta"}


class Page(HTMLParser):
    """A page: its text, its tags, and the attributes that could load something. Each tag is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(path.read_text())
        assert self.open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with two snapshots of each store and two drills."""
    folder = tmp_path_factory.mktemp("made")
    root = KeyedRoot(open_storage(str(folder / "root")), folder / "hosts", partitions=2)
    for _ in range(2):
        root.grow(2)
        take_snapshots(root.storage, folder / "scratch")
    for _ in range(2):
        root.grow(1)
        drilled(root.storage, folder / "scratch")
    return folder / "root"


def test_the_page_says_whether_the_query_can_restart_how_long_it_takes_and_what_the_drills_measured(
    made: Path, tmp_path: Path
) -> None:
    done = run("report", made, "-o", tmp_path / "report.html")
    assert done.exit_code == 0, done.output
    text = Page(tmp_path / "report.html").text
    assert "All 4 stores have the files for a restart, with no finding. A restore of all stores" in text
    assert "predicted from drills, the newest of 20" in text
    assert "A drill has restored each store." in text
    assert "Restore seconds of a store, by drill" in text
    assert "SST files of snapshots" in text
    assert "Runs, the newest first" in text


def test_the_page_loads_nothing_and_runs_nothing(made: Path, tmp_path: Path) -> None:
    run("report", made, "-o", tmp_path / "report.html")
    found, body = Page(tmp_path / "report.html"), (tmp_path / "report.html").read_text()
    assert found.tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "form", "base"})
    assert found.attributes.isdisjoint({"src", "href", "srcset", "action", "onload", "onclick", "onerror"})
    assert re.findall(r"https?://|url\(|@import", body) == []
    assert "default-src 'none'" in body
    assert "prefers-color-scheme: dark" in body
    assert "@media print" in body
    assert 'name="viewport"' in body


def test_checkpoints_that_need_action_come_first_with_the_next_command(made: Path, tmp_path: Path) -> None:
    lost = tmp_path / "the lost one"
    shutil.copytree(made, lost)
    (changelog,) = (lost / "state" / "1" / "1").glob("6_*.changelog")
    changelog.unlink()
    done = run("report", made, lost, tmp_path / "nothing", "-o", tmp_path / "report.html")
    assert done.exit_code == 3
    found = Page(tmp_path / "report.html")
    assert "2 of 3 checkpoints need action." in found.text
    assert "The query cannot restart: 1 store of 4 cannot be restored, with 1 error." in found.text
    assert f"statekeeper rewind '{lost}' --to-batch 4" in found.text
    assert "This checkpoint could not be examined" in found.text
    order = [found.text.index(name) for name in (str(tmp_path / "nothing"), str(lost), str(made))]
    assert order[2] == max(order)


def test_a_finding_of_the_newest_drill_needs_action(made: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    shutil.copytree(made, wrong)
    storage = open_storage(str(wrong))
    first = drilled(storage, tmp_path / "scratch").drilled[0].action
    planted.in_snapshot(storage, first.store, first.facts.base, lambda rows: dict(list(rows.items())[1:]), tmp_path)
    # The history has seconds.
    later = maintainer(SleeplessClock(SystemClock().now_seconds() + 60))
    drilled(storage, tmp_path / "scratch", by=later)
    done = run("report", wrong, "-o", tmp_path / "report.html")
    assert done.exit_code == 3
    assert "The newest drill has 1 finding." in Page(tmp_path / "report.html").text


@pytest.fixture
def kept(made: Path, tmp_path: Path) -> Path:
    """The root with runs of a month: gc, and two changes of the state."""
    shutil.copytree(made, tmp_path / "kept")
    storage, now = open_storage(str(tmp_path / "kept")), SystemClock().now_seconds()
    size = sum(store.bytes for store in audited(storage).stores)
    for day in range(20, 0, -1):
        # It grows by a thousandth a day, and one size is an outlier.
        before = size - day * (size // 1000) if day != 7 else 50 * size
        plan = [{"head": 3, "stored_files": 9, "stored_bytes": before}]
        a_run(storage, "gc", now - day * DAY, plan=plan, outcome=[{"outcome": "done", "files": 5, "bytes": 10**9}])
    a_run(storage, "gc", now - 21 * DAY, plan=[{"head": 3}], outcome=[])
    a_run(storage, "rescale", now - 5 * DAY, plan=[{"rewrite": "rescale", "batch": 3, "partitions": 64}], outcome=[])
    for number in range(12):
        a_run(storage, "publish", now - 3 * DAY + number, plan=[{"batch": 4}], outcome=[])
    failed = FailedRun(failed="the lease is lost", code="lease_lost").encode()
    a_run(storage, "switch", now - 4 * DAY, plan=[{"to": "v2", "batch": 4}], outcome=[failed])
    return tmp_path / "kept"


def test_the_page_forecasts_the_size_says_how_and_a_single_outlier_does_not_change_it(
    kept: Path, tmp_path: Path
) -> None:
    assert run("report", kept, "-o", tmp_path / "report.html").exit_code == 0
    body, text = (tmp_path / "report.html").read_text(), Page(tmp_path / "report.html").text
    storage = open_storage(str(kept))
    growth = overview(storage, Policies(), clock=SystemClock()).growth
    size = growth.sizes[-1][1]
    assert len(growth.sizes) == 21
    assert growth.days == pytest.approx(20, abs=0.1)
    assert growth.bytes_per_day == pytest.approx(size // 1000, rel=0.02)
    assert growth.in_days(90) == pytest.approx(size * 1.09, rel=0.01)
    assert f"Forecast: {decimal(growth.in_days(30) or 0)} in 30 days" in text
    assert "Method: the median of the slopes between all pairs of 21 sizes of the last 20.0 days." in text
    assert "stroke-dasharray" in body


def test_without_sizes_of_two_days_the_growth_is_not_known(made: Path, tmp_path: Path) -> None:
    run("report", made, "-o", tmp_path / "report.html")
    assert "Not known: a forecast needs three sizes over two days" in Page(tmp_path / "report.html").text
    assert Growth(((0.0, 5), (DAY, 6), (1.5 * DAY, 7))).bytes_per_day is None
    shrinking = Growth(((0.0, 30), (DAY, 20), (2 * DAY, 10)))
    assert shrinking.bytes_per_day == -10
    assert shrinking.in_days(30) == 0


def test_the_page_says_what_a_month_costs_and_what_the_deletions_save_at_the_prices_of_the_configuration(
    kept: Path, tmp_path: Path
) -> None:
    configuration = tmp_path / "statekeeper.toml"
    configuration.write_text(f'[prices]\nper_gb_month = 0.05\n[roots.kept]\nurl = "{kept}"\n')
    run("--config", configuration, "report", "kept", "-o", tmp_path / "report.html")
    text = Page(tmp_path / "report.html").text
    assert "Saved by garbage collection: 1.00 dollars a month. The 21 runs of gc since 20" in text
    assert "deleted 100 files with 20.0 GB. This assumes that nothing else would have deleted them" in text
    assert "at 0.05 dollars for 10^9 bytes" in text
    assert "Requests of the query: not known." in text


def test_the_page_names_the_changes_of_the_state_and_the_target_of_the_restore(kept: Path, tmp_path: Path) -> None:
    configuration = tmp_path / "statekeeper.toml"
    configuration.write_text(f'[defaults.snapshot]\nrestore_target = "90s"\n[roots.kept]\nurl = "{kept}"\n')
    run("--config", configuration, "report", "kept", "-o", tmp_path / "report.html")
    text = Page(tmp_path / "report.html").text
    changes = text.partition("Changes of the state, the newest first")[2].partition("Runs, the newest first")[0]
    assert "switch 4 to v2 the lease is lost" in changes
    assert "rescale 3 rewrite rescale, partitions 64 done" in changes
    assert changes.index("switch") < changes.index("rescale")
    assert "gc" not in changes
    assert "publish" not in changes
    assert "target 90.00 s" in text
    assert "The predicted restore is within the target of the configuration." in text


def test_the_page_draws_the_lineages_of_the_worst_stores_and_what_does_not_load(made: Path, tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    shutil.copytree(made, lost)
    (changelog,) = (lost / "state" / "1" / "1").glob("6_*.changelog")
    changelog.unlink()
    run("report", made, lost, "-o", tmp_path / "report.html")
    body, text = (tmp_path / "report.html").read_text(), Page(tmp_path / "report.html").text
    assert "state/1/1: does not load" in text
    assert "loads from the snapshot of batch 3 and 2 changelogs" in text
    pictures = re.findall(r'aria-label="lineage of ([^"]+)">(.*?)</svg>', body)
    assert pictures[0][0] == "state/1/1"
    assert "fill: var(--bad)" in pictures[0][1]
    assert all("--bad" not in drawn for name, drawn in pictures if name != "state/1/1")
    whole = pictures[-1][1]
    assert whole.count("<circle") == 6
    assert len(re.findall(r"<circle[^>]*fill: var\(--two\)", whole)) == 2


def test_the_keys_are_on_the_page_only_if_they_are_asked_for_and_a_lost_store_hides_only_them(
    made: Path, tmp_path: Path
) -> None:
    run("report", made, "-o", tmp_path / "report.html")
    assert "Largest keys" not in Page(tmp_path / "report.html").text
    lost = tmp_path / "lost"
    shutil.copytree(made, lost)
    (changelog,) = (lost / "state" / "1" / "1").glob("6_*.changelog")
    changelog.unlink()
    done = run("report", made, lost, "--top", "2", "--scratch", tmp_path, "-o", tmp_path / "report.html")
    assert done.exit_code == 3, done.output
    text = Page(tmp_path / "report.html").text
    assert "Largest keys" in text
    assert '"key": "counter"' in text.partition("Most changed keys")[2]
    assert "Keys Not known: " in text
    assert "The query cannot restart: 1 store of 4" in text


def test_names_from_a_checkpoint_are_text(tmp_path: Path) -> None:
    forged = "<script>alert(1)</script>&\u202e"
    error = NotACheckpoint(f"is {forged}, password=hunter2", path=forged)
    (tmp_path / "report.html").write_text(page([Section(forged, error)], now_seconds=0.0))
    found = Page(tmp_path / "report.html")
    assert "script" not in found.tags
    assert "<script>alert(1)</script>&\\u202e" in found.text
    assert "hunter2" not in found.text
    assert "password=***" in found.text


def test_nothing_is_written_for_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("report", "--all").exit_code != 0
    assert run("report").exit_code == 2
    assert not (tmp_path / "statekeeper-report.html").exists()


def test_of_a_change_with_a_huge_plan_only_the_first_and_the_last_lines_are_read(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "kept")
    storage, now = open_storage(str(tmp_path / "kept")), SystemClock().now_seconds()
    moved = [{"aside": f"state/0/0/{number}.zip", "reason": "after the batch"} for number in range(20_000)]
    failed = FailedRun(failed="the lease is lost", code="lease_lost").encode()
    a_run(storage, "rewind", now - DAY, plan=[{"to": "batch", "batch": 3}, *moved], outcome=[*moved, failed])
    size = sum(entry.size_bytes for entry in storage.list(names.HISTORY) if "-rewind-" in entry.path)
    before = storage.requests.snapshot()
    [change] = overview(storage, Policies(), clock=SystemClock()).changes
    # The list of runs reads the outcome.
    assert storage.requests.since(before).bytes_read < size * 0.6
    assert (change.verb, change.outcome, change.batch) == ("rewind", "failed", 3)
    assert (change.details, change.error) == ("to batch", "the lease is lost")
