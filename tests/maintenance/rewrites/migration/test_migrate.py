"""Migrations between checkpoints that Spark wrote, without Spark: what is taken over, and what is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.migrate import Migrate
from statekeeper.statestore.storage import Created, open_storage
from statekeeper.statestore.storage.forwarding import ForwardingStorage
from tests.support.blueprints import as_of_spark_3_5, change_schema, column, replace, set_conf, set_sources, with_values
from tests.support.dumped import dumped
from tests.support.faulty_storage import SimulatedCrash
from tests.support.maintainers import MAINTAINER
from tests.support.migrations import contents
from tests.support.placed_rows import placed_rows
from tests.support.rescales import all_rows
from tests.support.switching import Dying
from tests.support.twins import clean, statekeeper
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"
COUNT, SUM = column("count", "long", nullable=False), column("sum", "long")
MEAN = column("sum", "double"), column("count", "long")
APPLY = ("--apply", "--confirm-stopped")


class Places:
    """An old checkpoint, a blueprint and a destination."""

    def __init__(self, folder: Path, old: str, blueprint: str) -> None:
        self.folder = folder
        self.old = unpacked(FIXTURES / f"spark-4.2.0-{old}.zip", folder / "old")
        self.blueprint = unpacked(FIXTURES / f"spark-4.2.0-{blueprint}.zip", folder / "blueprint")
        self.new = folder / "new"

    @property
    def given(self) -> tuple[str, str, str]:
        return str(self.old), str(self.blueprint), str(self.new)

    def plan(self, *options: str, exit_code: int = 0) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(
            statekeeper("migrate", *self.given, *options, "--output", "json", exit_code=exit_code)
        )
        assert not (self.new / names.COMMITS).exists()
        return shown

    def refusals(self, *options: str) -> str:
        return "\n".join(self.plan(*options, exit_code=3)["refusals"])

    def migrate(self, *options: str) -> str:
        before = contents(self.old), contents(self.blueprint)
        told = statekeeper("migrate", *self.given, *options, *APPLY, "--scratch", str(self.folder))
        assert (contents(self.old), contents(self.blueprint)) == before
        clean(open_storage(str(self.new)), self.folder)
        return told


Make = Callable[..., Places]


@pytest.fixture
def places(tmp_path: Path) -> Make:
    """Returns an old checkpoint and a blueprint, by default of one query."""
    return lambda old="v1-aggregation", blueprint=None: Places(tmp_path, old, blueprint or old)


def values_of(checkpoint: Path) -> dict[str, dict[str, Any]]:
    """The values of an aggregation by key."""
    return {row["key"]["k"]: row["value"] for row in dumped(str(checkpoint))}


@pytest.mark.parametrize(
    ("old", "blueprint"),
    [
        ("v1-aggregation", "v2-aggregation"),
        ("v2-aggregation", "v1-aggregation"),
        ("hdfs-aggregation-checksums", "v2-a-zip-for-each-version"),
        ("v1-aggregation", "hdfs-aggregation"),
        ("hdfs-sessions-snappy", "v2-sessions-snappy"),
        ("v1-join-2", "hdfs-join-2"),
        ("v1-two-operators-zstd", "hdfs-two-operators"),
        ("v1-transformWithState-checksums-and-commas", "v2-transformWithState"),
        ("v2-limit", "hdfs-limit"),
    ],
)
def test_the_rows_of_a_query_move_to_the_provider_structure_and_encoding_of_the_blueprint(
    old: str, blueprint: str, places: Make
) -> None:
    made = places(old, blueprint)
    made.migrate("--partitions", "3")
    assert all_rows(made.new) == all_rows(made.old)
    if "hdfs" not in blueprint:
        assert +placed_rows(made.new, made.folder / "placed").elsewhere == {}


def test_the_new_checkpoint_has_the_position_of_the_old_one_and_the_settings_of_the_blueprint(places: Make) -> None:
    made = places("v1-aggregation", "v2-aggregation")
    set_conf(made.blueprint, spark__sql__session__example="7")
    made.migrate("--partitions", "5")
    new, old = open_storage(str(made.new)), open_storage(str(made.old))
    batch = catalog.newest_batch(old)
    assert batch is not None
    assert catalog.newest_batch(new) == batch
    assert catalog.structure_at(new, batch) is Structure.V2
    for one in (batch - 1, batch):
        found, before = (logs.parse_offsets(root.read(names.offsets(one)), "") for root in (new, old))
        assert (found.watermark_ms, found.timestamp_ms, found.sources) == (
            before.watermark_ms,
            before.timestamp_ms,
            before.sources,
        )
        assert found.conf["spark.sql.session.example"] == "7"
        assert found.conf["spark.sql.shuffle.partitions"] == "5"
    assert new.read(names.QUERY_METADATA) == old.read(names.QUERY_METADATA)
    assert new.read(f"{names.SOURCES}/0/{batch}") == old.read(f"{names.SOURCES}/0/{batch}")


def test_another_time_mode_of_transform_with_state_is_refused(places: Make) -> None:
    made = places("v2-transformWithState")
    (path,) = (one for one in (made.blueprint / "state/0/_metadata/v2").iterdir() if one.name.isdecimal())
    replace(path, path.read_bytes().replace(b"ProcessingTime", b"EventTime"))
    assert "has the time mode EventTime in the blueprint and ProcessingTime in the old query" in made.refusals()


def test_the_way_back_gives_the_old_query_a_new_id_because_delta_knows_its_batches(places: Make) -> None:
    made = places()
    told = made.migrate()
    assert "rows of one of them would be lost" in told
    assert "a Delta table knows batch 3 of the present id, also after RESTORE" in told
    assert f"statekeeper clone {made.old} NEW_FOLDER --new-query --confirm-stopped" in told.replace("file://", "")
    back = made.folder / "back"
    statekeeper("clone", str(made.old), str(back), "--new-query", "--confirm-stopped")
    assert all_rows(back) == all_rows(made.old)
    ids = {logs.parse_metadata((one / names.QUERY_METADATA).read_bytes(), "") for one in (made.old, made.new, back)}
    assert len(ids) == 2


def test_a_new_query_gets_an_id_of_its_own(places: Make) -> None:
    made = places()
    assert "--new-query" not in made.migrate("--new-query")
    ids = {logs.parse_metadata((root / names.QUERY_METADATA).read_bytes(), "") for root in (made.old, made.new)}
    assert len(ids) == 2


def test_added_and_reordered_aggregates_have_their_initial_values(places: Make) -> None:
    made = places()
    changed = (SUM, column("min", "long"), COUNT, column("MS[0]", "long"))
    change_schema(made.blueprint, values=with_values(*changed))
    before = values_of(made.old)
    assert "added min = null; added MS[0] = 0; value columns in another order" in statekeeper("migrate", *made.given)
    made.migrate()
    for key, value in values_of(made.new).items():
        assert value == {**before[key], "min": None, "MS[0]": 0}
        assert list(value) == ["sum", "min", "count", "MS[0]"]


def test_a_default_replaces_the_initial_value(places: Make) -> None:
    made = places()
    change_schema(made.blueprint, values=with_values(COUNT, SUM, column("max", "long")))
    made.migrate("--default", "0.max=41")
    assert {value["max"] for value in values_of(made.new).values()} == {41}


def test_a_value_column_is_widened(places: Make) -> None:
    made = places()
    change_schema(made.old, values=with_values(COUNT, column("max", "long")))
    change_schema(made.blueprint, values=with_values(COUNT, column("max", "decimal(30,2)")))
    before = values_of(made.old)
    made.migrate()
    found = values_of(made.new)
    assert found.keys() == before.keys()
    assert {key: float(value["max"]) for key, value in found.items()} == {k: float(v["max"]) for k, v in before.items()}


def test_a_sum_of_longs_is_not_widened_because_it_may_be_one_of_decimals_without_their_point(places: Make) -> None:
    made = places()
    change_schema(made.blueprint, values=with_values(COUNT, column("sum", "decimal(30,2)")))
    assert "may be a sum of decimals without their point" in made.refusals()


def test_a_narrower_value_column_is_refused(places: Make) -> None:
    made = places()
    change_schema(made.blueprint, values=with_values(COUNT, column("sum", "integer")))
    assert "does not hold every value of int64" in made.refusals()


def test_a_dropped_value_column_needs_the_permission(places: Make) -> None:
    made = places()
    change_schema(made.blueprint, values=with_values(COUNT))
    assert "the value columns sum of the old state" in made.refusals()
    made.migrate("--allow-dropped-state")
    assert {tuple(value) for value in values_of(made.new).values()} == {("count",)}


def test_value_columns_of_one_name_need_a_map(places: Make) -> None:
    made = places()
    change_schema(made.blueprint, values=with_values(COUNT, SUM, SUM))
    refused = made.refusals()
    assert "--map 0.sum=sum" in refused
    made.migrate("--map", "0.sum_2=sum", "--map", "0.sum=none")
    before = {key: value["sum"] for key, value in values_of(made.old).items()}
    assert {key: (value["sum"], value["sum_2"]) for key, value in values_of(made.new).items()} == {
        key: (None, total) for key, total in before.items()
    }


def test_an_average_or_a_sum_with_a_count_is_asked_for(places: Make) -> None:
    made = places()
    change_schema(made.blueprint, values=with_values(COUNT, SUM, *MEAN))
    maps = ("--map", "0.count=count", "--map", "0.count_2=none")
    refused = made.refusals(*maps)
    assert "For avg: --default 0.sum_2=0.0; for sum: --default 0.sum_2=null" in refused
    made.plan(*maps, "--default", "0.sum_2=0.0")


def test_the_state_of_an_operator_that_is_gone_is_counted_and_needs_the_permission(places: Make) -> None:
    made = places("v1-two-operators-zstd", "v1-windows-lzf")
    change_schema(made.blueprint, keys=lambda fields: [window(fields[0])], values=with_values(COUNT))
    assert "operator 1 (dedupeWithinWatermark) of the old checkpoint is not in the blueprint" in made.refusals()
    dropped = made.plan("--allow-dropped-state")["dropped"]
    assert dropped == [{"operator": 1, "name": "dedupeWithinWatermark", "rows": 7}]
    made.migrate("--allow-dropped-state")
    assert len(dumped(str(made.new))) == 2


def window(field: dict[str, Any]) -> dict[str, Any]:
    return {**field, "metadata": {**field["metadata"], "spark.watermarkDelayMs": 180_000}}


def test_an_operator_that_the_old_query_lacks_starts_empty(places: Make) -> None:
    made = places("v1-windows-lzf", "v1-two-operators-zstd")
    change_schema(made.old, keys=lambda fields: [window(fields[0])], values=with_values(COUNT))
    shown = made.plan("--map", "0=none", "--allow-dropped-state")
    assert [one["from"] for one in shown["operators"]] == [None, None]


def test_another_key_is_refused_with_the_way(places: Make) -> None:
    made = places()
    change_schema(made.blueprint, keys=lambda fields: [column("other", "string")])
    refused = made.refusals()
    assert "the key of the old operator 0 is (k string), and that of the blueprint is (other string)" in refused
    assert "--map 0=none --allow-dropped-state" in refused
    assert "statekeeper load" in refused
    assert "the key of the old operator 0" in made.refusals("--map", "0=0")
    made.plan("--map", "0=none", "--allow-dropped-state")


def test_another_column_with_the_watermark_is_refused(places: Make) -> None:
    made = places("v1-join-2")
    side = "left-keyWithIndexToValue"
    plain = [column("k", "string"), column("a", "timestamp"), column("l", "long"), column("matched", "boolean")]
    change_schema(made.blueprint, values=with_values(*plain), store=side)
    assert "Spark would evict other rows" in made.refusals()


def test_another_delay_of_the_watermark_is_named(places: Make) -> None:
    made = places("v1-windows-lzf")
    change_schema(made.blueprint, keys=lambda fields: [window(fields[0]), *fields[1:]])
    assert "from 120,000 ms to 180,000 ms" in made.plan()["notes"][0]


def test_the_payload_of_a_join_gains_and_loses_columns(places: Make) -> None:
    made = places("v1-join-2")
    side = "right-keyWithIndexToValue"
    changed = [
        column("rk", "string"),
        column("b", "timestamp", watermark_ms=120_000),
        column("s", "string"),
        column("matched", "boolean"),
    ]
    change_schema(made.blueprint, values=with_values(*changed), store=side)
    assert "the value columns r of the old state" in made.refusals()
    made.migrate("--allow-dropped-state", "--default", f"0.{side}.s=new")
    found = [row["value"] for row in dumped(str(made.new)) if row["store"].endswith(side)]
    before = [row["value"] for row in dumped(str(made.old)) if row["store"].endswith(side)]
    assert found
    assert [{**row, "r": None} | {"s": None} for row in found] == [{**row, "r": None, "s": None} for row in before]
    assert {row["s"] for row in found} == {"new"}


@pytest.mark.parametrize(
    ("maps", "expected"),
    [
        (("0=3",), "the old checkpoint has no stateful operator 3"),
        (("7=0",), "the blueprint has no stateful operator 7"),
        (("x=0",), "--map x=0 is not understood"),
        (("0.total=sum",), "operator 0 of the blueprint has no such value column"),
        (("source.9=0",), "the blueprint has no source 9"),
        (("source.0=9",), "the old checkpoint has no source 9"),
        (("0.sum=absent",), "the old columns are: count, sum"),
        (("0.sum=count", "0.count=count"), "one old value column to several new ones"),
    ],
)
def test_an_option_that_names_nothing_is_refused(maps: tuple[str, ...], expected: str, places: Make) -> None:
    assert expected in places().refusals(*(text for one in maps for text in ("--map", one)))


def test_a_default_for_a_column_that_is_not_added_is_refused(places: Make) -> None:
    assert "no such value column" in places().refusals("--default", "0.sum=1")


def test_a_source_that_is_added_starts_at_its_beginning_and_one_that_is_gone_is_dropped(places: Make) -> None:
    made = places()
    set_sources(made.blueprint, ['{"logOffset":0}', '{"topic":{"0":7}}'])
    assert "has 1 sources without names, and the changed query has 2" in made.refusals()
    maps = ("--map", "source.1=none", "--map", "source.0=0")
    assert made.plan(*maps)["sources"] == {"0": "0", "1": None}
    made.migrate("--map", "source.0=none", "--map", "source.1=none")
    assert (made.new / "offsets/2").read_text().split("\n")[2:] == ["-", "-"]
    assert not (made.new / "sources").exists()


def test_a_source_of_another_kind_is_refused(places: Make) -> None:
    made = places()
    set_sources(made.blueprint, ["17"])
    assert "they are not one source" in made.refusals()


KAFKA = '{"orders":{"0":5,"1":7}}', '{"payments":{"0":9}}'


def of_delta(table: str) -> str:
    return json.dumps({"sourceVersion": 1, "reservoirId": table, "reservoirVersion": 4, "index": -1})


DELTA = of_delta("0b2f"), of_delta("7c1a")


@pytest.mark.parametrize("sources", [KAFKA, DELTA], ids=["kafka", "delta"])
def test_sources_that_swap_their_order_are_refused_until_they_are_mapped(
    sources: tuple[str, str], places: Make
) -> None:
    made = places()
    set_sources(made.old, sources)
    set_sources(made.blueprint, sources[::-1])
    refused = made.refusals()
    assert "the sources have another order" in refused
    assert "--map source.0=1" in refused
    maps = ("--map", "source.0=1", "--map", "source.1=0")
    assert made.plan(*maps)["sources"] == {"0": "1", "1": "0"}
    made.migrate(*maps)
    assert (made.new / "offsets/2").read_text().split("\n")[2:] == [*sources[::-1]]


def test_a_source_in_the_place_of_another_one_is_refused(places: Make) -> None:
    made = places()
    set_sources(made.old, KAFKA)
    set_sources(made.blueprint, [KAFKA[1], '{"refunds":{"0":1}}'])
    assert "source 0 of the blueprint reads payments, as source 1 of the old query does" in made.refusals()


@pytest.mark.parametrize(
    ("sources", "others"),
    [(KAFKA, ['{"test-orders":{"0":1}}', '{"test-payments":{"0":1}}']), (DELTA, [of_delta("01"), of_delta("02")])],
    ids=["kafka", "delta"],
)
def test_a_blueprint_may_read_other_topics_and_tables(
    sources: tuple[str, str], others: list[str], places: Make
) -> None:
    made = places()
    set_sources(made.old, sources)
    set_sources(made.blueprint, others)
    notes = made.plan()["notes"]
    assert len(notes) == 2
    assert "start the changed query with that input" in notes[0]
    made.migrate()
    assert (made.new / "offsets/2").read_text().split("\n")[2:] == [*sources]


def test_a_topic_that_was_added_is_the_same_source(places: Make) -> None:
    made = places()
    set_sources(made.old, KAFKA)
    set_sources(made.blueprint, ['{"orders":{"0":1},"more":{"0":1}}', KAFKA[1]])
    (note,) = made.plan()["notes"]
    assert "source 0 of the blueprint also read more, which has no position in the old query" in note


def test_sources_whose_topics_overlap_are_compared_by_all_their_topics(places: Make) -> None:
    made = places()
    sources = '{"orders":{"0":5},"all":{"0":1}}', '{"payments":{"0":9},"all":{"0":8}}'
    set_sources(made.old, sources)
    set_sources(made.blueprint, sources[::-1])
    assert "source 0 of the blueprint reads all, payments, as source 1 of the old query does" in made.refusals()
    assert made.plan("--map", "source.0=1", "--map", "source.1=0")["notes"] == []


def test_an_added_source_is_told_that_its_rows_before_the_watermark_are_late(places: Make) -> None:
    made = places("v2-sessions-snappy")
    set_sources(made.blueprint, ['{"logOffset":0}', '{"topic":{"0":7}}'])
    notes = made.plan("--map", "source.1=none", "--map", "source.0=0")["notes"]
    assert any("source 1 is new, and the watermark is at " in note and "Z (" in note for note in notes)


def test_a_red_audit_and_a_crash_leave_a_checkpoint_on_which_no_query_starts(places: Make) -> None:
    made = places()

    class Damaging(ForwardingStorage):
        """Another process damages a schema before the commit."""

        def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
            if path == names.commits(2):
                self.inner.replace(names.state_schema(0), b"nonsense")
            return self.inner.create(path, data, like=like)

    run = Run(
        storage=open_storage(str(made.old)),
        by=MAINTAINER,
        scratch=made.folder,
        stopped=True,
        open_other=lambda url: Damaging(open_storage(url)) if url == str(made.new) else open_storage(url),
    )
    with pytest.raises(RefusedAsUnsafe, match="not completed, because the audit reports"):
        perform(prepare(Migrate(blueprint=str(made.blueprint), destination=str(made.new)), run))
    assert (made.new / "commits/2").exists()
    assert (made.new / names.QUERY_METADATA).read_bytes() == logs.UNFINISHED
    shown = statekeeper("audit", str(made.new), exit_code=3)
    assert "no query can start on this checkpoint before the migration is complete" in shown
    assert "2 errors" in shown
    statekeeper("migrate", str(made.new), "--abort", "--confirm-stopped")
    assert [path for path in contents(made.new) if not path.startswith(names.CONTROL)] == []
    made.migrate()


def test_metadata_of_a_migration_without_its_journal_is_a_finding(places: Make) -> None:
    made = places()
    made.migrate()
    replace(made.new / names.QUERY_METADATA, logs.UNFINISHED)
    assert "is that of an unfinished migration, whose journal is missing" in statekeeper(
        "audit", str(made.new), exit_code=3
    )


def test_a_moved_source_keeps_its_log(places: Make) -> None:
    made = places()
    set_sources(made.blueprint, ["-", '{"logOffset":0}'])
    made.migrate("--map", "source.0=none", "--map", "source.1=0")
    assert (made.new / "offsets/2").read_text().split("\n")[2:] == ["-", '{"logOffset":2}']
    assert sorted(path.name for path in (made.new / "sources/1").iterdir()) == ["0", "1", "2"]


def test_a_blueprint_without_a_committed_batch_is_refused(places: Make) -> None:
    made = places()
    for path in list((made.blueprint / names.COMMITS).iterdir()):
        path.unlink()
    assert "has no committed batch: start the changed query once" in made.refusals()


def test_an_old_query_that_has_begun_a_batch_is_refused(places: Make) -> None:
    made = places()
    replace(made.old / "offsets/3", (made.old / "offsets/2").read_bytes())
    assert "batch 3 is started but not committed" in made.refusals()


def test_a_destination_with_files_is_refused(places: Make) -> None:
    made = places()
    (made.new / "state").mkdir(parents=True)
    (made.new / "state/anything").write_bytes(b"")
    assert "is not empty: it contains state/anything" in made.refusals()


def test_locations_that_overlap_are_refused(places: Make) -> None:
    made = places()
    shown = json.loads(
        statekeeper(
            "migrate", str(made.old), str(made.blueprint), str(made.old / "new"), "--output", "json", exit_code=3
        )
    )
    assert "overlap" in shown["refusals"][0]


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark__sql__streaming__stateStore__encodingFormat": "avro"}, "encodes its rows as avro"),
        (
            {"spark__sql__streaming__aggregation__stateFormatVersion": "1"},
            "is 2 in the old query and 1 in the blueprint",
        ),
    ],
)
def test_rows_that_are_encoded_otherwise_are_refused(conf: dict[str, str], expected: str, places: Make) -> None:
    made = places()
    set_conf(made.blueprint, **conf)
    assert expected in made.refusals()


def test_a_complete_migration_is_complete_and_another_one_is_refused(places: Make) -> None:
    made = places()
    made.migrate()
    assert "nothing to do" in statekeeper("migrate", *made.given, *APPLY)
    again = json.loads(statekeeper("migrate", *made.given, "--partitions", "7", "--output", "json", exit_code=3))
    assert "is not empty" in again["refusals"][0]


def test_other_verbs_follow_a_migration_which_can_be_migrated_back(places: Make) -> None:
    made = places("v1-aggregation", "v2-aggregation")
    change_schema(made.blueprint, values=with_values(COUNT, SUM, column("max", "long")))
    made.migrate("--partitions", "3")
    rows = values_of(made.new)
    root, scratch = str(made.new), ("--scratch", str(made.folder))
    statekeeper("rescale", root, "--partitions", "5", *APPLY, *scratch)
    assert values_of(made.new) == rows
    statekeeper("rewind", root, "--to-batch", "2", *APPLY, *scratch)
    statekeeper("gc", root, "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    statekeeper("snapshot", root, "--at-head", "--confirm-stopped", "--mode", "snapshots", *scratch)
    copy, back = made.folder / "copy", made.folder / "back"
    statekeeper("clone", root, str(copy))
    assert values_of(copy) == rows
    clean(open_storage(str(copy)), made.folder)
    given = ("migrate", str(copy), str(made.old), str(back), "--allow-dropped-state", *APPLY, *scratch)
    statekeeper(*given)
    assert all_rows(back) == all_rows(made.old)


@pytest.mark.parametrize("source", ["../../x", "a/b", ".", ""])
def test_a_blueprint_with_an_impossible_source_is_refused(source: str, places: Make) -> None:
    made = places()
    for path in (made.blueprint / names.OFFSETS).iterdir():
        if not path.name.startswith("."):
            _, head, *_ = path.read_text().split("\n")
            body = {**json.loads(head), "sourceMetadataInfo": {}}
            replace(path, "\n".join(["v2", json.dumps(body), f'{source}:{{"logOffset":0}}']).encode())
    assert "has the impossible source" in made.refusals("--map", f"source.{source}=0")


def test_an_interrupted_migration_of_other_inputs_names_the_command_that_removes_it(places: Make) -> None:
    made = places()
    run = Run(
        storage=open_storage(str(made.old)),
        by=MAINTAINER,
        scratch=made.folder,
        stopped=True,
        open_other=lambda url: Dying(open_storage(url)),
    )
    with pytest.raises(SimulatedCrash):
        perform(prepare(Migrate(blueprint=str(made.blueprint), destination=str(made.new)), run))
    statekeeper("lease", str(made.new), "--break")
    refused = made.refusals("--partitions", "7")
    assert "has an unfinished migration" in refused
    command = refused.split("run: ")[1].split(". Then")[0]
    statekeeper(*shlex.split(command)[1:])
    assert [entry.path for entry in open_storage(str(made.new)).list("state")] == []
    made.migrate("--partitions", "7")


def test_a_blueprint_without_operator_metadata_gets_the_initial_values_of_aggregates(places: Make) -> None:
    made = places()
    change_schema(made.blueprint, values=with_values(COUNT, SUM, column("MS[0]", "long"), column("min", "long")))
    for checkpoint in (made.old, made.blueprint):
        as_of_spark_3_5(checkpoint)
    assert "added MS[0] = 0; added min = null" in statekeeper("migrate", *made.given)
    change_schema(made.blueprint, values=with_values(COUNT, SUM, column("value", "long")))
    assert "the initial value of the buffer column value is not known" in made.refusals()


def test_a_field_is_added_to_the_state_of_an_operator_in_pandas(places: Make) -> None:
    made = places("hdfs-applyInPandasWithState")
    fields = [column("total", "long"), column("n", "long")]
    wider = {"name": "groupState", "type": {"type": "struct", "fields": fields}, "nullable": True, "metadata": {}}
    change_schema(made.blueprint, values=with_values(wider))
    before = {key: value["groupState"] for key, value in values_of(made.old).items()}
    made.migrate()
    found = {key: value["groupState"] for key, value in values_of(made.new).items()}
    assert found == {key: group and {**group, "n": None} for key, group in before.items()}
    assert any(found.values())
    back = ("migrate", str(made.new), str(made.old), str(made.folder / "back"))
    assert "the value columns groupState.n of the old state" in statekeeper(*back, exit_code=3)


LAST = column("last", "long"), column("valueSet", "boolean", nullable=False)
MOMENTS = tuple(column(name, "double") for name in ("n", "avg", "m2", "m3"))
DECIMAL = column("sum", "decimal(20,0)")
SKETCH = tuple(column(f"MS[{number}]", "long") for number in range(2))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([MEAN[0]], MEAN),
        ([COUNT], MEAN),
        (SKETCH[:1], SKETCH),
        (MOMENTS[:3], MOMENTS),
        ([DECIMAL, column("isEmpty", "boolean")], [DECIMAL, COUNT]),
        ([DECIMAL, COUNT], [DECIMAL, column("isEmpty", "boolean")]),
        (LAST, [column("first", "long"), LAST[1]]),
    ],
)
def test_an_aggregate_whose_buffer_would_be_half_old_and_half_new_is_refused(
    old: list[dict[str, Any]], new: list[dict[str, Any]], places: Make
) -> None:
    made = places()
    change_schema(made.old, values=with_values(*old))
    change_schema(made.blueprint, values=with_values(*new))
    assert "Both can be the buffer of one aggregate" in made.refusals("--allow-dropped-state")


def test_a_count_beside_a_sum_of_longs_is_an_aggregate_of_its_own(places: Make) -> None:
    made = places()
    change_schema(made.old, values=with_values(SUM))
    change_schema(made.blueprint, values=with_values(SUM, COUNT))
    assert made.plan()["refusals"] == []


def test_a_named_source_that_has_another_name_is_refused_until_it_is_mapped(places: Make) -> None:
    made = places()
    for checkpoint, source in ((made.old, "0"), (made.blueprint, "orders")):
        for path in (checkpoint / names.OFFSETS).iterdir():
            if not path.name.startswith("."):
                _, head, position, *_ = path.read_text().split("\n")
                body = {**json.loads(head), "sourceMetadataInfo": {}}
                replace(path, "\n".join(["v2", json.dumps(body), f"{source}:{position}"]).encode())
    assert "A source with another name would read its input again" in made.refusals()
    assert made.plan("--map", "source.orders=0")["sources"] == {"orders": "0"}


def test_one_position_is_not_given_to_two_sources(places: Make) -> None:
    made = places()
    set_sources(made.blueprint, ['{"logOffset":0}', '{"logOffset":0}'])
    refused = made.refusals("--map", "source.0=0", "--map", "source.1=0")
    assert "--map gives the position of source 0 to 2 sources" in refused


def test_a_state_variable_of_another_kind_is_refused(places: Make) -> None:
    made = places("v2-transformWithState")
    [path] = made.blueprint.glob("state/0/_metadata/v2/*")
    kinds = rb"\"total\",\"stateVariableType\":\"%s\""
    body = path.read_bytes()
    assert kinds % b"ValueState" in body
    replace(path, body.replace(kinds % b"ValueState", kinds % b"ListState"))
    assert "the state variable total is ValueState in the old query and ListState in the changed one" in made.refusals()


def test_a_query_that_starts_on_an_unfinished_destination_is_neither_completed_nor_deleted(places: Make) -> None:
    made = places()
    run = Run(
        storage=open_storage(str(made.old)),
        by=MAINTAINER,
        scratch=made.folder,
        stopped=True,
        open_other=lambda url: Dying(open_storage(url)),
    )
    with pytest.raises(SimulatedCrash):
        perform(prepare(Migrate(blueprint=str(made.blueprint), destination=str(made.new)), run))
    statekeeper("lease", str(made.new), "--break")
    for path in (names.QUERY_METADATA, names.offsets(0), names.commits(0)):
        (made.new / path).parent.mkdir(exist_ok=True)
        (made.new / path).write_bytes((made.blueprint / path).read_bytes())
    before = contents(made.new)
    again = ("migrate", *made.given, *APPLY, "--scratch", str(made.folder))
    for command in (again, ("migrate", str(made.new), "--abort", "--confirm-stopped")):
        assert "was written by a query that started on the unfinished destination" in statekeeper(
            *command, exit_code=13
        )
    after = contents(made.new)
    assert {path: after[path] for path in before if not path.startswith(("state/", "_statekeeper/"))} == {
        path: body for path, body in before.items() if not path.startswith(("state/", "_statekeeper/"))
    }
