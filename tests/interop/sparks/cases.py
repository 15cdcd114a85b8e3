"""The cases of the matrix: operator x structure x Spark, and from each Spark to each later one.

An `Origin` is a query that ran to its end on its first Spark, without Statekeeper. Each case starts from its middle.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import pytest

from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.operators import OperatorMetadata, StoreInfo, encode_operator
from statekeeper.statestore.format.provider import PROVIDER, Provider
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep.audit.findings import FindingKind
from statekeeper.statestore.storage import open_storage
from tests.interop.sparks import remote
from tests.interop.sparks.remote import MINORS, Refused, RemoteQuery, Sparks
from tests.support import twins
from tests.support.native import CHANGELOGS, FORMAT, OPERATORS
from tests.support.placed_rows import placed_rows

READER = "4.2"
"""Which Spark reads the state where that of the query cannot."""

_NO_READER = (("3.5", "1"), ("4.0", "2"))
"""Spark 3.5 has no state reader, and the reader of 4.0 does not support structure V2."""

_REWOUND_BATCHES = 3
_CLONED_BATCHES = 2
_REPARTITIONED = ("aggregation", "transformWithState", "join 2", "two operators")
_UPGRADED = ("aggregation", "sessions", "two operators")
"""Operators that a later Spark continues after each verb, not only after snapshots."""
_FIRST, _LATER = "3.5", "4.2"
"""The releases of these cases. The first one writes no operator metadata."""
_PARTITIONS = 3
_ONLY_ROCKSDB = ("join 3", "join 4", "transformWithState")

_WITHOUT_KEYS = ("aggregation of all rows", "limit")
_PREFIX_COLUMNS = {"sessions": 1}
_TOLD_OF_4_0 = frozenset({FindingKind.SNAPSHOT_OF_SPARK_4_0})


class Kind(Enum):
    """The subject of a case."""

    RESTART = "goes on from our snapshots"
    UPGRADE = "a later one goes on from our snapshots"
    SWITCH = "goes on in the other structure"
    REPAIR = "a later one goes on from the snapshots of 4.0, repaired"
    REPARTITION = "goes on from our snapshots with other partitions"
    CLONE = "goes on from a clone"
    MIRROR = "continues from a mirror after a failover"
    RESCALE = "continues with other partitions after a rescale"
    MIGRATE = "continues in a new checkpoint, in structure V2 if it has it, after a migration"
    CONVERT = "continues with RocksDB after a conversion from the default provider"
    EDIT = "continues after a key is deleted, and as before after the undo"
    REWIND = "writes the same batches again after a rewind"


@dataclass(frozen=True, order=True)
class Group:
    """A query on the Spark that began it. `own_snapshots`: Spark makes one of every version, and writes no changelogs.
    `provider`: the state store provider with which it begins."""

    minor: str
    structure: str
    operator: str
    own_snapshots: bool = False
    provider: str = Provider.ROCKSDB.value

    @property
    def confs(self) -> dict[str, str]:
        if self.provider == Provider.HDFS_BACKED.value:
            return {FORMAT: "1", PROVIDER: Provider.HDFS_BACKED.class_name}
        return {FORMAT: self.structure, **({CHANGELOGS: "false"} if self.own_snapshots else {})}


@dataclass(frozen=True)
class Case:
    """One line of the matrix. `to`: the Spark that continues the query."""

    group: Group
    kind: Kind
    to: str

    @property
    def name(self) -> str:
        group = self.group
        return f"{group.operator} V{group.structure} {group.minor} {self.kind.name.lower()} {self.to}".replace(" ", "-")


def all_cases() -> Iterator[Case]:
    """Yield all cases, sorted by structure and release, so that each Spark starts once per structure."""
    for structure in ("1", "2"):
        for minor in MINORS:
            for operator, described in OPERATORS.items():
                if not described.runs_on(minor, structure):
                    continue
                group = Group(minor, structure, operator)
                yield Case(group, Kind.RESTART, minor)
                yield Case(group, Kind.CLONE, minor)
                yield Case(group, Kind.MIRROR, minor)
                yield Case(group, Kind.REWIND, minor)
                yield Case(group, Kind.RESCALE, minor)
                yield Case(group, Kind.MIGRATE, minor)
                if operator not in _WITHOUT_KEYS:
                    yield Case(group, Kind.EDIT, minor)
                if operator not in _ONLY_ROCKSDB:
                    yield Case(replace(group, provider=Provider.HDFS_BACKED.value), Kind.CONVERT, minor)
                if operator in _REPARTITIONED and minor >= "4.2":
                    yield Case(group, Kind.REPARTITION, minor)
                if described.runs_on(minor, "2"):
                    yield Case(group, Kind.SWITCH, minor)
                later = [to for to in MINORS[MINORS.index(minor) + 1 :] if described.runs_on(to, structure)]
                for to in later:
                    yield Case(group, Kind.UPGRADE, to)
                if later:
                    yield Case(group, Kind.MIGRATE, later[-1])
                if (minor, structure) == (_FIRST, "1") and operator in _UPGRADED:
                    yield from _upgraded(group)
                if (minor, structure) == ("4.0", "2"):
                    refused = Group(minor, structure, operator, own_snapshots=True)
                    for to in later:
                        yield Case(refused, Kind.REPAIR, to)


def _upgraded(group: Group) -> Iterator[Case]:
    """Yield the cases in which Statekeeper changes a checkpoint of the first release and a later release continues."""
    for kind in (Kind.CLONE, Kind.MIRROR, Kind.REWIND, Kind.RESCALE, Kind.EDIT, Kind.SWITCH):
        yield Case(group, kind, _LATER)
    yield Case(replace(group, provider=Provider.HDFS_BACKED.value), Kind.CONVERT, _LATER)


class Origin:
    """A query that ran without Statekeeper, and its expected state. `folder` has no spaces in its path."""

    def __init__(self, group: Group, sparks: Sparks, folder: Path) -> None:
        self.group = group
        self.sparks = sparks
        self.folder = folder
        self.query = RemoteQuery(sparks.get(group.minor, group.structure), folder, group.operator, group.confs)
        self.twin = twins.untouched(self.query, self._oracle(group.minor))
        self._made: set[str] = set()

    def run(self, case: Case) -> None:
        """Run a case. Raises `AssertionError` for a difference, `Refused` for Spark's errors, and the errors of verbs."""
        self.query.checkpoint = self.folder / "checkpoint"
        self.query.restored("middle")
        self.query.spark = self.sparks.get(case.to, self.group.structure)
        self.query.confs = self.group.confs
        {
            Kind.RESTART: self._restart,
            Kind.UPGRADE: self._upgrade,
            Kind.SWITCH: self._switch,
            Kind.REPAIR: self._repair,
            Kind.REPARTITION: self._repartition,
            Kind.CLONE: self._clone,
            Kind.MIRROR: self._mirror,
            Kind.REWIND: self._rewind,
            Kind.RESCALE: self._rescale,
            Kind.MIGRATE: self._migrate,
            Kind.CONVERT: self._convert,
            Kind.EDIT: self._edit,
        }[case.kind](case.to)

    def _restart(self, to: str) -> None:
        self._is_clean()
        self._is_recognised(to)
        self._is_placed()
        twins.dump_is_what_spark_shows(self.query, self._oracle(to))
        twins.savepoint_is_what_spark_shows(self.query, self._oracle(to), self.folder)
        self._with_snapshots(to)
        self._is_clean()
        self._goes_on(to)
        self._tells_a_key_less(to)

    def _upgrade(self, to: str) -> None:
        self._with_snapshots(to)
        self._goes_on(to)
        self._tells_a_key_less(to)

    def _switch(self, to: str) -> None:
        """Switch, run the other batches as the twin does, and switch back. The reader shows the same state each time."""
        here = Structure(f"v{self.group.structure}")
        # A checkpoint of 3.5, 4.0 or 4.1 does not show which release continues it.
        for_spark = ["--for-spark", to] if min(to, self.group.minor) < "4.2" else []
        for structure, expected in ((here.other, self.twin.middle), (here, self.twin.end)):
            twins.switch(self.query, structure, self.folder, *for_spark)
            self.query.spark = self.sparks.get(to, structure.value[1:])
            self.query.confs = {**self.query.confs, **structure.conf}
            oracle = self._oracle(to)
            assert oracle.state() == expected
            if structure is not here:
                twins.goes_on(self.query, oracle, self.twin)

    def _repair(self, to: str) -> None:
        with pytest.raises(Refused, match="Expected v1, but found v2"):
            self.query.run(1)
        self.query.restored("middle")
        root = str(self.query.checkpoint)
        twins.statekeeper("repair", root, "--for-spark", to, "--apply", "--confirm-stopped")
        self._goes_on(to)

    def _repartition(self, to: str) -> None:
        """By Spark's own tool; the twin was repartitioned, too. Its first batch afterwards writes changelogs again."""
        oracle = self._oracle(to)
        self.query.repartition(_PARTITIONS)
        self.query.run(1)
        self.query.saved("repartitioned")
        middle = oracle.state()
        self.query.run(2)
        twin = twins.Twin(dict(self.query.outputs), middle, oracle.state())
        self.query.restored("repartitioned")
        self._is_clean()
        twins.dump_is_what_spark_shows(self.query, oracle)
        twins.take_snapshots(self.query, self.folder)
        self._is_clean()
        assert oracle.state() == middle
        twins.goes_on(self.query, oracle, twin)
        self.query.restored("repartitioned")
        twins.take_wrong_snapshots(self.query, self.folder)
        assert oracle.state() != middle

    def _clone(self, to: str) -> None:
        """Continue from clones at the head and two batches before; a clone that lacks a key must be detected."""
        self._clone_of_earlier_batch(to)
        for name, spoil in (("clone", None), ("wrong clone", twins.take_wrong_snapshots)):
            self.query.checkpoint = self.folder / "checkpoint"
            self.query.restored("middle")
            clone = Path(tempfile.mkdtemp(dir=self.folder, prefix=name.replace(" ", "-"))) / "checkpoint"
            twins.statekeeper("clone", self.query.root, str(clone), "--confirm-stopped", "--scratch", str(self.folder))
            self.query.checkpoint = clone
            if spoil is None:
                self._is_clean()
                self._goes_on(to)
            else:
                spoil(self.query, self.folder, *self._for_spark(to))
                assert self._oracle(to).state() != self.twin.middle

    def _clone_of_earlier_batch(self, to: str) -> None:
        target = max(self.query.outputs) - _CLONED_BATCHES
        clone = Path(tempfile.mkdtemp(dir=self.folder, prefix="earlier-clone-")) / "checkpoint"
        options = ("--batch", str(target), "--confirm-stopped", "--scratch", str(self.folder))
        twins.statekeeper("clone", self.query.root, str(clone), *options)
        self.query.checkpoint = clone
        self._is_clean()
        self._forget_after(target)
        self.query.run(0)
        self._goes_on(to)

    def _mirror(self, to: str) -> None:
        """Mirror twice, and compare the mirror with the end. Then lose the checkpoint two batches after a mirror, and write
        these batches again from the mirror. A mirror that lacks a key must be detected."""
        oracle = self._oracle(to)
        for spoil in (None, twins.take_wrong_snapshots):
            self.query.checkpoint = self.folder / "checkpoint"
            self.query.restored("middle")
            mirrored = max(self.query.outputs)
            parent = Path(tempfile.mkdtemp(dir=self.folder, prefix="mirrors-"))
            kept, stale = parent / "kept" / "checkpoint", parent / "stale" / "checkpoint"
            self._mirrored_to(kept)
            self._mirrored_to(stale)
            self.query.run(2)
            self._mirrored_to(kept)
            self.query.checkpoint = kept
            assert oracle.state() == self.twin.end
            self._is_clean()
            self.query.checkpoint = stale
            self._is_clean()
            self._forget_after(mirrored)
            if spoil is None:
                self.query.run(0)
                assert self.query.outputs == self.twin.outputs
                assert oracle.state() == self.twin.end
            else:
                spoil(self.query, self.folder, *self._for_spark(to))
                assert oracle.state() != self.twin.middle

    def _mirrored_to(self, mirror: Path) -> None:
        options = ("--confirm-stopped", "--scratch", str(self.folder))
        twins.statekeeper("mirror", self.query.root, str(mirror), *options)

    def _forget_after(self, batch: int) -> None:
        self.query.outputs = {done: rows for done, rows in self.query.outputs.items() if done <= batch}

    def _rewind(self, to: str) -> None:
        """Run to the end, rewind, and write the same batches again; then without a key in each store."""
        oracle = self._oracle(to)
        for spoil in (None, twins.take_wrong_snapshots):
            self.query.restored("middle")
            self.query.run(2)
            target = max(self.twin.outputs) - _REWOUND_BATCHES
            options = ("--to-batch", str(target), "--apply", "--confirm-stopped", "--scratch", str(self.folder))
            twins.statekeeper("rewind", self.query.root, *options)
            self._forget_after(target)
            if spoil is None:
                self._is_clean()
                self.query.run(0)
                assert self.query.outputs == self.twin.outputs
                assert oracle.state() == self.twin.end
            else:
                rewound = oracle.state()
                spoil(self.query, self.folder, *self._for_spark(to))
                assert oracle.state() != rewound

    def _rescale(self, to: str) -> None:
        """Rescale in the middle. The twin has had this number of partitions since its first batch. Then rescale a state
        without a key in each store, which the comparison must detect."""
        confs = {**self.group.confs, twins.SHUFFLE_PARTITIONS: str(_PARTITIONS)}
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix="rescaled-twin-"))
        other = RemoteQuery(self.query.spark, folder, self.group.operator, confs)
        twin, oracle = twins.untouched(other, self._oracle(to, other)), self._oracle(to)
        appended = twins.rescale(self.query, _PARTITIONS, self.folder, *self._for_spark(to))
        self._is_clean()
        self._is_placed()
        assert oracle.state() == twin.middle
        self.query.run(2)
        assert twins.without(self.query.outputs, appended) == twin.outputs
        assert oracle.state() == twin.end
        self._is_clean()
        self.query.restored("middle")
        twins.leave_only_wrong_snapshots(self.query, self.folder, *self._for_spark(to))
        twins.rescale(self.query, _PARTITIONS, self.folder, *self._for_spark(to))
        assert oracle.state() != twin.middle

    def _migrate(self, to: str) -> None:
        """Migrate to the release that continues, whose blueprint is in structure V2 if it runs the operator there. The old
        checkpoint without a key in each store gives another state."""
        structure = Structure.V2 if OPERATORS[self.group.operator].runs_on(to, "2") else Structure.V1
        confs = {**self.group.confs, **structure.conf}
        spark = self.sparks.get(to, structure.value[1:])
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix="blueprint-"))
        blueprint = RemoteQuery(spark, folder, self.group.operator, confs)
        blueprint.run(1)
        old, for_spark = self.query.root, ["--for-spark", to] if structure is Structure.V2 else []
        for name, spoil in (("new", None), ("wrong", twins.leave_only_wrong_snapshots)):
            self.query.checkpoint = self.folder / "checkpoint"
            self.query.confs, self.query.spark = (
                self.group.confs,
                self.sparks.get(self.group.minor, self.group.structure),
            )
            self.query.restored("middle")
            if spoil is not None:
                spoil(self.query, self.folder, *self._for_spark(self.group.minor))
            new = folder / name
            given = ("--apply", "--confirm-stopped", "--scratch", str(self.folder), *for_spark)
            twins.statekeeper("migrate", old, blueprint.root, str(new), *given)
            self.query.checkpoint, self.query.confs, self.query.spark = new, confs, spark
            if spoil is None:
                self._does_not_start_unfinished(new)
                self._goes_on(to)
            else:
                assert self._oracle(to).state() != self.twin.middle

    def _does_not_start_unfinished(self, new: Path) -> None:
        """Spark does not start on a checkpoint whose migration is not finished."""
        before, metadata = self.query.batches, new / names.QUERY_METADATA
        body = metadata.read_bytes()
        metadata.write_bytes(logs.UNFINISHED)
        with pytest.raises(Refused):
            self.query.run(0)
        assert self.query.batches == before
        metadata.write_bytes(body)

    def _convert(self, to: str) -> None:
        """Convert to RocksDB in the structure of the group, and continue as the twin does with the default provider. At the
        end, take snapshots without a key in each store, which the comparison must detect."""
        structure = Structure(f"v{self.group.structure}")
        options = ["--for-spark", to] if structure is Structure.V2 else []
        appended = twins.convert(self.query, structure, self.folder, *options)
        self.query.spark = self.sparks.get(to, self.group.structure)
        self.query.confs = {PROVIDER: Provider.ROCKSDB.class_name, CHANGELOGS: "true", **structure.conf}
        oracle = self._oracle(to)
        self._is_clean()
        assert oracle.state() == self.twin.middle
        self.query.run(2)
        assert twins.without(self.query.outputs, appended) == self.twin.outputs
        assert oracle.state() == self.twin.end
        twins.take_wrong_snapshots(self.query, self.folder, *options)
        assert oracle.state() != self.twin.end

    def _edit(self, to: str) -> None:
        """Delete a key in the middle, which the comparison must detect. Spark continues from the edited state; after the
        undo, it continues as the twin does."""
        oracle = self._oracle(to)
        run = twins.delete_a_key(self.query, self.folder, *self._for_spark(to))
        self._is_clean()
        twins.dump_is_what_spark_shows(self.query, oracle)
        assert oracle.state() != self.twin.middle
        self.query.saved("edited")
        self.query.run(2)
        self._is_clean()
        twins.dump_is_what_spark_shows(self.query, oracle)
        self.query.restored("edited")
        twins.statekeeper("edit", self.query.root, "--undo", run, "--confirm-stopped")
        self._is_clean()
        self._goes_on(to)

    def _for_spark(self, to: str) -> list[str]:
        """The options of a snapshot: a checkpoint does not show whether it is of 4.0 or 4.1, and their snapshots differ."""
        is_of_4_0 = (self.group.minor, self.group.structure) == ("4.0", "2")
        return ["--for-spark", to] if is_of_4_0 else []

    def _goes_on(self, to: str) -> None:
        """To the end, as the twin did."""
        oracle = self._oracle(to)
        assert oracle.state() == self.twin.middle
        twins.goes_on(self.query, oracle, self.twin)
        self._is_recognised(to)

    def _tells_a_key_less(self, to: str) -> None:
        """Check that the comparison detects a missing key."""
        self._with_wrong_snapshots(to)
        assert self._oracle(to).state() != self.twin.middle

    def _with_snapshots(self, to: str) -> None:
        """The middle, with snapshots at its head; made once, as most Sparks read the same."""
        self._as_made("ours", to, twins.take_snapshots)

    def _with_wrong_snapshots(self, to: str) -> None:
        self._as_made("wrong", to, twins.take_wrong_snapshots)

    def _as_made(self, what: str, to: str, make: Callable[..., None]) -> None:
        is_v2 = self.group.structure == "2"
        name = f"{what}-{Spark(to).header}" if is_v2 else what
        if name in self._made:
            self.query.restored(name)
            return
        self.query.restored("middle")
        make(self.query, self.folder, *self._for_spark(to))
        self.query.saved(name)
        self._made.add(name)

    def _oracle(self, minor: str, query: RemoteQuery | None = None) -> twins.Oracle:
        """By its own reader; that of a later Spark on a copy, where it has none that reads this."""
        of = query or self.query
        structure = of.confs[FORMAT]
        is_read_by_itself = (minor, structure) not in _NO_READER
        reader = minor if is_read_by_itself else READER

        def state() -> twins.State:
            with self._as_read_by(reader, of):
                return remote.state(of, spark=self.sparks.get(reader, structure))

        def views() -> Mapping[str, Sequence[str]]:
            with self._as_read_by(reader, of):
                return remote.views_as_json(of, spark=self.sparks.get(reader, structure))

        return twins.Oracle(state, views)

    @contextmanager
    def _as_read_by(self, reader: str, query: RemoteQuery) -> Iterator[None]:
        """Replace the checkpoint by a copy that a later reader supports: Spark 3.5 does not record the number of prefix
        columns of a key, and no later Spark reads the snapshots of 4.0 in structure V2."""
        here, kept = query.checkpoint, self.folder / "kept"
        path = here / names.operator_metadata(0)
        of_sessions = self.group.minor == "3.5" and self.group.operator in _PREFIX_COLUMNS and not path.exists()
        of_4_0 = self.group.minor == "4.0" and query.confs[FORMAT] == "2" and reader != "4.0"
        if not of_sessions and not of_4_0:
            yield
            return
        here.rename(kept)
        shutil.copytree(kept, here)
        try:
            if of_sessions:
                info = StoreInfo(
                    name=names.DEFAULT_STORE,
                    prefix_columns=_PREFIX_COLUMNS[self.group.operator],
                    partitions=len(list((here / names.STATE / "0").glob("[0-9]*"))),
                )
                path.parent.mkdir(parents=True)
                path.write_bytes(encode_operator(OperatorMetadata(0, self.group.operator, (info,))))
            if of_4_0:
                twins.statekeeper("repair", str(here), "--for-spark", reader, "--apply", "--confirm-stopped")
            yield
        finally:
            shutil.rmtree(here)
            kept.rename(here)

    def _is_clean(self) -> None:
        """Check that the audit has no finding, except for snapshots of 4.0 in structure V2: an upgrade needs a repair."""
        is_of_4_0 = (self.group.minor, self.group.structure) == ("4.0", "2")
        storage = open_storage(str(self.query.checkpoint))
        twins.clean(storage, self.folder, but=_TOLD_OF_4_0 if is_of_4_0 else frozenset())

    def _is_recognised(self, minor: str) -> None:
        found = json.loads(twins.statekeeper("inspect", str(self.query.checkpoint), "--output", "json"))
        assert found["written_by"] == _RECOGNISED[minor]

    def _is_placed(self) -> None:
        """Spark has each row in the partition that the rule gives for its key."""
        found = placed_rows(self.query.checkpoint, self.folder)
        assert found.rows
        assert +found.elsewhere == {}


_RECOGNISED = {minor: [minor] for minor in MINORS} | {"4.0": ["4.0", "4.1"]}
"""4.0 and 4.1 write the same confs to the offset log. Only 4.1 writes checksum files of changelogs."""
