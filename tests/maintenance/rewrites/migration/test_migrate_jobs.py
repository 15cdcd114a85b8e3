"""Migrations between state roots of jobs, without Spark: what the changed job takes over, and what is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import Ttl
from statekeeper.statestore.base.errors import HalfSwitched
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.migrate import Migrate
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.root.state_root import Ready, require_startable
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import timed_root
from tests.support.dumped import dumped
from tests.support.evolved_roots import commit, declared, old_rows
from tests.support.faulty_storage import SimulatedCrash
from tests.support.maintainers import MAINTAINER
from tests.support.migrations import contents
from tests.support.roots import opened, outer
from tests.support.switching import Dying
from tests.support.timed_root import OPERATOR, TimedJob
from tests.support.twins import clean, statekeeper

APPLY = ("--apply", "--confirm-stopped")
COUNTS = old_rows().drop_columns(["key"]).schema
SUMS = pa.schema([("sum", pa.int64())])
SAME = {"counts": COUNTS, "sums": SUMS}
TABLES = old_rows(*"abcdefgh"), pa.table({"key": [*"abc"], "sum": [1, 2, 3]})


@dataclass(frozen=True)
class Places:
    """The root of a job, a root of the changed job, and a destination."""

    folder: Path

    @cached_property
    def old(self) -> Storage:
        return open_storage(str(self.folder / "old"))

    @cached_property
    def blueprint(self) -> Storage:
        return open_storage(str(self.folder / "blueprint"))

    @cached_property
    def new(self) -> Storage:
        return open_storage(str(self.folder / "new"))

    @property
    def given(self) -> tuple[str, ...]:
        return "migrate", self.old.url, self.blueprint.url, self.new.url

    def plan(self, *options: str, exit_code: int = 0) -> dict[str, Any]:
        shown = statekeeper(*self.given, *options, "--output", "json", exit_code=exit_code)
        found: dict[str, Any] = json.loads(shown)
        return found

    def refusals(self, *options: str) -> str:
        return "\n".join(self.plan(*options, exit_code=3)["refusals"])

    def migrate(self, *options: str) -> str:
        before = contents(self.folder / "old"), contents(self.folder / "blueprint")
        told = statekeeper(*self.given, *options, *APPLY, "--scratch", str(self.folder))
        assert (contents(self.folder / "old"), contents(self.folder / "blueprint")) == before
        clean(self.new, self.folder)
        return told


@dataclass(frozen=True)
class Changed(Places):
    """`stores`: those of the changed job."""

    stores: Mapping[str, pa.Schema]

    def migrate(self, *options: str) -> str:
        """Migrate. The changed job can start on the new root, and changes no columns."""
        told = super().migrate(*options)
        wanted = declared(*self.stores.values(), names=[*self.stores])
        assert require_startable(self.new, wanted, committed=1, structure=Structure.V2) == ()
        assert isinstance(opened(self.new, wanted, 2).begin(2, outer(2)), Ready)
        self.new.delete([names.offsets(2)])
        return told

    def rows(self, store: str) -> dict[str, dict[str, Any]]:
        return rows_of(self.new, [*self.stores].index(store))


def rows_of(storage: Storage, operator: int) -> dict[str, dict[str, Any]]:
    """The values of an operator by key."""
    found = dumped(storage.url)
    return {one["key"]["key"]: one["value"] for one in found if one["store"].startswith(f"state/{operator}/")}


def changed(
    folder: Path, stores: Mapping[str, pa.Schema], *, of_old: Mapping[str, Any] | None = None, **bound: Any
) -> Changed:
    """The root of a job with two batches, and a root of the job with these stores. `of_old`, `bound`: of their bindings."""
    made = Changed(folder, stores)
    for batch in range(2):
        commit(made.old, folder / f"host-{batch}", batch, *TABLES, **(of_old or {}))
    few = [pa.table({"key": ["x"], **{one.name: _some(one) for one in schema}}) for schema in stores.values()]
    few = [
        table.cast(pa.schema([pa.field("key", pa.string()), *schema]))
        for table, schema in zip(few, stores.values(), strict=True)
    ]
    commit(made.blueprint, folder / "host-of-blueprint", 0, *few, names=[*stores], **bound)
    return made


def _some(field: pa.Field) -> pa.Array:
    return pa.array(["" if pa.types.is_string(field.type) else 0], field.type)


def test_a_job_without_changes_of_its_state_keeps_all_rows_and_its_owner(tmp_path: Path) -> None:
    made = changed(tmp_path, SAME)
    told = made.migrate("--partitions", "5")
    assert f"statekeeper claim {made.new.url} --checkpoint NEW_FOLDER --apply" in told
    assert f"statekeeper claim {made.old.url} --checkpoint NEW_FOLDER --query-id NEW_UUID" in told
    assert "once with this checkpoint and DeltaSink(..., continue_at_batch=2)" in told
    assert made.rows("counts") == rows_of(made.old, 0)
    assert made.rows("sums") == rows_of(made.old, 1)
    assert made.rows("counts")
    (new, _), (old, _) = read_binding(made.new), read_binding(made.old)
    assert (new.query_id, new.key_groups, new.partitions) == (old.query_id, old.key_groups, 5)
    assert new.root_id not in (old.root_id, read_binding(made.blueprint)[0].root_id)
    assert logs.parse_metadata(made.new.read(names.QUERY_METADATA), "") == new.root_id
    assert catalog.newest_batch(made.new) == 1


def test_the_old_job_goes_back_with_a_new_query_id(tmp_path: Path) -> None:
    made = changed(tmp_path, SAME)
    told = made.migrate()
    (command,) = (part for part in told.split("; ") if "Run: statekeeper claim" in part)
    arguments = shlex.split(command.partition("statekeeper ")[2])
    real = {"NEW_FOLDER": str(tmp_path / "checkpoint"), "NEW_UUID": "0badc0de-0000-4000-8000-00000000000a"}
    assert "continue_at_batch=2" in statekeeper(*(real.get(one, one) for one in arguments))
    assert read_binding(made.old)[0].query_id == real["NEW_UUID"]


def test_a_job_root_keeps_its_partitions_and_key_groups_whatever_the_blueprint_has(tmp_path: Path) -> None:
    made = changed(tmp_path, SAME, partitions=2, key_groups=16)
    assert "a partition has at least one" in made.refusals("--partitions", "17")
    assert made.plan()["partitions"] == 2


def test_value_columns_are_added_dropped_widened_and_reordered(tmp_path: Path) -> None:
    wider = pa.schema([("total", pa.float64()), pa.field("count", pa.int64(), nullable=False), ("seen", pa.int64())])
    currency = pa.field("currency", pa.string(), nullable=False)
    made = changed(tmp_path, {"counts": wider.append(currency), "sums": SUMS})
    refused = made.refusals()
    assert "the value columns note of the old state are not in the blueprint" in refused
    assert "the added value column currency cannot be null: add --default counts.currency=VALUE" in refused
    assert "cannot be null" in made.refusals("--allow-dropped-state", "--default", "counts.currency=null")
    made.migrate("--allow-dropped-state", "--default", "counts.currency=EUR")
    before = rows_of(made.old, 0)
    assert made.rows("counts") == {
        key: {"total": row["total"], "count": row["count"], "seen": None, "currency": "EUR"}
        for key, row in before.items()
    }
    assert made.rows("sums") == rows_of(made.old, 1)


def test_an_added_store_starts_empty_and_a_dropped_one_needs_the_permission(tmp_path: Path) -> None:
    made = changed(tmp_path, {"totals": SUMS, "counts": COUNTS})
    refused = made.refusals()
    assert "operator 1 (sums) of the old checkpoint is not in the blueprint" in refused
    assert "--map NEW=sums" in refused
    assert [one["rows"] for one in made.plan("--allow-dropped-state")["dropped"]] == [3]
    made.migrate("--allow-dropped-state")
    assert made.rows("totals") == {}
    assert made.rows("counts") == rows_of(made.old, 0)


def test_a_renamed_store_takes_the_rows_that_the_map_names(tmp_path: Path) -> None:
    made = changed(tmp_path, {"totals": pa.schema([("total", pa.int64())]), "counts": COUNTS})
    made.migrate("--map", "totals=sums", "--map", "totals.total=sum")
    assert made.rows("totals") == {key: {"total": row["sum"]} for key, row in rows_of(made.old, 1).items()}
    assert made.rows("counts") == rows_of(made.old, 0)


def test_a_column_that_may_contain_nulls_does_not_become_one_without_nulls(tmp_path: Path) -> None:
    made = changed(tmp_path, {"counts": COUNTS, "sums": pa.schema([pa.field("sum", pa.int64(), nullable=False)])})
    assert "the value column sum may contain nulls" in made.refusals()


def test_another_key_is_refused_with_the_way(tmp_path: Path) -> None:
    made = changed(tmp_path, SAME)
    binding = json.loads(made.blueprint.read(names.BINDING))
    binding["stores"][1]["key"] = binding["stores"][1]["key"].replace('"string"', '"long"')
    made.blueprint.replace(names.BINDING, json.dumps(binding).encode())
    refused = made.refusals()
    assert "pass the rows of the old state to it as `initial`" in refused
    assert "--map sums=none --allow-dropped-state" in refused


def test_a_native_checkpoint_is_no_blueprint_of_a_job(tmp_path: Path) -> None:
    made = changed(tmp_path, SAME)
    made.blueprint.delete([names.BINDING])
    assert "is the checkpoint of a native query" in made.refusals()


def test_a_blueprint_in_structure_v1_and_a_new_query_are_refused_with_the_way(tmp_path: Path) -> None:
    made = changed(tmp_path, SAME)
    assert "statekeeper claim" in made.refusals("--new-query")
    statekeeper("switch", made.blueprint.url, "--to", "v1", *APPLY, "--scratch", str(tmp_path))
    assert "statekeeper switch" in made.refusals()


def test_a_root_in_structure_v1_moves_to_v2(tmp_path: Path) -> None:
    made = changed(tmp_path, SAME)
    statekeeper("switch", made.old.url, "--to", "v1", *APPLY, "--scratch", str(tmp_path))
    made.migrate()
    assert made.rows("counts") == rows_of(made.old, 0)
    assert catalog.structure_at(made.new, 1) is Structure.V2


def test_a_blueprint_without_its_newest_offsets_is_refused(tmp_path: Path) -> None:
    made = changed(tmp_path, SAME)
    made.blueprint.delete([names.offsets(0)])
    assert "offsets/0 of file://" in made.refusals()


SEVERAL = {"inputs": ("orders", "payments"), "ticks": True}


def with_sources(storage: Storage, *positions: str) -> None:
    """Set the positions in the offset logs."""
    for entry in storage.list(names.OFFSETS):
        log = logs.parse_offsets(storage.read(entry.path), entry.path)
        storage.replace(entry.path, logs.encode_offsets(replace(log, sources=positions)))


def test_inputs_are_matched_by_name_and_ticks_are_a_source(tmp_path: Path) -> None:
    made = changed(tmp_path, SAME, of_old=SEVERAL, inputs=("orders", "returns", "zebras"))
    with_sources(made.old, '{"o":1}', '{"p":2}', '{"tick":3}')
    with_sources(made.blueprint, '{"o":0}', '{"r":0}', '{"z":0}')
    refused = made.refusals()
    assert "the blueprint has the sources returns, zebras" in refused
    assert "has payments, tick, which the blueprint does not have" in refused
    maps = ("--map", "source.returns=none", "--map", "source.zebras=payments")
    assert made.plan(*maps)["sources"] == {"0": "0", "1": None, "2": "1"}
    Places.migrate(made, *maps)
    found = logs.parse_offsets(made.new.read(names.offsets(1)), "")
    assert found.sources == ('{"o":1}', "-", '{"p":2}')
    assert read_binding(made.new)[0].inputs == ("orders", "returns", "zebras")
    assert not read_binding(made.new)[0].ticks


def test_a_job_that_reads_files_keeps_its_inputs_and_its_checkpoint(tmp_path: Path) -> None:
    made = changed(tmp_path, SAME, ticks=True)
    with_sources(made.old, '{"logOffset":4}')
    with_sources(made.blueprint, '{"logOffset":0}', '{"tick":3}')
    assert "the list of the files that it has read" in made.refusals()
    with_sources(made.blueprint, '{"logOffset":0}')
    binding = json.loads(made.blueprint.read(names.BINDING))
    made.blueprint.replace(names.BINDING, json.dumps({**binding, "ticks": False}).encode())
    told = made.migrate()
    assert "statekeeper clone CHECKPOINT NEW_FOLDER --confirm-stopped" in told
    assert "statekeeper clone CHECKPOINT NEW_FOLDER --new-query --confirm-stopped; statekeeper claim" in told


def test_an_interrupted_migration_lets_no_job_start_and_is_completed_or_removed(tmp_path: Path) -> None:
    made = changed(tmp_path, SAME)
    run = Run(
        storage=made.old,
        by=MAINTAINER,
        scratch=tmp_path,
        stopped=True,
        open_other=lambda url: Dying(open_storage(url)),
    )
    with pytest.raises(SimulatedCrash):
        perform(prepare(Migrate(blueprint=made.blueprint.url, destination=made.new.url), run))
    statekeeper("lease", made.new.url, "--break")
    with pytest.raises(HalfSwitched):
        opened(made.new, declared(*SAME.values()), 2)
    statekeeper("migrate", made.new.url, "--abort", "--confirm-stopped")
    assert [entry.path for entry in made.new.list("") if not entry.path.startswith(f"{names.CONTROL}/")] == []
    assert made.new.stat(names.BINDING) is None
    made.migrate()


# -- timers and a TTL --------------------------------------------------------------------------------------------------

BEFORE, AFTER = 9, 4
NOTED = pa.schema([*timed_root.STATE, ("note", pa.string())])


def _noted(update: Any, *arguments: Any) -> Update:
    held = arguments[1]
    found = update(arguments[0], held.drop_columns(["note"]), *arguments[2:])
    return replace(found, state=found.state.append_column("note", pa.array(["new"] * found.state.num_rows)))


WITH_NOTE = replace(
    OPERATOR,
    state=NOTED,
    update=lambda rows, state: _noted(timed_root.update, rows, state),
    on_timer=lambda keys, state, batch: _noted(timed_root.on_timer, keys, state, batch),
)
WITHOUT_TTL = replace(OPERATOR, ttl=None)


def timed(folder: Path, before: StatefulOperator, after: StatefulOperator) -> Places:
    """The root of a job with timers after some batches, and a root of the changed job."""
    made = Places(folder)
    TimedJob(folder=folder / "before", operator=before).grow(made.old, BEFORE)
    TimedJob(folder=folder / "of-blueprint", operator=after).grow(made.blueprint, 1)
    return made


def state(storage: Storage) -> Iterator[tuple[str, str]]:
    for one in dumped(storage.url):
        one["value"].pop("note", None)
        yield one["store"].split("/")[1], json.dumps([one["key"], one["value"]], sort_keys=True)


def test_a_job_with_timers_and_a_ttl_continues_like_a_twin_that_had_the_new_code_from_the_first_batch(
    tmp_path: Path,
) -> None:
    made = timed(tmp_path, OPERATOR, WITH_NOTE)
    made.migrate("--partitions", "3")
    found, twin = (TimedJob(folder=tmp_path / name, operator=WITH_NOTE) for name in ("found", "twin"))
    found.grow(made.new, AFTER)
    of_twin = open_storage(str(tmp_path / "of-twin"))
    twin.grow(of_twin, BEFORE + AFTER)
    expected = {batch: told for batch, told in twin.told().items() if batch >= BEFORE}
    assert all(expected.values())
    assert found.told() == expected
    assert sorted(state(made.new)) == sorted(state(of_twin))
    clean(made.new, tmp_path)


def test_the_index_of_a_ttl_goes_with_its_times(tmp_path: Path) -> None:
    made = timed(tmp_path, OPERATOR, WITHOUT_TTL)
    assert "the value columns expires_at of the old state" in made.refusals()
    made.migrate("--allow-dropped-state")
    TimedJob(folder=tmp_path / "found", operator=WITHOUT_TTL).grow(made.new, AFTER)
    # No key expires any more.
    assert {len(rows_of(made.new, 0))} == {timed_root.KEYS}


def test_rows_get_a_ttl_from_their_next_update(tmp_path: Path) -> None:
    made = timed(tmp_path, WITHOUT_TTL, OPERATOR)
    assert "add --default default.expires_at=null" in made.refusals()
    assert "times belong to the TTL" in made.refusals("--map", "default.expires_at=last_at")
    made.migrate("--default", "default.expires_at=null")
    assert {row["expires_at"] for row in rows_of(made.new, 0).values()} == {None}
    job = TimedJob(folder=tmp_path / "found", operator=OPERATOR)
    job.grow(made.new, 1)
    assert {row["expires_at"] is None for row in rows_of(made.new, 0).values()} == {True, False}
    job.grow(made.new, 2 * timed_root.PERIOD)
    assert None not in {row["expires_at"] for row in rows_of(made.new, 0).values()}
    clean(made.new, tmp_path)


def test_a_column_of_the_user_does_not_become_the_expiry_of_a_row(tmp_path: Path) -> None:
    named = pa.schema([*timed_root.STATE, ("expires_at", timed_root.STATE.field("last_at").type)])
    before = replace(
        WITHOUT_TTL,
        state=named,
        update=lambda rows, held: _with_expiry(timed_root.update(rows, held.drop_columns(["expires_at"]))),
        on_timer=lambda keys, held, batch: _with_expiry(
            timed_root.on_timer(keys, held.drop_columns(["expires_at"]), batch)
        ),
    )
    made = timed(tmp_path, before, replace(OPERATOR, ttl=Ttl("30m", by="event")))
    refused = made.refusals("--default", "default.expires_at=null")
    assert "the value columns expires_at of the old state" in refused


def _with_expiry(found: Update) -> Update:
    return replace(found, state=found.state.append_column("expires_at", found.state["last_at"]))


def test_timers_are_dropped_with_their_index_and_added_ones_start_empty(tmp_path: Path) -> None:
    plain = replace(WITHOUT_TTL, timers=None, on_timer=None, update=lambda rows, held: _untimed(rows, held))
    made = timed(tmp_path, OPERATOR, plain)
    assert "operator 1 (timers) of the old checkpoint is not in the blueprint" in made.refusals()
    made.migrate("--allow-dropped-state")
    back = Places(tmp_path / "back")
    given = ("migrate", made.new.url, made.old.url, back.new.url, "--default", "default.expires_at=null")
    assert "the present keys have no timer until the job sets one" in statekeeper(*given)
    statekeeper(*given, *APPLY)
    assert rows_of(back.new, 1) == {}
    assert rows_of(back.new, 0).keys() == rows_of(made.old, 0).keys()


def _untimed(rows: pa.Table, held: pa.Table) -> Update:
    return replace(timed_root.update(rows, held), timers=None)


def test_an_index_of_times_is_not_named(tmp_path: Path) -> None:
    made = timed(tmp_path, OPERATOR, WITH_NOTE)
    assert "an index of times goes with its store" in made.refusals("--map", "timers_due=timers_due")
    assert "an index of times goes with its store" in made.refusals("--map", "default=timers_due")


PLAIN = replace(WITHOUT_TTL, timers=None, on_timer=None, update=_untimed)


def test_timers_are_taken_from_timers_only_because_others_have_no_entries_in_their_index(tmp_path: Path) -> None:
    made = timed(tmp_path, PLAIN, WITHOUT_TTL)
    fires = ("--default", "timers.fires_at=2026-01-01 00:00:00")
    refused = made.refusals("--map", "timers=default", "--map", "default=none", *fires, "--allow-dropped-state")
    assert "names timers.fires_at, the times of the timers" in refused
    assert "they would never fire: start timers empty with --map timers=none" in refused


def test_a_store_of_the_old_job_that_is_only_called_timers_gives_no_timers(tmp_path: Path) -> None:
    made = timed(tmp_path, WITHOUT_TTL, WITHOUT_TTL)
    binding = json.loads(made.old.read(names.BINDING))
    for store in binding["stores"]:
        store["name"] = store["name"].replace("timers_due", "others")
    made.old.replace(names.BINDING, json.dumps(binding).encode())
    assert "timers of the old job has no timers" in made.refusals("--allow-dropped-state")
    assert "times of the timers" in made.refusals("--map", "timers.fires_at=none", "--default", "timers.fires_at=1")


def test_a_store_with_a_ttl_does_not_take_timers_with_their_index(tmp_path: Path) -> None:
    made = timed(tmp_path, OPERATOR, OPERATOR)
    options = ("--map", "default=timers", "--default", "default.expires_at=null", "--allow-dropped-state")
    assert "is no index for the times of default" in made.refusals(*options)


def test_carried_times_and_the_watermark_are_named_because_a_root_does_not_show_its_clocks(tmp_path: Path) -> None:
    made = timed(tmp_path, OPERATOR, WITH_NOTE)
    notes = "\n".join(made.plan()["notes"])
    assert "the rows of default, timers keep their times, which are not converted" in notes
    assert "the watermark stays at 2026-01-01T" in notes


def test_none_is_empty_also_if_a_store_is_called_none_and_a_store_may_be_called_source(tmp_path: Path) -> None:
    made = Changed(tmp_path, {"source": SUMS, "counts": COUNTS})
    commit(made.old, tmp_path / "host", 0, *TABLES, names=["counts", "none"])
    few = old_rows("x"), pa.table({"key": ["x"], "sum": [1]})
    commit(made.blueprint, tmp_path / "host-of-blueprint", 0, *few, names=["counts", "source"])
    plan = made.plan("--map", "source=none", "--allow-dropped-state")
    assert [one["operator"] for one in plan["dropped"]] == [1]
    made_new = pa.table({"key": ["x"], "total": [1]})
    other = Changed(tmp_path / "other", {})
    commit(other.old, tmp_path / "host-2", 0, *TABLES)
    commit(other.blueprint, tmp_path / "host-3", 0, few[0], made_new, names=["counts", "source"])
    assert "takes the state of operator 1" in statekeeper(
        *other.given, "--map", "source=sums", "--map", "source.total=sum"
    )
