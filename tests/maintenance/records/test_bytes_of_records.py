"""A release writes the same bytes for a record as the release before, and reads these bytes.

The files in `tests/fixtures/records` were written by the release that encoded each record by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.rewrite_journal import (
    Begun,
    Ending,
    Made,
    RewriteKind,
    SchemaChange,
    SinkEntry,
    files_of_schemas,
    files_to_replace,
)
from statekeeper.statestore.contents.chain import ReadFault
from statekeeper.statestore.format import mirror_names, names, savepoint_names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import labels
from statekeeper.statestore.maintenance.copies.clones import model as clones
from statekeeper.statestore.maintenance.copies.labels import Content, Label
from statekeeper.statestore.maintenance.copies.mirrors import model as mirrors
from statekeeper.statestore.maintenance.copies.savepoints import record as savepoints
from statekeeper.statestore.maintenance.records import announcements, history, holds, lease, quarantine
from statekeeper.statestore.maintenance.records.history import (
    DeletedFiles,
    FailedRun,
    FailedSnapshot,
    History,
    PlannedDeletion,
    PlannedSnapshot,
    RetentionHead,
    TakenSnapshot,
)
from statekeeper.statestore.maintenance.records.holds import Hold
from statekeeper.statestore.maintenance.records.lease import Lease
from statekeeper.statestore.maintenance.records.quarantine import QuarantineRecord, QueryPosition
from statekeeper.statestore.maintenance.rounds import due
from statekeeper.statestore.maintenance.rounds.due import Asked, Cursor
from statekeeper.statestore.maintenance.upkeep.retention import last_pass
from statekeeper.statestore.maintenance.upkeep.retention.last_pass import LastPass
from statekeeper.statestore.maintenance.upkeep.verification.record import FileRead
from statekeeper.statestore.maintenance.upkeep.verification.record import record as verified
from statekeeper.statestore.maintenance.upkeep.verification.record import write as write_verified
from statekeeper.statestore.root import columns
from statekeeper.statestore.root.attempts import OutputRecord, SinkPosition
from statekeeper.statestore.root.binding import Binding, Claim, encode_binding, parse_binding
from statekeeper.statestore.root.columns import ColumnChange, LaterSchema, StoreSchema
from statekeeper.statestore.root.state_root import Pending, StateRoot
from statekeeper.statestore.storage.query_metrics import QueryMetrics
from tests.support.memory import MemoryStorage

FIXTURES = Path(__file__).parents[2] / "fixtures" / "records"
RUN = "0198c0de-0000-4000-8000-000000000001"
IDS = [f"0198c0de-0000-4000-8000-00000000010{n}" for n in range(4)]
STORE, NAMED = StorePath(0, 3), StorePath(1, 0, "left-keys")
PATH = "state/0/3/SSTs/000012-0198c0de-0000-4000-8000-000000000000.sst"
KEY = '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}}]}'
VALUE = '{"type":"struct","fields":[{"name":"größe","type":"long","nullable":true,"metadata":{}}]}'
WIDER = (
    '{"type":"struct","fields":[{"name":"new","type":"long","nullable":true,"metadata":{}},'
    '{"name":"größe","type":"long","nullable":true,"metadata":{}}]}'
)


@dataclass(frozen=True)
class Case:
    """A record that `write` puts in a storage at `path`. `read`: reads it back."""

    path: str
    write: Callable[[MemoryStorage], object]
    read: Callable[[MemoryStorage], object]
    value: object


def of_bytes(path: str, encoded: bytes, read: Callable[[MemoryStorage], object], value: object) -> Case:
    return Case(path, lambda storage: storage.create(path, encoded), read, value)


def of_journal(begun: Begun) -> Case:
    def read(storage: MemoryStorage) -> object:
        found = rewrite_journal.open_journal(storage)
        return found and found.begun

    return Case(
        names.switchover(begun.number, "begun"), lambda storage: rewrite_journal.begin(storage, begun), read, begun
    )


def begun(kind: RewriteKind, **fields: object) -> Begun:
    common: dict[str, object] = {
        "number": 3,
        "run": RUN,
        "to": Structure.V2,
        "batch": 4,
        "header": "v1",
        "commit": 'v1\n{"nextBatchWatermarkMs":0}',
        "rewrite": kind,
        "stores": {STORE: VersionId(5, IDS[0]), NAMED: VersionId(5, IDS[1])},
        "reused": frozenset({STORE}),
    }
    return Begun(**{**common, **fields})  # type: ignore[arg-type]


def made(storage: MemoryStorage) -> None:
    opened = begun(RewriteKind.SWITCH)
    rewrite_journal.begin(storage, opened)
    rewrite_journal.note_made(storage, opened, NAMED, Made("ab" * 16, (PATH.rpartition("/")[2],)))


def ended(storage: MemoryStorage) -> None:
    rewrite_journal.begin(storage, begun(RewriteKind.SWITCH))
    rewrite_journal.end(storage, begun(RewriteKind.SWITCH), Ending.ABORTED)


def made_in_journal(storage: MemoryStorage) -> object:
    found = rewrite_journal.open_journal(storage)
    return found and found.made


def pending_root(storage: MemoryStorage) -> StateRoot:
    root = object.__new__(StateRoot)
    root.storage = storage
    return root


def read_finished(storage: MemoryStorage) -> object:
    for file in PART.files:
        storage.create(file.path, bytes(file.bytes))
    return savepoints.read_finished(storage, [STORE], {entry.path: entry for entry in storage.list("")})


def in_history(verb: str, part: str, *lines: history.HistoryRecord) -> Case:
    path = names.history("20260101T000000Z", verb, RUN, part)
    write = getattr(History, part)
    return Case(
        path,
        lambda storage: write(History(storage, verb, RUN, "20260101T000000Z"), [line.encode() for line in lines]),
        lambda storage: history.read(storage, path),
        list(lines),
    )


TAKEN = TakenSnapshot(
    store=NAMED,
    version=VersionId(7, IDS[0]),
    outcome="new",
    keys=5,
    tables=2,
    new_tables=1,
    uploaded_bytes=100,
    replayed_keys=9,
    skipped_snapshots=("state/0/3/4.zip: is damaged",),
    tail_bytes=2_000_000,
    restore_seconds=0.25,
    seconds=2.0,
)
DELETED = DeletedFiles(
    store=None, outcome="done", files=1, bytes=2, spared=("a",), detail="ä", read_files=3, read_bytes=4
)
HELD = Hold(batch=812, holder="höst:1234", verb="savepoint")
LEASE = Lease(epoch=7, run=RUN, holder="höst:1", verb="gc", since_seconds=1767225600.25, process="boot/1/2/3")
LABEL = Label(
    label="before",
    note="Größe",
    content=Content.ROWS,
    source="s3://a/b",
    destination="s3://c/d",
    batch=4,
    size_bytes=5,
    created_at_ms=1767225600000,
)
DELETING = Label(
    label="gone",
    note="",
    content=Content.FILES,
    source="s3://a/b",
    destination="s3://c/e",
    batch=4,
    size_bytes=5,
    created_at_ms=1767225600000,
    deleting=True,
)
MIRROR = mirrors.MirrorRecord(source="s3://ä", query="q", root="r", batch=3, first=1)
CLONE = clones.CloneRecord(source="s3://ä", batch=3, query="q", root="")
BEGUN = savepoints.Begun(
    source="s3://ä", batch=1, tables="delta", state="ab" * 16, run=RUN, begun_at_ms=1_767_225_600_000
)
PART = savepoints.Part(
    table=savepoint_names.table(0, "default", None),
    family=None,
    rows=7,
    digest="cd" * 16,
    files=(
        savepoints.File(path=savepoint_names.part(savepoint_names.table(0, "default", None), 3, 0), rows=7, bytes=9),
    ),
    state_bytes=80,
)
FINISHED = savepoints.StoreRows(STORE, (PART,))
BINDING = Binding(
    root_id=IDS[0],
    query_id=IDS[1],
    partitions=8,
    key_groups=128,
    stores=(StoreSchema("default", KEY, VALUE), StoreSchema("due", KEY, VALUE, 2)),
)
OLD_BINDING = Binding(
    root_id=IDS[0],
    query_id=IDS[1],
    partitions=8,
    key_groups=128,
    stores=(StoreSchema("default", KEY, VALUE),),
    claim=Claim(at_seconds=1767225600.5, by="höst:1", former=IDS[2]),
    former_ids=(IDS[2], IDS[3]),
    initial=True,
    evolution=RUN,
    inputs=("orders", "payments"),
    ticks=True,
)
MAPPED = ColumnChange(store="default", before=VALUE, after=WIDER, sources=(None, 0))
PENDING = Pending(
    batch=3,
    attempt=IDS[3],
    root_id=IDS[0],
    query_id=IDS[1],
    sources=('{"a":1}',),
    schema="digest",
    ids={0: (IDS[0], IDS[1]), 10: ()},
)
ALL_PENDING = Pending(
    batch=3,
    attempt=IDS[3],
    root_id=IDS[0],
    query_id=IDS[1],
    sources=('{"a":1}', ""),
    schema="digest",
    ids={0: (IDS[0],)},
    structure=Structure.V1,
    initial="3:abcd",
    watermark_ms=17,
    outputs={
        "facts": OutputRecord(
            columns=VALUE,
            sink=SinkPosition("tab", 3),
            files=({"path": "a", "rows": 1, "stats": {"ä": [1.5, None]}},),
        ),
        "alerts": OutputRecord(columns=VALUE, rows="3:abcd"),
    },
)
WITH_SINK = Pending(
    batch=3,
    attempt=IDS[3],
    root_id=IDS[0],
    query_id=IDS[1],
    sources=(),
    schema="digest",
    ids={},
    sink=SinkPosition("täb", 3),
)
METRICS = QueryMetrics(batches=3, seconds=1.5, writes=4, record_milliseconds=(1.0, 2.5, 3.0))
READS = {
    PATH: FileRead(path=PATH, size_bytes=9, stamp='"etag"', read_at_seconds=1767225600.25, digest="ab" * 16),
    "state/0/3/5.zip": FileRead(
        path="state/0/3/5.zip",
        size_bytes=9,
        stamp="1767225600.000000000",
        read_at_seconds=1767225600.0,
        digest="",
        fault=ReadFault("bad block ä", True),
    ),
}
LAST = LastPass((3, 9), {NAMED: (8,), STORE: (0, 5)}, frozenset({"b", "a"}))
CURSOR = Cursor(
    {"orders": Asked(5, 2, 1767225600.5, 7), "clicks": Asked(6, 0, 1767225601.0)}, {"gone": 1.5}, frozenset({"b", "a"})
)
POSITION = QueryPosition(4, "ef" * 32)
REPAIRED = QuarantineRecord(position=POSITION, rewritten={"commits/4": "ab"}, created={"offsets/3": "cd"})
REWOUND = QuarantineRecord(
    position=POSITION, rewound={5: "ab", 6: "cd"}, order=("commits/6", "größe"), file_sink="s3://out"
)

CASES = {
    "lease": of_bytes(names.lease(7), LEASE.encoded(2), lambda s: (found := lease.current(s)) and found.lease, LEASE),
    "hold": of_bytes(savepoint_names.hold(RUN), HELD.encoded(3), holds.current, (HELD,)),
    "announcement": Case(
        names.deleting(RUN),
        lambda s: announcements.announce(s, RUN, [PATH, "ä"]),
        announcements.pending_delete,
        frozenset({PATH, "ä"}),
    ),
    "history-snapshot-plan": in_history(
        "snapshot",
        "plan",
        PlannedSnapshot(store=STORE, version=VersionId(7), reason="count", explained="Größe"),
    ),
    "history-snapshot-outcome": in_history(
        "snapshot",
        "outcome",
        TAKEN,
        FailedSnapshot(store=STORE, code="corrupt_file", error="is damaged"),
        FailedRun(failed="interrupted", code="failed"),
    ),
    "history-gc-plan": in_history(
        "gc",
        "plan",
        RetentionHead(head=9, floor=None, findings=("one",), reads=(str(STORE),), read_bytes=4),
        PlannedDeletion(path=PATH, rule="superseded"),
    ),
    "history-gc-outcome": in_history(
        "gc",
        "outcome",
        DELETED,
        DeletedFiles(store=NAMED, outcome="d", files=0, bytes=0, spared=(), detail="", read_files=0, read_bytes=0),
    ),
    **{
        f"quarantine-{name}": Case(
            names.quarantine_position(RUN),
            lambda s, record=record: quarantine.begin(s, RUN, record),  # type: ignore[misc]
            lambda s: quarantine.recorded(s, RUN),
            record,
        )
        for name, record in {
            "position": QuarantineRecord(position=POSITION),
            "repair": REPAIRED,
            "rewind": REWOUND,
        }.items()
    },
    "label": of_bytes(savepoint_names.LABEL, LABEL.encoded(), labels.read, LABEL),
    "label-deleting": of_bytes(
        savepoint_names.label("gone"), DELETING.encoded(), lambda s: labels.read_in_source(s, "gone"), DELETING
    ),
    "mirror": of_bytes(mirror_names.MIRROR, MIRROR.encoded(), mirrors.read, MIRROR),
    "mirror-marks": of_bytes(
        mirror_names.mirrored(2),
        mirrors.encode_marks({"b": '"etag"', "ä": "1.5"}),
        lambda s: mirrors.read_marks(s, [2]),
        {"b": '"etag"', "ä": "1.5"},
    ),
    "clone": of_bytes(names.CLONED, CLONE.encoded(), clones.read, CLONE),
    "savepoint-begun": of_bytes(savepoint_names.BEGUN, BEGUN.encoded(), savepoints.read_begun, BEGUN),
    "savepoint-store": of_bytes(
        FINISHED.path,
        FINISHED.encoded(),
        read_finished,
        {STORE: FINISHED},
    ),
    "journal-switch": of_journal(
        begun(RewriteKind.SWITCH, to=Structure.V1, stores={STORE: VersionId(5, digest=IDS[0]), NAMED: VersionId(5)})
    ),
    "journal-rescale": of_journal(
        begun(
            RewriteKind.RESCALE,
            partitions=16,
            replaced=dict.fromkeys(files_to_replace(4, [STORE, NAMED]), "größe"),
        )
    ),
    "journal-convert": of_journal(
        begun(
            RewriteKind.CONVERT,
            to=Structure.V1,
            partitions=4,
            provider=Provider.HDFS_BACKED,
            stores={StorePath(0, 3, provider=Provider.HDFS_BACKED): VersionId(6)},
            reused=frozenset(),
            file_sink=SinkEntry("s3://out", "_spark_metadata/5"),
        )
    ),
    "journal-edit": of_journal(begun(RewriteKind.EDIT, options=("--where", "k = 'ä'"), rows="ab")),
    "journal-load": of_journal(
        begun(
            RewriteKind.LOAD,
            options=("s3://savepoint",),
            rows="ab",
            watermark_ms=0,
            late_watermark_ms=17,
            partitions=4,
        )
    ),
    "journal-evolve": of_journal(
        begun(
            RewriteKind.EVOLVE,
            options=("--schema", "f"),
            rows="ab",
            replaced=dict.fromkeys(files_of_schemas(4)[:1], "{}"),
            schemas={"default": SchemaChange(VALUE, WIDER)},
        )
    ),
    "journal-migrate": of_journal(
        begun(
            RewriteKind.MIGRATE,
            options=("s3://old", "s3://blueprint", "--map", "1=0"),
            rows="ab",
            partitions=4,
            reused=frozenset(),
        )
    ),
    "journal-made": Case(
        names.switchover(3, f"made-{NAMED.operator}-{NAMED.partition}-{NAMED.store}"),
        made,
        made_in_journal,
        {NAMED: Made("ab" * 16, (PATH.rpartition("/")[2],))},
    ),
    "journal-ended": Case(
        names.switchover(3, "ended"),
        ended,
        lambda s: rewrite_journal.ending(s, begun(RewriteKind.SWITCH)),
        Ending.ABORTED,
    ),
    "binding": of_bytes(
        names.BINDING, encode_binding(BINDING), lambda s: parse_binding(s.read(names.BINDING)), BINDING
    ),
    "binding-claimed": of_bytes(
        names.BINDING, encode_binding(OLD_BINDING), lambda s: parse_binding(s.read(names.BINDING)), OLD_BINDING
    ),
    "later-schema": of_bytes(
        names.later_schema(3),
        columns.encode({"default": WIDER, "other": VALUE}, [MAPPED]),
        columns.read,
        {3: {"default": LaterSchema(WIDER, (None, 0)), "other": LaterSchema(VALUE)}},
    ),
    **{
        f"pending-{name}": Case(
            names.pending(3, IDS[3]),
            lambda s, record=record, metrics=metrics: pending_root(s).write_pending(record, metrics=metrics),  # type: ignore[misc]
            lambda s: pending_root(s).pending(3, IDS[3]),
            record,
        )
        for name, record, metrics in (
            ("short", PENDING, None),
            ("sink", WITH_SINK, METRICS),
            ("all", ALL_PENDING, None),
        )
    },
    "verified": Case(names.VERIFIED, lambda s: write_verified(s, READS), verified, READS),
    "retained": Case(names.RETAINED, lambda s: last_pass.write(s, LAST), last_pass.read, LAST),
    "cursor": of_bytes("cursor", CURSOR.encoded().encode(), lambda s: due.parse(s.read("cursor").decode()), CURSOR),
}


@pytest.mark.parametrize("name", CASES)
def test_a_record_has_the_bytes_that_the_release_before_has_written(name: str) -> None:
    storage, case = MemoryStorage(lambda: 0.0), CASES[name]
    case.write(storage)
    assert storage.read(case.path) == (FIXTURES / name).read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_of_the_release_before_are_the_same_record(name: str) -> None:
    storage, case = MemoryStorage(lambda: 0.0), CASES[name]
    case.write(storage)
    storage.replace(case.path, (FIXTURES / name).read_bytes())
    assert case.read(storage) == case.value
