"""The rows of a checkpoint's state at a batch, decoded by its schema: the rows that Spark's `statestore` source shows.

    contents_at(storage, batch)  ->  Contents  ->  opened(contents, store, ...)  ->  rows of each family

The checkpoint is only read. A version is restored into a scratch folder, and rows are streamed from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import RESTORE, CorruptFile, UnknownFormatVersion
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.format import names, operators
from statekeeper.statestore.format.families import (
    Family,
    hdfs_backed_family,
    parse_families,
    plain_family,
    undescribed_prefix,
)
from statekeeper.statestore.format.family_rows import (
    FAMILY_BYTES,
    DecodedRows,
    decode_keys,
    decode_rows_of,
    family_id,
)
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.state_conf import AVRO, UNSAFE_ROW, StateConf
from statekeeper.statestore.root import binding
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
from statekeeper.statestore.store.engine.scratch import work_folder
from statekeeper.statestore.store.loading.loader import Loader

_LIMITS = EngineLimits(block_bytes=4096)

_READS_ROWS = "to see the rows, read the state with Spark's statestore source"


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The stores of a checkpoint at a batch, and the configuration of their encoding. Batch -1 is version 0."""

    storage: Storage
    batch: int
    stores: Mapping[StorePath, VersionId]
    origin: Origin
    conf: StateConf


@dataclass(frozen=True)
class Layout:
    """The layout of a store's rows, and the path of its schema.

    families      by name; a store without column families has one, named None
    is_described  whether the operator has metadata, which Spark writes since 4.0
    unreadable    the reason why the rows cannot be decoded; None if they can
    """

    families: Mapping[str | None, Family]
    path: str
    is_described: bool = True
    unreadable: UnknownFormatVersion | None = None


@dataclass(frozen=True)
class Pairs:
    """A piece of one family: keys, ascending, and their values, as bytes."""

    family: str | None
    keys: Sequence[bytes]
    values: Sequence[bytes]


def contents_at(storage: Storage, batch: int | None = None, *, any_encoding: bool = False) -> Contents | None:
    """Find the contents at a batch, by default the newest committed one; None if no batch is committed.

    Raises `VersionNotLoadable` for a batch that is not in the commit log, `UnknownFormatVersion` for a state whose encoding
    is not unsaferow (unless `any_encoding`) or whose state store provider is of another library, `NotACheckpoint`,
    `CorruptFile`, `StorageError`; `HalfSwitched` while a schema evolution is half done.
    """
    origin = origin_of(storage)
    heads = catalog.heads(storage) if batch is None else catalog.heads_at(storage, batch)
    if heads is None:
        return None
    half_done = rewrite_journal.open_journal(storage) if origin is Origin.OWN else None
    if half_done is not None and half_done.begun.schemas and heads.batch >= half_done.begun.batch:
        # Between its requests, the schema may be that before the evolution and the rows those after it.
        rewrite_journal.require_none(storage)
    # Every offset log repeats the confs. Those of old batches may have been purged, and version 0 has none.
    newest = catalog.newest_batch(storage)
    described_by = heads.batch if newest is None else newest
    conf = origin.state_conf(storage, replace(heads, batch=described_by), tuple(Provider))
    if conf.encoding != UNSAFE_ROW and not any_encoding:
        raise _other_encoding(conf, names.offsets(described_by))
    return Contents(storage=storage, batch=heads.batch, stores=heads.heads, origin=origin, conf=conf)


def _other_encoding(conf: StateConf, path: str) -> UnknownFormatVersion:
    return UnknownFormatVersion(
        f"the query encodes its rows as {conf.encoding}; this release decodes only unsaferow, the default encoding",
        path=path,
        hint=_READS_ROWS,
    )


def layout_or_bytes(contents: Contents, store: StorePath) -> Layout:
    """Find the layout as `layout`, or return one without families and with the reason why the rows cannot be decoded.

    Raises `CorruptFile` and `ObjectMissing` with the path of the schema.
    """
    if contents.conf.encoding != UNSAFE_ROW:
        return Layout({}, "", unreadable=_other_encoding(contents.conf, names.OFFSETS))
    try:
        return layout(contents, store)
    except UnknownFormatVersion as error:
        return Layout({}, "", unreadable=error)


def layout(contents: Contents, store: StorePath) -> Layout:
    """Find the layout of a store's rows at that batch. It is the same for all partitions.

    Raises `UnknownFormatVersion`, `CorruptFile` and `ObjectMissing` with the path of the schema.
    """
    storage = contents.storage
    if contents.origin is Origin.OWN:
        return _own_layout(contents, store)
    metadata = catalog.operator_at(storage, store.operator, contents.batch)
    info = next((one for one in metadata.stores if one.name == store.store), None) if metadata else None
    if info is not None and info.schema_files:
        # Later schema files add families. With unsaferow none changes an existing one.
        path = names.family_schemas(store.operator, store.store, info.schema_files[-1])
        families: dict[str | None, Family] = {}
        families.update(parse_families(storage.read(path), path, is_avro=contents.conf.encoding == AVRO))
        return Layout(families, path)
    path = names.store_schema(store.operator, store.store)
    key_json, value_json = operators.parse_schema(storage.read(path), path)
    if store.provider is Provider.HDFS_BACKED:
        return Layout({None: hdfs_backed_family(key_json, value_json, path)}, path, is_described=info is not None)
    family = plain_family(
        key_json, value_json, info.prefix_columns if info else undescribed_prefix(key_json, value_json), path
    )
    return Layout({None: family}, path, is_described=info is not None)


def _own_layout(contents: Contents, store: StorePath) -> Layout:
    """The layout in the binding, which records the batch that added a column."""
    bound, older = binding.read_binding(contents.storage)
    if store.operator >= len(bound.stores):
        raise CorruptFile(
            f"has no store for operator {store.operator}; its rows cannot be decoded",
            path=names.BINDING,
            hint=RESTORE,
        )
    schema = bound.stores[store.operator]
    before = (older[batch].get(schema.name) for batch in sorted(older) if batch > contents.batch)
    value_json = next((text for text in before if text is not None), schema.value_json)
    return Layout(
        {None: plain_family(schema.key_json, value_json, schema.prefix_columns, names.BINDING)}, names.BINDING
    )


def decoded_pairs(contents: Contents, store: StorePath, store_layout: Layout, pairs: Pairs) -> DecodedRows:
    """Decode the columns of keys and values of a store. Raises `CorruptFile` for bytes that do not fit the schema."""
    skip = 0 if pairs.family is None else FAMILY_BYTES
    with _naming_version(contents, store, store_layout, pairs.family):
        family = _required(store_layout, pairs.family)
        return decode_rows_of(pairs.keys, pairs.values, family, contents.conf, skip=skip)


def decoded_keys(
    contents: Contents, store: StorePath, store_layout: Layout, family: str | None, keys: Sequence[bytes]
) -> pa.Table:
    """Decode the columns of keys of a family. Raises as `decoded_pairs`."""
    skip = 0 if family is None else FAMILY_BYTES
    with _naming_version(contents, store, store_layout, family):
        return decode_keys(keys, _required(store_layout, family), skip=skip)


def _required(store_layout: Layout, name: str | None) -> Family:
    family = store_layout.families.get(name)
    if family is None:
        raise CorruptFile(
            "the schema has column families, but the store has none",
            hint="restore a snapshot that Spark wrote",
        )
    return family


@contextlib.contextmanager
def _naming_version(contents: Contents, store: StorePath, store_layout: Layout, family: str | None) -> Iterator[None]:
    """Name the version and the schema in an error."""
    try:
        yield
    except CorruptFile as error:
        batch = contents.stores[store].in_words
        of_family = "" if family is None else f", family {family}"
        what = f"the state of {batch}{of_family} does not fit the schema in {store_layout.path}: {error.what}"
        if not store_layout.is_described:
            raise UnknownFormatVersion(
                f"{what}; the operator has no metadata, so the encoding of its keys is unknown",
                path=str(store),
                hint="to write the metadata, start the query once with Spark 4.0 or later",
            ) from error
        raise CorruptFile(what, path=str(store), hint=error.hint) from error


class OpenStore:
    """One version of one store, restored and open for reading.

    families           the ids of its column families, by name
    skipped_snapshots  snapshots that cannot be a base, each with its problem
    """

    def __init__(
        self,
        *,
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
        """Iterate over all pairs, or those of one family, in the order of the keys' bytes."""
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

    def values_of(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read the value of each key; None if the version does not have it. Sorted keys are fastest."""
        return self._database.get_many(keys)

    def decoded(self, pairs: Pairs) -> DecodedRows:
        """Decode the columns of keys and values. Raises `CorruptFile` for bytes that do not fit the schema."""
        return decoded_pairs(self._contents, self._store, self._layout, pairs)

    def _family_of(self, key: bytes) -> str:
        number = family_id(key)
        name = self._names.get(number)
        is_known = name in self._layout.families or self._layout.unreadable is not None
        if name is None or not is_known:
            known = f"family {name}" if name else f"a family with the id {number}"
            raise CorruptFile(
                f"has rows of {known}, which the schema does not contain; they cannot be decoded",
                path=str(self._store),
                hint=f"restore {self._layout.path} from a backup",
            )
        return name


@contextlib.contextmanager
def opened(
    contents: Contents, store: StorePath, store_layout: Layout, *, scratch: Path, clock: Clock, ids: Ids
) -> Iterator[OpenStore]:
    """Restore a store into a temporary folder below `scratch`, and open it.

    Raises `VersionNotLoadable`, `UnknownFormatVersion`, `LocalDiskFull`, `StorageError`.
    """
    # Errors of the caller inside this block are not errors of the scratch folder.
    with work_folder(scratch, "contents") as folder:
        cache = LocalCopyFolder(folder / "store", _LIMITS, ids)
        loader = Loader(
            store, contents.storage, cache, _LIMITS, clock=clock, lock_timeout_seconds=0, conf=contents.conf
        )
        restored = loader.restore(contents.stores[store], folder / "database")
        with restored.database as database:
            families = {} if restored.base is None else restored.base.column_families
            yield OpenStore(
                contents=contents,
                store=store,
                layout=store_layout,
                database=database,
                ids=families,
                skipped_snapshots=restored.report.skipped_snapshots,
            )
