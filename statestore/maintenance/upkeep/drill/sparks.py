"""Compares restored rows with those that Spark's `statestore` reader shows, in a local session of PySpark.

    part of a store                                       the options with which Spark's reader shows it
    the whole store, without column families              storeName, unless it is the default store
    a family of a join (formats 3 and 4)                  storeName with the name of the family
    a variable of transformWithState                      stateVarName, flattenCollectionTypes
    $<time>Timers_keyToTimestamp                          readRegisteredTimers
    any other family: indexes of timers and times to      _readAllColumnFamilies, from Spark 4.2 on, which Spark's own
      live, counters of lists                               repartition reads; before, none

`joinSide` shows less than the names of a join's families: neither the index nor whether a row has had a match, and of
format 4 a wrong event time.

Both sides digest decoded rows, in the workers of Spark: no rows are collected. Only the partitions of the sample are read.
Spark imports are in the functions: only `--against-spark` needs PySpark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.base.errors import StatekeeperError, UnsupportedEnvironment
from statekeeper.statestore.base.extras import how_to_install, missing
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.rows import Contents, OpenStore, layout_or_bytes
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.names import DEFAULT_STORE, StorePath
from statekeeper.statestore.format.partition_keys import JOIN, TRANSFORM
from statekeeper.statestore.format.plain_values import grouped, plain_rows
from statekeeper.statestore.format.provider import PROVIDER
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.unsafe_row import decode_rows
from statekeeper.statestore.maintenance.executors.spark import is_connect
from statekeeper.statestore.maintenance.upkeep.drill.model import Against, Comparison, DrillStore, Shown
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.rows_digest import RowsDigest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIRST_WITH_A_READER = 4
_LONGEST_REASON = 300

FILE = "file://"
"""Spark reads roots at such a URL in place, and a local copy of the stores of others."""

_JOIN_4 = "spark.sql.streaming.join.stateFormatV4.enabled"
_READ_ALL = "_readAllColumnFamilies"
_ALL_FAMILIES = (_READ_ALL, "true")
_TIMERS_BY_KEY = ("$procTimers_keyToTimestamp", "$eventTimers_keyToTimestamp")
_INTERNAL = "$"


def refusal(*, is_on_cluster: bool) -> StatekeeperError | None:
    """Return why rows cannot be compared with Spark here; None if nothing prevents it before Spark starts.

    `is_on_cluster`: a cluster restores the stores.
    """
    if is_on_cluster:
        return on_cluster()
    if (package := missing("pyspark")) is not None:
        return UnsupportedEnvironment(
            f"--against-spark reads the state with Spark, and the package {package} is not installed; nothing was restored",
            hint=f"run: {how_to_install('spark')}. Or leave out --against-spark",
        )
    import pyspark

    if _release(pyspark.__version__) < (_FIRST_WITH_A_READER, 0):
        return UnsupportedEnvironment(
            f"--against-spark needs the reader of Spark 4.0 and later, and PySpark {pyspark.__version__} is installed; "
            "nothing was restored",
            hint="install pyspark 4.0 or later, or leave out --against-spark",
        )
    if is_connect():
        return UnsupportedEnvironment(
            "--against-spark needs a classic Spark session, and the environment of this process has Spark Connect; nothing "
            "was restored",
            hint="run the command without the variables SPARK_REMOTE and SPARK_CONNECT_MODE_ENABLED",
        )
    return None


def on_cluster() -> UnsupportedEnvironment:
    """Return the error of a comparison with Spark whose session is that of a cluster."""
    return UnsupportedEnvironment(
        "--against-spark reads files of this machine with Spark, which the hosts of a cluster cannot read; nothing was "
        "restored",
        hint="on a machine with PySpark and Java, run: statekeeper drill ROOT --against-spark --executor local. Or "
        "leave out --against-spark",
    )


# -- rows as texts -----------------------------------------------------------------------------------------------------


@dataclass
class _Digest:
    """A digest of decoded rows, in the order of the store. Rows with equal keys in sequence are the elements of a list: the
    digest contains their places."""

    rows: RowsDigest = field(default_factory=RowsDigest)
    _key: bytes = b""
    _place: int = 0

    def add(self, keys: Iterable[Any], values: Iterable[Any]) -> None:
        """Add decoded rows."""
        for key, value in zip(keys, values, strict=True):
            text = json.dumps(key, sort_keys=True).encode()
            self._place = self._place + 1 if text == self._key else 0
            self._key = text
            place = b"#%d" % self._place if self._place else b""
            self.rows.add([(text + place, json.dumps(value, sort_keys=True).encode())])

    def __str__(self) -> str:
        return str(self.rows)


def shown_digests(opened: OpenStore) -> Mapping[str | None, str]:
    """Digest the decoded rows of each family of a store. Raises `CorruptFile`, `UnknownFormatVersion`."""
    found: dict[str | None, _Digest] = {}
    for pairs in opened.pairs():
        rows = opened.decoded(pairs)
        values = grouped(_values(rows.values), rows.counts)
        digest = found.setdefault(pairs.family, _Digest())
        for key, of_key in zip(plain_rows(rows.keys), values, strict=True):
            digest.add([key] * len(of_key), of_key)
    return {family: str(digest) for family, digest in found.items()}


def _values(table: pa.Table) -> list[dict[str, Any]]:
    """Convert values, without columns that are null in every row: Spark's reader leaves them out of timers."""
    void = {column.name for column in table.schema if pa.types.is_null(column.type)}
    return [{name: one for name, one in row.items() if name not in void} for row in plain_rows(table)]


# -- what the reader shows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """One way to read a store: the options of Spark's reader, and the families that it shows."""

    options: tuple[tuple[str, str], ...]
    families: tuple[str | None, ...]

    @property
    def is_of_all(self) -> bool:
        return _ALL_FAMILIES in self.options


def views(operator: str, store: str, families: Collection[str | None]) -> list[View]:
    """Return the ways that together show all families. Pure. `operator`: its name in the metadata."""
    named = sorted(name for name in families if name is not None)
    if not named:
        return [View(() if store == DEFAULT_STORE else (("storeName", store),), (None,))]
    found, others = list[View](), list[str]()
    for family in named:
        options = _options(operator, family)
        if options is None:
            others.append(family)
        else:
            found.append(View(options, (family,)))
    return [*found, View((_ALL_FAMILIES,), tuple(others))] if others else found


def _options(operator: str, family: str) -> tuple[tuple[str, str], ...] | None:
    if operator == JOIN:
        return (("storeName", family),)
    if operator not in TRANSFORM:
        return None
    if family in _TIMERS_BY_KEY:
        return (("readRegisteredTimers", "true"),)
    if family.startswith(_INTERNAL):
        return None
    return (("stateVarName", family), ("flattenCollectionTypes", "true"))


# -- the comparison ----------------------------------------------------------------------------------------------------

Compared = dict[StorePath, Comparison]
At = Callable[[int, Collection[StorePath]], AbstractContextManager[Storage]]
"""Gives a root on a local disk that has these stores at a batch."""


@dataclass
class Seen:
    """What the comparison of one store has found: the families that are equal, and that differ, and why others were not
    compared."""

    ours: Mapping[str | None, str]
    equal: list[str | None] = field(default_factory=list)
    other: list[str | None] = field(default_factory=list)
    unknown: dict[str | None, str] = field(default_factory=dict)

    def add(self, family: str | None, theirs: str) -> None:
        mine = self.ours.get(family, str(RowsDigest()))
        (self.equal if mine == theirs else self.other).append(family)

    def leave(self, why: str) -> None:
        """Give the reason to the families that were not compared."""
        seen = {*self.equal, *self.other, *self.unknown}
        self.unknown |= dict.fromkeys(self.ours.keys() - seen if seen or self.ours else {None}, why)

    def comparison(self, batch: int, *, is_copy: bool) -> Comparison:
        """The result. Families that were not compared leave it open, unless another one differs."""
        reader = f"Spark's reader at batch {batch:,}{' of a local copy' if is_copy else ''}"
        if self.other:
            of_family = "" if self.other[0] is None else f", column family {self.other[0]}"
            return Comparison(against=Against.SPARK, what=f"{reader}{of_family}", is_equal=False)
        of_reasons: dict[str, list[str]] = {}
        for family, reason in sorted(self.unknown.items(), key=str):
            of_reasons.setdefault(reason, []).extend([] if family is None else [family])
        why = "; ".join(
            f"column {'family' if len(names) == 1 else 'families'} {', '.join(names)}: {reason}" if names else reason
            for reason, names in of_reasons.items()
        )
        if not self.equal:
            return unknown(why)
        families = [one for one in self.equal if one is not None]
        what = f"{counted(len(families), 'column family')} of {reader}" if families else reader
        if why:
            why = f"equal to {what}; {why}"
        return Comparison(against=Against.SPARK, what=what, is_equal=True, why=why, proves=not why)


def compare(
    contents: Contents, restored: Sequence[tuple[DrillStore, Shown]], structure: Structure, *, at: At, is_copy: bool
) -> Compared:
    """Compare the digests of restored stores with those of Spark's reader. One Spark job for each kind of store, version,
    and way to read.

    `restored`: the digests of `shown_digests`, or why there are none; `at`: where Spark reads them. A store that cannot be
    compared has the reason. An error hides no difference that was found before.
    """
    found: Compared = {}
    groups: dict[int, dict[StorePath, Seen]] = {}
    for action, shown in restored:
        if isinstance(shown, StatekeeperError):
            found[action.store] = unknown(f"Statekeeper does not decode its rows: {shown.what}")
        else:
            groups.setdefault(action.version.version - 1, {})[action.store] = Seen(shown)
    if not groups:
        return found
    try:
        session = _session(contents, structure, is_copy=is_copy)
    except Exception as error:  # noqa: BLE001 - Spark raises errors of many kinds, and each means: not compared
        why = f"Spark does not start: {_told(error)}"
        return found | {store: unknown(why) for stores in groups.values() for store in stores}
    for batch, stores in sorted(groups.items()):
        try:
            with at(batch, list(stores)) as place:
                _compare_at(session, contents, place, batch, stores)
        except (StatekeeperError, OSError) as error:
            for seen in stores.values():
                seen.leave(f"Spark's reader gets no files of batch {batch:,}: {_told(error)}")
        found |= {store: seen.comparison(batch, is_copy=is_copy) for store, seen in stores.items()}
    return found


def _compare_at(
    session: SparkSession, contents: Contents, place: Storage, batch: int, stores: Mapping[StorePath, Seen]
) -> None:
    """Compare stores of one batch. An error concerns only the stores of one kind."""
    kinds: dict[tuple[int, str], dict[int, Seen]] = {}
    for store, seen in stores.items():
        kinds.setdefault((store.operator, store.store), {})[store.partition] = seen
    for (operator, name), partitions in kinds.items():
        try:
            metadata = catalog.operator_at(place, operator, batch)
            families = layout_or_bytes(contents, StorePath(operator, min(partitions), name)).families
        except StatekeeperError as error:
            for seen in partitions.values():
                seen.leave(f"its schema is not found: {_told(error)}")
            continue
        known = {family for seen in partitions.values() for family in seen.ours} | families.keys()
        for view in views(metadata.name if metadata else "", name, known):
            try:
                shown = _digests(session, place, operator, batch, view, list(partitions), families)
            except Exception as error:  # noqa: BLE001 - Spark raises errors of many kinds, and each means: not compared
                why = _why(error, view, contents.origin)
                for seen in partitions.values():
                    seen.unknown |= dict.fromkeys(view.families, why)
                continue
            for partition, seen in partitions.items():
                for family in view.families:
                    seen.add(family, shown.get((partition, family), str(RowsDigest())))


def _why(error: Exception, view: View, origin: Origin) -> str:
    import pyspark

    if view.is_of_all and _release(pyspark.__version__) < _FIRST_WITH_ALL_FAMILIES:
        return f"not shown by the reader of Spark {pyspark.__version__}; that of Spark 4.2 shows it"
    in_batch_logs = "; if its changes are in batch logs, first run: statekeeper unpack ROOT"
    return f"Spark's reader fails: {_told(error)}{in_batch_logs if origin is Origin.OWN else ''}"


def _told(error: Exception) -> str:
    text = error.what if isinstance(error, StatekeeperError) else str(error)
    return next(iter(text.strip().splitlines()), type(error).__name__)[:_LONGEST_REASON]


def unknown(why: str) -> Comparison:
    """The comparison of a store that was not possible."""
    return Comparison(against=Against.SPARK, what="", is_equal=None, why=why)


_FIRST_WITH_ALL_FAMILIES = (4, 2)


def _release(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _session(contents: Contents, structure: Structure, *, is_copy: bool) -> SparkSession:
    """A session for this state: beside the active session of this process, otherwise a local one that stays. Raises
    `UnsupportedEnvironment`, and errors of Spark."""
    from pyspark.sql import SparkSession

    started = SparkSession.builder.master("local[2]").appName("statekeeper drill")
    for name, value in {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}.items():
        started = started.config(name, value)
    session = started.getOrCreate().newSession()
    if not hasattr(session, "_jsparkSession"):
        raise UnsupportedEnvironment(
            "--against-spark needs a classic Spark session, and this process has one of Spark Connect",
            hint="run statekeeper in a process without SPARK_REMOTE",
        )
    master = session.sparkContext.master or ""
    if is_copy and not master.startswith("local"):
        raise UnsupportedEnvironment(
            f"the Spark session of this process runs its tasks on {master}, which cannot read the copy on this machine",
            hint="run statekeeper in a process of its own",
        )
    confs = {
        PROVIDER: contents.conf.provider.class_name,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        _JOIN_4: "true",
        **structure.conf,
    }
    for name, value in confs.items():
        session.conf.set(name, value)
    # Spark 4.2 asks for the coordinator of the state stores before anything has started it.
    session._jsparkSession.sessionState().streamingQueryManager()  # noqa: SLF001 - Spark has no call for it
    return session


_Read = tuple[str | None, str]
"""A family of a partition, and the digest of its rows."""


def _digests(
    session: SparkSession,
    place: Storage,
    operator: int,
    batch: int,
    view: View,
    partitions: Collection[int],
    families: Mapping[str | None, Family],
) -> dict[tuple[int, str | None], str]:
    """Digest the rows that Spark shows of some partitions, by partition and family."""
    reader = session.read.format("statestore").options(operatorId=operator, batchId=batch, **dict(view.options))
    # With its scheme, because the default file system of the session may be another one.
    shown = reader.load(FILE + unquote(place.url.removeprefix(FILE)))
    digested = _digested_bytes(shown, view, families) if view.is_of_all else _digested_rows(shown, view)
    in_order = sorted(partitions)
    # One task reads one partition: the others of the store are not loaded.
    made: list[list[_Read]] = session.sparkContext.runJob(digested.rdd, _as_list, in_order)
    return {(one, family): digest for one, rows in zip(in_order, made, strict=True) for family, digest in rows}


def _as_list(rows: Iterable[Sequence[Any]]) -> list[list[_Read]]:
    return [[(family, digest) for family, digest in rows]]


_DIGESTS = "family string, digest string"


def _digested_rows(shown: DataFrame, view: View) -> DataFrame:
    columns = [name for name in shown.columns if name != "partition_id"]
    return shown.select(*columns).mapInArrow(partial(_digest_rows, view.families[0]), _DIGESTS)


def _digest_rows(family: str | None, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Digest the rows of one family. Runs in a worker of Spark."""
    found = _Digest()
    for batch in batches:
        found.add(*_as_stored(pa.Table.from_batches([batch])))
    yield _record({family: found})


def _as_stored(table: pa.Table) -> tuple[list[Any], list[Any]]:
    """Convert what the reader shows to keys and values as the store has them."""
    names = table.column_names
    keys: list[Any] = plain_rows(_flat(table, "key"))
    if "expiration_timestamp_ms" in names:
        times = table.column("expiration_timestamp_ms").to_pylist()
        return [{"key": key, "expiryTimestampMs": at} for key, at in zip(keys, times, strict=True)], [{}] * len(keys)
    if "user_map_key" in names:
        pairs = zip(keys, plain_rows(_flat(table, "user_map_key")), strict=True)
        return [{"key": key, "userKey": user} for key, user in pairs], _values(_flat(table, "user_map_value"))
    return keys, _values(_flat(table, "list_element" if "list_element" in names else "value"))


def _flat(table: pa.Table, name: str) -> pa.Table:
    """The fields of a struct as columns."""
    structs = table.column(name).combine_chunks()
    return pa.Table.from_arrays(structs.flatten(), schema=pa.schema(list(structs.type)))


def _digested_bytes(shown: DataFrame, view: View, families: Mapping[str | None, Family]) -> DataFrame:
    from pyspark.sql import functions

    wanted = {name: families[name] for name in view.families}
    some = shown.where(functions.col("column_family_name").isin(list(wanted)))
    columns = some.select("column_family_name", "key_bytes", "value_bytes")
    return columns.mapInArrow(partial(_digest_bytes, wanted), _DIGESTS)


def _digest_bytes(families: Mapping[str | None, Family], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Digest rows that Spark has decoded from the bytes of their family to UnsafeRow. Runs in a worker of Spark."""
    found = {name: _Digest() for name in families}
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for name in table.column("column_family_name").unique().to_pylist():
            rows = table.filter(pc.equal(table.column("column_family_name"), name))
            keys, values = (rows.column(part).cast(pa.large_binary()) for part in ("key_bytes", "value_bytes"))
            family = families[name]
            found[name].add(plain_rows(decode_rows(keys, family.key)), _values(decode_rows(values, family.value)))
    yield _record(found)


def _record(found: Mapping[str | None, _Digest]) -> pa.RecordBatch:
    arrays = [pa.array(list(found), pa.string()), pa.array(list(map(str, found.values())), pa.string())]
    return pa.RecordBatch.from_arrays(arrays, names=["family", "digest"])
