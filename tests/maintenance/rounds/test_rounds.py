"""Rounds over a fleet of real checkpoints: a broken part stops only itself, and is told once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import CorruptFile, LocalStateLocked, UnknownFormatVersion
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rounds import rounds as module
from statekeeper.statestore.maintenance.rounds.memory import Memory
from statekeeper.statestore.maintenance.rounds.notices import REMINDER_SECONDS, Notice
from statekeeper.statestore.maintenance.rounds.rounds import SWEEP_SECONDS, Round, Rounds
from statekeeper.statestore.maintenance.rounds.unchanged import WHOLE_VISIT_SECONDS
from statekeeper.statestore.maintenance.rounds.visit import Status, Visit, visit
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.verbs import config
from statekeeper.statestore.maintenance.verbs.config import Configuration, Policies
from statekeeper.statestore.maintenance.verbs.contract import Run
from statekeeper.statestore.storage import Reads, Storage, open_storage
from statekeeper.statestore.storage.base import Entries
from statekeeper.statestore.storage.forwarding import ForwardingStorage
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
from tests.support.maintainers import maintainer

NAMES = ("clicks", "orders", "views")


@dataclass
class Fleet:
    """Three checkpoints with a configuration, and the rounds of one maintainer after the other."""

    folder: Path
    clock: SleeplessClock
    checkpoints: dict[str, Checkpoint]
    told: list[Notice] = field(default_factory=list)
    tell: Callable[[Notice], None] = lambda notice: None
    is_reachable: bool = True
    is_paging: bool = True
    lost_from: Path = Path()

    @property
    def file(self) -> Path:
        return self.folder / "fleet.toml"

    @property
    def state(self) -> Path:
        return self.folder / "state.json"

    def write(self, more: str = "", *, names: tuple[str, ...] = NAMES) -> None:
        roots = (f'[roots.{name}]\nurl = "{name}"\nteam = "team-{name}"\nowner = "{name}@x"\n' for name in names)
        self.file.write_text("[defaults.retention]\nversions = 2\ngrace = '1s'\n" + "".join(roots) + more)

    def round(self, *, everything: bool = False) -> Round:
        """A round of a new process."""
        with Memory.opened(self.state) as memory:
            return self.rounds(memory).round(everything=everything)

    def rounds(self, memory: Memory) -> Rounds:
        """The rounds of one process."""

        def tell(notice: Notice, _: Configuration) -> Notice | None:
            self.tell(notice)
            self.told.append(notice)
            if not self.is_paging:
                return replace(notice, only_pagerduty=True)
            return None if self.is_reachable else notice

        return Rounds(
            "fleet",
            lambda: config.load(self.file),
            lambda root, workers: Run(
                storage=open_storage(root.spec),
                policies=root.policies,
                by=maintainer(self.clock),
                scratch=self.folder,
                workers=workers,
            ),
            memory,
            clock=self.clock,
            people=lambda: config.people_of(self.file),
            command=("--config", str(self.file)),
            tell=tell,
        )

    def visited(self, **how: bool) -> dict[str, Visit]:
        return {one.name: one for one in self.round(**how).visits}

    def news(self) -> list[str]:
        """What was told since the last call, without the texts of the problems."""
        news = [f"{one.team}: {one.subject} {one.before.name} -> {one.now.name}" for one in self.told]
        self.told.clear()
        return sorted(news)

    def lost(self, name: str) -> Path:
        """Move a changelog that retained versions need."""
        of_store = self.folder.glob(f"{name}/state/0/1/*.changelog")
        self.lost_from = max(of_store, key=lambda one: int(re.split("[_.]", one.name)[0]))
        return self.lost_from.rename(self.folder / "lost")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    first = Checkpoint(open_storage(str(tmp_path / NAMES[0])), tmp_path / "job")
    first.grow(3)
    made = {NAMES[0]: first}
    for name in NAMES[1:]:
        made[name] = first.copied_to(open_storage(str(tmp_path / name)), tmp_path / f"job-{name}")
    found = Fleet(tmp_path, SleeplessClock(now_seconds=after_all_files(tmp_path)), made)
    found.write()
    return found


def after_all_files(folder: Path) -> float:
    """A time after that of all files, because retention spares newer ones, but before the leases of today expire."""
    return folder.stat().st_mtime + 120


def test_each_round_visits_the_queries_that_are_due(fleet: Fleet) -> None:
    assert set(fleet.visited()) == set(NAMES)
    again = fleet.round()
    assert (again.visits, set(again.not_due)) == ((), set(NAMES))
    fleet.checkpoints["orders"].grow(50)
    visited = fleet.visited()
    assert set(visited) == {"orders"}
    assert len(visited["orders"].taken.taken) == 2
    assert fleet.visited() == {}
    # The snapshots of this visit replace the files before the earlier ones.
    fleet.checkpoints["orders"].grow(50)
    visited = fleet.visited()
    assert set(visited) == {"orders"}
    assert sum(step.files for step in visited["orders"].deleted) > 50
    fleet.clock.sleep(SWEEP_SECONDS)
    assert set(fleet.visited()) == set(NAMES)
    assert set(fleet.visited(everything=True)) == set(NAMES)
    assert fleet.news() == []
    fleet.checkpoints["orders"].assert_right(fleet.folder / "fresh")


@pytest.mark.parametrize("in_batch_logs", [False, True])
@pytest.mark.parametrize("structure", Structure)
def test_a_visit_of_an_idle_query_writes_nothing(structure: Structure, in_batch_logs: bool, tmp_path: Path) -> None:
    """Also where a plan is not remembered, because the next pass gathers all stores anyway."""
    if structure is Structure.V1 and in_batch_logs:
        pytest.skip("a batch log needs structure V2")
    found = Checkpoint(
        open_storage(str(tmp_path / "idle")), tmp_path / "job", structure=structure, in_batch_logs=in_batch_logs
    )
    found.grow(60)
    fleet = Fleet(tmp_path, SleeplessClock(now_seconds=after_all_files(tmp_path)), {"idle": found})
    fleet.write(names=("idle",))
    for _ in range(2):
        fleet.visited(everything=True)
    requests = fleet.visited(everything=True)["idle"].requests
    assert (requests.create, requests.replace, requests.delete) == (0, 0, 0)


class _Growing(ForwardingStorage):
    """A storage of a query that commits batches: `grow` is called after the first listing of the folder `after`."""

    def __init__(self, inner: Storage, after: str, grow: Callable[[], None]) -> None:
        super().__init__(inner)
        self._after, self._grow = after, grow

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        found = super().list(prefix, hidden=hidden)
        if prefix == self._after:
            self._after = ""
            self._grow()
        return found


def _visit(folder: Path, storage: Storage) -> Visit:
    clock = SleeplessClock(now_seconds=after_all_files(folder))
    policies = Policies(retention=RetentionPolicy(versions=2, grace_seconds=1.0))
    return visit("query", Run(storage=storage, policies=policies, by=maintainer(clock), scratch=folder))


@pytest.mark.parametrize("folder", ["commits", "_statekeeper/log", "state", "offsets", "_statekeeper"])
@pytest.mark.parametrize("in_batch_logs", [False, True])
def test_batches_that_are_committed_during_a_visit_are_not_taken_for_lost_ones(
    in_batch_logs: bool, folder: str, tmp_path: Path
) -> None:
    found = Checkpoint(open_storage(str(tmp_path / "busy")), tmp_path / "job", in_batch_logs=in_batch_logs)
    found.grow(8)
    grown = list[int]()

    def grow() -> None:
        # More batches than the two that a running query may be ahead.
        found.grow(3)
        grown.append(1)

    seen = _visit(tmp_path, _Growing(found.storage, folder, grow))
    assert (seen.status, seen.errors, grown) == (Status.OK, (), [1])
    assert seen.after is not None
    assert not seen.after.findings
    found.assert_right(tmp_path / "fresh")


def test_a_damaged_query_stops_only_itself_and_its_team_is_told_once(fleet: Fleet) -> None:
    for checkpoint in fleet.checkpoints.values():
        checkpoint.grow(50)
    lost = fleet.lost("orders")
    visited = fleet.visited()
    assert [len(visited[name].taken.taken) for name in NAMES] == [2, 1, 2]
    assert [visited[name].status for name in NAMES] == [Status.OK, Status.ERROR, Status.OK]
    assert visited["orders"].deleted == ()
    notice = fleet.told[0]
    assert (notice.team, notice.owner) == ("team-orders", "orders@x")
    assert notice.text.startswith("state/0/1/53_")
    assert f"Next: statekeeper --config {fleet.file} audit orders" in notice.text
    assert fleet.news() == ["team-orders: orders OK -> ERROR"]
    # It is looked at again after a pause, and soon after its repair the team knows.
    assert fleet.visited() == {}
    fleet.clock.sleep(60)
    assert set(fleet.visited()) == {"orders"}
    assert fleet.news() == []
    missing = notice.text.partition(" ")[0]
    lost.rename(fleet.folder / "orders" / missing)
    fleet.clock.sleep(240)
    assert {name: one.status for name, one in fleet.visited().items()} == {"orders": Status.OK}
    assert fleet.news() == ["team-orders: orders ERROR -> OK"]


def test_a_team_is_reminded_each_day(fleet: Fleet) -> None:
    fleet.lost("orders")
    fleet.round()
    for _ in range(3):
        fleet.clock.sleep(REMINDER_SECONDS)
        fleet.round()
    assert fleet.news() == ["team-orders: orders ERROR -> ERROR"] * 3 + ["team-orders: orders OK -> ERROR"]


def test_a_notice_whose_sender_is_killed_is_sent_again_at_once_with_the_same_id(fleet: Fleet) -> None:
    """The killed process cannot know whether the notice was received. A receiver recognizes the repetition."""
    fleet.lost("orders")

    def killed(notice: Notice) -> None:
        fleet.told.append(notice)
        raise KeyboardInterrupt

    fleet.tell = killed
    with pytest.raises(KeyboardInterrupt):
        fleet.round()
    [first] = fleet.told
    fleet.tell = lambda notice: None
    for _ in range(2):
        fleet.clock.sleep(SWEEP_SECONDS)
        assert set(fleet.visited()) == set(NAMES)
    [_, again] = fleet.told
    assert again == replace(first, is_repeated=True)
    assert again.id == first.id
    assert "(repeated: the channel did not confirm the first one)" in str(again)


def test_a_query_that_can_be_read_again_is_visited_and_its_team_is_told_at_once(fleet: Fleet) -> None:
    fleet.round()
    root, hidden = fleet.folder / "orders", fleet.folder / "hidden"
    root.rename(hidden)
    root.symlink_to(root)
    for _ in range(2):
        absent = fleet.round().absent["orders"]
    assert absent.text.endswith(f"Next: statekeeper --config {fleet.file} config check orders")
    root.unlink()
    hidden.rename(root)
    fleet.clock.sleep(60)
    assert set(fleet.visited()) == {"orders"}
    assert fleet.news() == ["team-orders: orders ERROR -> OK", "team-orders: orders OK -> ERROR"]


def test_a_notice_that_no_channel_accepts_is_sent_again_at_the_next_look(fleet: Fleet) -> None:
    fleet.is_reachable = False
    lost, missing = fleet.lost("orders"), "team-orders: orders OK -> ERROR"
    fleet.round()
    fleet.clock.sleep(60)
    fleet.round()
    assert fleet.news() == [missing, missing]
    fleet.is_reachable = True
    fleet.clock.sleep(240)
    fleet.round()
    assert fleet.news() == [missing]
    fleet.is_reachable = False
    lost.rename(fleet.lost_from)
    for _ in range(2):
        fleet.clock.sleep(SWEEP_SECONDS)
        fleet.round()
    assert fleet.news() == ["team-orders: orders ERROR -> OK"] * 2


def test_a_notice_that_only_pagerduty_lacks_is_sent_to_it_at_each_look_by_each_process(fleet: Fleet) -> None:
    fleet.is_paging = False
    lost = fleet.lost("orders")
    fleet.round()
    fleet.clock.sleep(60)
    fleet.round()
    assert [(one.now.name, one.only_pagerduty) for one in fleet.told] == [("ERROR", False), ("ERROR", True)]
    lost.rename(fleet.lost_from)
    fleet.told.clear()
    fleet.clock.sleep(240)
    fleet.round()
    fleet.is_paging = True
    fleet.round()
    shown = [(one.now.name, one.only_pagerduty, one.is_repeated) for one in fleet.told]
    assert shown == [("ERROR", True, True), ("OK", False, False), ("OK", True, True)]
    assert json.loads(fleet.state.read_text())["told"] == {}


def test_a_parent_that_can_be_listed_again_is_not_said_to_be_gone(fleet: Fleet) -> None:
    folder = fleet.folder / "jobs"
    fleet.write('[parents.jobs]\nurl = "jobs"\n')
    folder.symlink_to(folder)
    for _ in range(2):
        fleet.round()
    assert fleet.news() == [": jobs OK -> ERROR"]
    folder.unlink()
    (folder / "new").mkdir(parents=True)
    fleet.round()
    assert [one.text for one in fleet.told] == ["it can be listed again"]


def test_a_defect_in_one_visit_does_not_stop_the_others(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.visit

    def broken(name: str, run: Run, *, reads: Reads) -> Visit:
        if name == "orders":
            raise ZeroDivisionError("by zero")
        return real(name, run, reads=reads)

    monkeypatch.setattr(module, "visit", broken)
    visited = fleet.visited()
    assert [visited[name].status for name in NAMES] == [Status.OK, Status.ERROR, Status.OK]
    assert "ZeroDivisionError: by zero" in visited["orders"].problems[0].text


def test_a_broken_configuration_is_told_and_the_newest_valid_one_stays(fleet: Fleet) -> None:
    with Memory.opened(None) as memory:
        told: list[Notice] = []
        rounds = Rounds(
            "fleet",
            lambda: config.load(fleet.file),
            lambda root, workers: Run(
                storage=open_storage(root.spec), by=maintainer(fleet.clock), scratch=fleet.folder, workers=workers
            ),
            memory,
            clock=fleet.clock,
            tell=lambda notice, _: told.append(notice),
        )
        rounds.round()
        fleet.write("[roots.orders")
        assert len(rounds.round(everything=True).visits) == 3
        fleet.write()
        rounds.round()
    assert [(one.subject, one.now) for one in told] == [("fleet", Status.ERROR), ("fleet", Status.OK)]
    assert str(fleet.file) in told[0].text


def test_an_invalid_file_is_told_to_its_team_also_if_no_valid_one_is_known(fleet: Fleet) -> None:
    fleet.write("[roots.orders\n")
    fleet.file.write_text(f'[defaults]\nteam = "a"\n{fleet.file.read_text()}')
    fleet.round()
    assert fleet.news() == ["a: fleet OK -> ERROR"]
    fleet.write()
    fleet.round()
    assert fleet.news() == ["a: fleet ERROR -> OK"], "the people who know of the problem"


def test_a_broken_file_or_root_is_told_to_its_owner_and_stops_no_other_query(fleet: Fleet) -> None:
    teams = fleet.folder / "teams"
    teams.mkdir()
    for name in NAMES:
        text = f'[defaults]\nteam = "{name}"\n[roots.{name}]\nurl = "../{name}"\n'
        (teams / f"{name}.toml").write_text(text)
    with Memory.opened(None) as memory:
        told: list[Notice] = []
        rounds = Rounds(
            "fleet",
            lambda: config.load(teams),
            lambda root, workers: Run(
                storage=open_storage(root.spec), by=maintainer(fleet.clock), scratch=fleet.folder, workers=workers
            ),
            memory,
            clock=fleet.clock,
            command=("--config", "teams"),
            tell=lambda notice, _: told.append(notice),
        )
        rounds.round()
        orders, views = teams / "orders.toml", teams / "views.toml"
        valid = orders.read_text()
        orders.write_text(valid + "[")
        views.write_text(views.read_text() + "[roots.typo]\nurl = 'typo'\nretension = 1\n")
        made = rounds.round(everything=True)
        assert len(made.visits) == 3, "the newest valid file stays in use"
        broken = [f"file {orders}", f"roots.typo in {views}"]
        assert sorted(made.absent) == broken
        assert all(one.text.endswith("Next: statekeeper --config teams config check") for one in made.absent.values())
        assert sorted((one.subject, one.team, one.now) for one in told) == [
            (broken[0], "orders", Status.ERROR),
            (broken[1], "views", Status.ERROR),
        ]
        told.clear()
        orders.write_text(valid)
        assert sorted(rounds.round().absent) == broken[1:]
        assert [(one.subject, one.team, one.now) for one in told] == [(broken[0], "orders", Status.OK)]
        assert set(memory.queries) == set(NAMES)
        told.clear()
        views.write_text(views.read_text().replace("retension = 1", ""))
        rounds.round()
        assert (broken[1], "views", Status.OK) in [(one.subject, one.team, one.now) for one in told]


def test_an_invalid_folder_and_a_broken_root_of_another_team_stop_nothing(fleet: Fleet) -> None:
    (fleet.folder / "below" / "a bad name" / "commits").mkdir(parents=True)
    fleet.write(f'[parents.below]\nurl = "{fleet.folder}/below"\nteam = "below"\n[roots.broken]\nurl = 7\n')
    made = fleet.round()
    assert {one.name for one in made.visits} == set(NAMES)
    found = made.absent["below.a bad name"]
    assert found.status is Status.ERROR
    assert "Rename the folder, or add a table [roots.NAME]" in found.text
    assert found.text.endswith(f"Next: statekeeper --config {fleet.file} config check")


def test_a_parent_without_a_folder_is_a_problem_and_an_error_if_it_had_queries(fleet: Fleet) -> None:
    below = f'[parents.below]\nurl = "{fleet.folder}/below/*/checkpoint"\nteam = "below"\nforget_after = "1h"\n'
    fleet.write(below)
    assert "there is no folder at" in fleet.round().absent["below"].text
    assert fleet.news() == ["below: below OK -> WARN"]
    place = fleet.folder / "below" / "views" / "checkpoint"
    fleet.checkpoints["views"].copied_to(open_storage(str(place)), fleet.folder / "job-below")
    assert "below.views" in fleet.visited()
    assert fleet.news() == ["below: below WARN -> OK"]
    shutil.rmtree(fleet.folder / "below" / "views")
    fleet.round()
    assert fleet.news() == ["below: below OK -> ERROR"]


def test_an_invalid_configuration_is_a_problem_of_the_round(fleet: Fleet) -> None:
    fleet.file.write_text("[roots")
    made = fleet.round()
    assert (made.visits, made.status, set(made.absent)) == ((), Status.ERROR, {"fleet"})


def test_outside_of_its_window_a_query_is_not_due(fleet: Fleet) -> None:
    minutes = int(fleet.clock.now_seconds() / 60 % 1440)
    start, end = ((minutes + later) % 1440 for later in (60, 120))
    window = f"{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"
    fleet.write(f'[policies."o*"]\nschedule = {{ window = "{window}" }}\n')
    first = fleet.round()
    assert sorted(one.name for one in first.visits) == ["clicks", "views"]
    assert first.not_due["orders"].startswith(f"outside of schedule.window {window} UTC")
    opening = fleet.clock.now_seconds() // 60 * 60 + 3600
    fleet.clock.sleep(SWEEP_SECONDS + 60)
    assert sorted(fleet.visited()) == sorted(NAMES)
    with Memory.opened(fleet.state) as memory:
        latest = {name: one.due_seconds for name, one in memory.queries.items()}
    assert latest["orders"] == pytest.approx(opening + 86_400)
    assert latest["clicks"] == pytest.approx(fleet.clock.now_seconds() + SWEEP_SECONDS)
    # A new schedule holds at once, also without a visit.
    fleet.write()
    assert fleet.visited() == {}
    with Memory.opened(fleet.state) as memory:
        assert memory.queries["orders"].due_seconds == latest["clicks"]


def test_a_configuration_without_roots_is_a_problem(fleet: Fleet) -> None:
    fleet.write(names=())
    fleet.round()
    assert fleet.news() == [": fleet OK -> ERROR"]


def test_a_query_that_is_expected_and_absent_is_a_problem(fleet: Fleet) -> None:
    fleet.write('[roots.typo]\nurl = "typo"\n')
    fleet.round()
    assert fleet.news() == [": typo OK -> WARN"]
    (fleet.folder / "orders").rename(fleet.folder / "gone")
    absent = fleet.round().absent["orders"]
    assert absent.status is Status.ERROR
    assert "deleted or moved" in absent.text
    assert fleet.news() == ["team-orders: orders OK -> ERROR"]


def test_a_query_that_the_configuration_no_longer_has_is_forgotten_and_its_team_told(fleet: Fleet) -> None:
    fleet.lost("orders")
    fleet.round()
    fleet.news()
    fleet.write(names=("clicks", "views"))
    fleet.round()
    assert fleet.news() == ["team-orders: orders ERROR -> OK"]
    with Memory.opened(fleet.state) as memory:
        assert set(memory.queries) == {"clicks", "views"}


def test_a_query_that_another_maintainer_holds_is_visited_soon_and_is_no_problem(fleet: Fleet) -> None:
    storage = fleet.checkpoints["orders"].storage
    fleet.checkpoints["orders"].grow(50)
    with lease.held(storage, "gc", run="another", holder="another", clock=fleet.clock):
        visited = fleet.visited()
    assert (visited["orders"].is_held, visited["orders"].status) == (True, Status.OK)
    assert fleet.news() == []
    fleet.clock.sleep(60)
    visited = fleet.visited()
    assert list(visited) == ["orders"]
    assert len(visited["orders"].taken.taken) == 2


@pytest.fixture
def idle(fleet: Fleet) -> Iterator[Callable[[], dict[str, Visit]]]:
    """Sweeps of one process over a fleet that it knows, and in which nothing happens."""
    for checkpoint in fleet.checkpoints.values():
        checkpoint.grow(50)
    with Memory.opened(fleet.state) as memory:
        rounds = fleet.rounds(memory)

        def swept() -> dict[str, Visit]:
            fleet.clock.sleep(SWEEP_SECONDS)
            return {one.name: one for one in rounds.round().visits}

        assert all(one.taken.taken for one in swept().values())
        assert not any(one.is_unchanged for one in swept().values())
        yield swept


def test_a_sweep_of_unchanged_queries_only_lists_their_files(
    fleet: Fleet, idle: Callable[[], dict[str, Visit]]
) -> None:
    visited = idle()
    assert set(visited) == set(NAMES)
    for one in visited.values():
        assert (one.is_unchanged, one.status) == (True, Status.OK)
        assert (one.requests.total, one.requests.list) == (1, 1)
    assert fleet.news() == []


def test_what_an_unchanged_query_shows_stays_as_its_last_visit_measured_it(
    fleet: Fleet, idle: Callable[[], dict[str, Visit]]
) -> None:
    def shown() -> dict[str, object]:
        queries = json.loads(fleet.state.read_text())["queries"]
        return {name: (one["figures"], one["status"], one["asked"]["versions"]) for name, one in queries.items()}

    before = shown()
    idle()
    assert shown() == before


@pytest.mark.parametrize("what", ["lost", "added", "replaced", "linked", "policy"])
def test_whatever_changes_in_a_query_is_noticed_by_the_next_sweep(
    fleet: Fleet, idle: Callable[[], dict[str, Visit]], what: str
) -> None:
    some = next((fleet.folder / "orders/state/0/1").glob("*.zip"))
    match what:
        case "lost":
            fleet.lost("orders")
        case "added":
            (some.parent / "another").write_bytes(b"?")
        case "replaced":
            some.write_bytes(b"?" + some.read_bytes()[1:])
        case "linked":
            (some.parent / "link").symlink_to(some)
        case "policy":
            fleet.write("[roots.orders.snapshot]\nchangelogs = 40\n")
    visited = idle()
    assert {name for name, one in visited.items() if not one.is_unchanged} == {"orders"}
    if what == "replaced":
        assert visited["orders"].status is not Status.OK


def test_an_unchanged_query_is_visited_as_a_whole_each_day(fleet: Fleet, idle: Callable[[], dict[str, Visit]]) -> None:
    hours = round(WHOLE_VISIT_SECONDS / SWEEP_SECONDS)
    unchanged = [all(one.is_unchanged for one in idle().values()) for _ in range(hours + 1)]
    assert unchanged.index(False) == hours - 1
    assert unchanged[hours:] == [True]


def test_a_query_with_files_in_the_grace_period_is_visited_as_a_whole(fleet: Fleet) -> None:
    fleet.file.write_text(fleet.file.read_text().replace("grace = '1s'", "grace = '3h'"))
    fleet.checkpoints["orders"].grow(50)
    with Memory.opened(fleet.state) as memory:
        rounds = fleet.rounds(memory)
        unchanged = []
        for _ in range(5):
            fleet.clock.sleep(SWEEP_SECONDS)
            unchanged.append(all(one.is_unchanged for one in rounds.round().visits))
    assert unchanged == [False, False, False, False, True]


def test_two_processes_do_not_share_a_memory_and_a_broken_one_is_rejected(fleet: Fleet) -> None:
    with Memory.opened(fleet.state), pytest.raises(LocalStateLocked, match="--state"), Memory.opened(fleet.state):
        pass
    fleet.state.write_text('{"format": 2}')
    with pytest.raises(UnknownFormatVersion), Memory.opened(fleet.state):
        pass
    fleet.state.write_text('{"format": 1, "queries": []')
    with pytest.raises(CorruptFile, match="delete the file"), Memory.opened(fleet.state):
        pass
