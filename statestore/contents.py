"""What a checkpoint's state holds at a batch, row by row, decoded by its own schema: what Spark's `statestore` source
shows, without Spark.

    contents_at(storage, batch)  ->  Contents  ->  opened(contents, store, ...)  ->  rows of each family

Only reads the checkpoint; a version is restored below a scratch folder, and rows are streamed from there.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from statestore import binding, catalog
from statestore.clock import Clock, Ids
from statestore.engine.local_copy import LocalCopyFolder
from statestore.engine.rocks import Database, EngineLimits, translated
from statestore.errors import CorruptFile, UnknownFormatVersion
from statestore.format import names, operators
from statestore.format.families import Family, parse_families, plain_family, undescribed_prefix
from statestore.format.family_rows import FAMILY_BYTES, DecodedRows, decode_rows_of, family_id
from statestore.format.names import StorePath, VersionId
from statestore.format.state_conf import OURS, UNSAFE_ROW, StateConf
from statestore.format.state_rows import PREFIX_COLUMNS
from statestore.loading.loader import Loader
from statestore.storage import Storage

_LIMITS = EngineLimits(block_bytes=4096)

_READS_ROWS = "this release decodes rows as unsaferow, which is what a query has that chose nothing"


@dataclass(frozen=True)
class Contents:
    """The stores of a checkpoint at a batch, and what their bytes depend on. Batch -1 is version 0: all are empty."""

    storage: Storage
    batch: int
    stores: Mapping[StorePath, VersionId]
    is_own: bool
    conf: StateConf


@dataclass(frozen=True)
class Layout:
    """How a store's rows are laid out, and the file that says so. `families` by name; a store without column families has
    one, named None. `is_described`: whether the operator has metadata, which Spark writes since 4.0."""

    families: Mapping[str | None, Family]
    path: str
    is_described: bool = True


@dataclass(frozen=True)
class Pairs:
    """Some keys of one family, ascending, with their values, as bytes."""

    family: str | None
    keys: Sequence[bytes]
    values: Sequence[bytes]


def contents_at(storage: Storage, batch: int | None = None) -> Contents | None:
    """The contents at a batch, by default at the newest committed one; None when no batch was committed yet.

    Raises `VersionNotLoadable` for a batch that the commit log does not have, `UnknownFormatVersion` for a state that is
    not encoded as unsaferow or whose store is not RocksDB, `NotACheckpoint`, `CorruptFile`, `StorageError`.
    """
    is_own = storage.stat(names.BINDING) is not None
    heads = catalog.heads(storage) if batch is None else catalog.heads_at(storage, batch)
    if heads is None:
        return None
    # Every batch repeats the confs: those of old ones may have been purged, version 0 has none.
    newest = catalog.newest_batch(storage)
    described_by = heads.batch if newest is None else newest
    conf = OURS if is_own else catalog.state_conf(storage, replace(heads, batch=described_by))
    if conf.encoding != UNSAFE_ROW:
        raise UnknownFormatVersion(
            f"the query's rows are encoded as {conf.encoding}", path=names.offsets(described_by), hint=_READS_ROWS
        )
    return Contents(storage, heads.batch, heads.heads, is_own, conf)


def layout(contents: Contents, store: StorePath) -> Layout:
    """How the rows of a store are laid out at that batch; it is the same for all partitions.

    Raises `UnknownFormatVersion`, `CorruptFile` and `ObjectMissing`, which name the schema's file.
    """
    storage = contents.storage
    if contents.is_own:
        return _own_layout(contents, store)
    metadata = catalog.operator_at(storage, store.operator, contents.batch)
    info = next((one for one in metadata.stores if one.name == store.store), None) if metadata else None
    if info is not None and info.schema_files:
        # Later files add families; with unsaferow none changes one that was there.
        path = names.family_schemas(store.operator, store.store, info.schema_files[-1])
        families: dict[str | None, Family] = {}
        families.update(parse_families(storage.read(path), path))
        return Layout(families, path)
    path = names.store_schema(store.operator, store.store)
    key_json, value_json = operators.parse_schema(storage.read(path), path)
    family = plain_family(
        key_json, value_json, info.prefix_columns if info else undescribed_prefix(key_json, value_json), path
    )
    return Layout({None: family}, path, is_described=info is not None)


def _own_layout(contents: Contents, store: StorePath) -> Layout:
    """By the binding, which knows since which batch rows have the columns that were added."""
    bound, older = binding.read_binding(contents.storage)
    if store.operator >= len(bound.stores):
        raise CorruptFile(f"names no store for operator {store.operator}", path=names.BINDING)
    schema = bound.stores[store.operator]
    before = (older[batch].get(schema.name) for batch in sorted(older) if batch > contents.batch)
    value_json = next((text for text in before if text is not None), schema.value_json)
    return Layout({None: plain_family(schema.key_json, value_json, PREFIX_COLUMNS, names.BINDING)}, names.BINDING)


class OpenStore:
    """One version of one store, restored and open for reading. `families` are the ids of its column families, by name;
    `skipped_snapshots`: what was to be the base and cannot be used, and why."""

    def __init__(
        self,
        contents: Contents,
        store: StorePath,
        layout: Layout,
        database: Database,
        ids: Mapping[str, int],
        skipped_snapshots: tuple[str, ...] = (),
    ):
        self.skipped_snapshots = skipped_snapshots
        self._contents = contents
        self._store = store
        self._layout = layout
        self._database = database
        self._names = {number: name for name, number in ids.items()}
        self.families = ids

    def pairs(self, family: str | None = None) -> Iterator[Pairs]:
        """All keys in the order of their bytes, with their values, some at a time; of one family if it is named."""
        if not self._names:
            if family is None:
                yield from (Pairs(None, keys, values) for keys, values in self._database.scan())
            return
        prefix = b""
        if family is not None:
            number = next((number for number, name in self._names.items() if name == family), None)
            if number is None:
                return
            prefix = number.to_bytes(FAMILY_BYTES, "little", signed=True)
        for keys, values in self._database.scan(prefix):
            begin = 0
            while begin < len(keys):
                end = begin + 1
                while end < len(keys) and keys[end][:FAMILY_BYTES] == keys[begin][:FAMILY_BYTES]:
                    end += 1
                yield Pairs(self._family_of(keys[begin]), keys[begin:end], values[begin:end])
                begin = end

    def decoded(self, pairs: Pairs) -> DecodedRows:
        """The columns of keys and values. Raises `CorruptFile` for bytes that are not what the schema says."""
        skip = 0 if pairs.family is None else FAMILY_BYTES
        try:
            family = self._layout.families.get(pairs.family)
            if family is None:
                raise CorruptFile(
                    "the store has no column families, the schema has", hint="restore a snapshot of Spark's"
                )
            return decode_rows_of(pairs.keys, pairs.values, family, self._contents.conf, skip=skip)
        except CorruptFile as error:
            version = self._contents.stores[self._store].version
            of_family = "" if pairs.family is None else f", family {pairs.family}"
            what = f"version {version}{of_family}, by the schema in {self._layout.path}: {error.what}"
            if not self._layout.is_described:
                raise UnknownFormatVersion(
                    f"{what}; the operator has no metadata, which says how its keys are encoded",
                    path=str(self._store),
                    hint="Spark 4.0 and later write it when they start the query",
                ) from error
            raise CorruptFile(what, path=str(self._store), hint=error.hint) from error

    def _family_of(self, key: bytes) -> str:
        number = family_id(key)
        name = self._names.get(number)
        if name is None or name not in self._layout.families:
            known = f"family {name}" if name else f"a family with the id {number}"
            raise CorruptFile(
                f"holds rows of {known}, which the schema does not describe",
                path=str(self._store),
                hint=f"restore {self._layout.path}",
            )
        return name


@contextlib.contextmanager
def opened(
    contents: Contents, store: StorePath, store_layout: Layout, *, scratch: Path, clock: Clock, ids: Ids
) -> Iterator[OpenStore]:
    """A store, restored into a folder of its own below `scratch`, which is gone afterwards.

    Raises `VersionNotLoadable`, `UnknownFormatVersion`, `LocalDiskFull`, `StorageError`.
    """
    with translated(scratch):
        scratch.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=scratch, prefix="contents-")
    # What goes wrong with the rows, where they are taken to, is no fault of the scratch folder.
    with folder as name:
        cache = LocalCopyFolder(Path(name) / "store", _LIMITS, ids)
        loader = Loader(
            store, contents.storage, cache, _LIMITS, clock=clock, lock_timeout_seconds=0, conf=contents.conf
        )
        restored = loader.restore(contents.stores[store], Path(name) / "database")
        with restored.database as database:
            families = {} if restored.base is None else restored.base.column_families
            yield OpenStore(contents, store, store_layout, database, families, restored.report.skipped_snapshots)
