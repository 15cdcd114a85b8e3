"""Gathers the facts of a migration. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import Ending, RewriteJournal, RewriteKind
from statekeeper.statestore.contents import restart
from statekeeper.statestore.contents.file_logs import positions_at
from statekeeper.statestore.contents.rows import Contents, Layout, opened
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.families import family_texts, watermark_columns
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance import executors
from statekeeper.statestore.maintenance.copies.clones.model import Part, part_of
from statekeeper.statestore.maintenance.rewrites import whole_stores
from statekeeper.statestore.maintenance.rewrites.migration.model import DroppedOperator, MigrationFacts, Place, Side
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import OperatorFacts, RewriteFacts
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.storage import Entry, Storage, read_or_none

_OURS = (names.LEASES, names.HISTORY, names.SWITCHOVERS)
"""Folders in which a migration writes before it has written anything else, and which remain after it was reversed."""


def gather(
    old: Storage, blueprint: Storage, destination: Storage, *, scratch: Path, policy: AuditPolicy | None = None
) -> MigrationFacts:
    """Gather the facts, with an audit of both checkpoints. `scratch`: the folder for local work.

    Requests: those of `whole_stores.gather` and one listing for each location, and one for each file that describes an
    operator. Raises as `whole_stores.gather`.
    """
    present, wanted = (
        _with_offsets(one, whole_stores.gather(one, scratch=scratch, policy=policy, of_load=True))
        for one in (old, blueprint)
    )
    batch, entries = present.stopped.batch, {entry.path: entry for entry in old.list("")}
    sources, lost = _sources(old, present, entries)
    is_native = Origin.OWN not in (present.stopped.origin, wanted.stopped.origin)
    half_done = rewrite_journal.open_journal(destination)
    before = None if not batch else _text(old, names.offsets(batch - 1))
    if batch and before is None and present.stopped.origin is Origin.OWN:
        lost = (f"{names.offsets(batch - 1)} is missing, which a start of the job needs: restore it from a backup",)
    return MigrationFacts(
        old=_side(old, present),
        blueprint=_side(blueprint, wanted),
        destination=destination.url,
        query_id=logs.parse_metadata(old.read(names.QUERY_METADATA), names.QUERY_METADATA),
        before=before,
        sources=sources,
        new_folders=frozenset(blueprint.folders(names.SOURCES)),
        lost_logs=lost,
        described=_described(blueprint) if is_native else {},
        existing=_foreign(destination),
        half_done=half_done,
        completed=_completed(destination) if half_done is None else None,
        newest=catalog.newest_batch(destination),
        overlaps=tuple(_overlaps(old, blueprint, destination)),
        free_at_destination=destination.location.free,
    )


@dataclass(frozen=True)
class CountEach:
    """The task that counts the rows of a store, for which it restores it."""

    contents: Contents

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.contents.storage,)

    def __call__(self, item: tuple[StorePath, Layout], place: executors.Place) -> int:
        """Raises as `contents.rows.opened`."""
        store, layout = item
        with opened(
            self.contents, store, layout, scratch=place.folder, clock=place.clock, ids=place.ids
        ) as opened_store:
            return sum(len(pairs.keys) for pairs in opened_store.pairs())


def counted(
    old: Storage, facts: RewriteFacts, dropped: Sequence[OperatorFacts], executor: executors.Executor
) -> tuple[DroppedOperator, ...]:
    """Count the rows of operators. Raises as `CountEach`."""
    stopped, layouts = facts.stopped, {operator.operator: operator.layouts for operator in dropped}
    stores = {one.store: one.head for one in stopped.stores if one.store.operator in layouts}
    assert stopped.batch is not None
    contents = Contents(storage=old, batch=stopped.batch, stores=stores, origin=stopped.origin, conf=stopped.conf)
    items = []
    for store in stores:
        layout = layouts[store.operator].get(store.store)
        assert isinstance(layout, Layout)
        items.append((store, layout))
    rows = Counter[int]()
    for (store, _), count in zip(items, executors.results_of(executor, CountEach(contents), items), strict=True):
        rows[store.operator] += count
    return tuple(DroppedOperator(operator=operator, rows=rows[operator.operator]) for operator in dropped)


def _with_offsets(storage: Storage, facts: RewriteFacts) -> RewriteFacts:
    """Add the newest offset log of a job root, which other rewrites do not need."""
    if facts.stopped.origin is not Origin.OWN or facts.stopped.batch is None:
        return facts
    return replace(facts, offsets=_text(storage, names.offsets(facts.stopped.batch)) or "")


def _text(storage: Storage, path: str) -> str | None:
    body = read_or_none(storage, path)
    return None if body is None else body.decode("utf-8", "replace")


def _sources(
    old: Storage, facts: RewriteFacts, entries: Mapping[str, Entry]
) -> tuple[Mapping[str, Entry], tuple[str, ...]]:
    """Return the files of the sources that the newest batch has read, and why logs that a start needs are missing."""
    batch = facts.stopped.batch
    if batch is None or not facts.offsets or facts.stopped.origin is Origin.OWN:
        return {}, ()
    offsets = logs.parse_offsets(facts.offsets.encode(), names.offsets(batch))
    lost = []
    try:
        restart.require_original(offsets, batch)
    except StatekeeperError as error:
        lost.append(f"{error.path}: {error.what}")
    of_sources = {path: entry for path, entry in entries.items() if path.startswith(f"{names.SOURCES}/")}
    positions = positions_at(old, batch, offsets, entries)
    lost += [f"{one.path}: {one.what}" for one in restart.lost_logs(batch, entries, positions, has_state=True)]
    read = restart.read_entries(positions, of_sources)
    parsed = restart.read_entries(positions.__class__({}), of_sources)
    others = {path: entry for path, entry in of_sources.items() if path not in parsed}
    return {**others, **read}, tuple(lost)


def _described(blueprint: Storage) -> dict[str, bytes]:
    """Read the files that describe the operators: their newest metadata, and the schemas that it names."""
    paths = [entry.path for entry in blueprint.list(names.STATE) if part_of(entry.path) is Part.METADATA]
    newest = catalog.newest_metadata(paths)
    found = {path: blueprint.read(path) for path in newest.values()}
    named = set()
    for path, body in found.items():
        metadata = operators.parse_operator(body, path)
        for store in metadata.stores:
            named |= {names.family_schemas(metadata.operator, store.name, file) for file in store.schema_files}
    for path in paths:
        is_schema = names.parse_operator_metadata(path) is None and "/_stateSchema/" not in path
        if is_schema or path in named:
            found[path] = blueprint.read(path)
    return found


def _side(storage: Storage, facts: RewriteFacts) -> Side:
    variables: dict[tuple[int, str], str] = {}
    time_modes: dict[int, str] = {}
    if facts.stopped.origin is Origin.NATIVE:
        paths = [entry.path for entry in storage.list(names.STATE) if part_of(entry.path) is Part.METADATA]
        for number, path in catalog.newest_metadata(paths).items():
            found = operators.of_transform_with_state(storage.read(path), path)
            variables |= {(number, name): kind for name, kind in found.variables.items()}
            if found.time_mode is not None:
                time_modes[number] = found.time_mode
    bound = None
    if facts.stopped.origin is Origin.OWN and facts.stopped.batch is not None:
        bound = replace(read_binding(storage)[0], stores=facts.schemas)
    return Side(
        url=storage.url,
        facts=facts,
        watermarks=_watermarks(storage, facts),
        variables=variables,
        time_modes=time_modes,
        binding=bound,
    )


def _watermarks(storage: Storage, facts: RewriteFacts) -> Mapping[Place, Mapping[str, int]]:
    """Read the columns with watermarks, which the schemas mark."""
    found: dict[Place, Mapping[str, int]] = {}
    if facts.stopped.origin is Origin.OWN:
        return found
    for operator in facts.operators:
        for store, layout in operator.layouts.items():
            if not isinstance(layout, Layout):
                continue
            body = storage.read(layout.path)
            if None in layout.families:
                texts: list[tuple[str | None, str, str]] = [(None, *operators.parse_schema(body, layout.path))]
            else:
                texts = [(one.name, one.key_json, one.value_json) for one in family_texts(body, layout.path)]
            for family, key_json, value_json in texts:
                columns = {**watermark_columns(key_json), **watermark_columns(value_json)}
                found[operator.operator, store, family] = columns
    return found


def _foreign(destination: Storage) -> str | None:
    """Return the first file that is not in the folders of a migration's own records."""
    paths = (entry.path for entry in destination.list("", hidden=True))
    return next((path for path in paths if not path.startswith(tuple(f"{folder}/" for folder in _OURS))), None)


def _completed(destination: Storage) -> RewriteJournal | None:
    newest = rewrite_journal.newest_journal(destination)
    if newest is None or newest.begun.rewrite is not RewriteKind.MIGRATE:
        return None
    return newest if rewrite_journal.ending(destination, newest.begun) is Ending.SWITCHED else None


def _overlaps(old: Storage, blueprint: Storage, destination: Storage) -> Iterator[str]:
    for one, other in ((old, destination), (blueprint, destination), (old, blueprint)):
        if one.location.contains(other.location) or other.location.contains(one.location):
            yield f"{one.url} and {other.url} overlap: one of them contains the other. Choose separate locations"
