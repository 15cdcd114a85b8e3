"""`statekeeper report`: the page has the health, the findings and the drills, and needs nothing but itself."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import NotACheckpoint
from statekeeper.statestore.maintenance.verbs.html_page import Section, page
from statekeeper.statestore.storage import open_storage
from tests.support import planted
from tests.support.clocks import SleeplessClock
from tests.support.commands import run
from tests.support.drills import drilled
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
