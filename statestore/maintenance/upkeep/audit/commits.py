"""Read the commit log of an audited checkpoint. Commits of versions without files keep only their shape.

A native query whose logs are not purged has a commit for each batch. The number of versions with files bounds the memory of
an audit.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from statekeeper.statestore.base.errors import UnknownFormatVersion
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.operators import OperatorMetadata, StoreInfo
from statekeeper.statestore.maintenance.upkeep.audit.facts import (
    LogFacts,
    Misfit,
    RootFacts,
    StoreAuditFacts,
    StoreResult,
    attempt,
)
from statekeeper.statestore.storage import Storage, at_once


def with_commits(
    storage: Storage, log: LogFacts, batches: Sequence[int], files: Mapping[StorePath, StoreFiles]
) -> LogFacts:
    """Add the commit log to the facts. Commits of batches without files keep only their shape."""
    since = _whole_since(batches, files)
    read: dict[int, logs.CommitLog | FileProblem] = dict.fromkeys(batches, FileProblem("", Flaw.MISSING, ""))

    def read_commit(batch: int) -> None:
        found = _read(storage, batch)
        read[batch] = found if isinstance(found, FileProblem) or batch >= since else found.shape

    at_once(read_commit, batches)
    unknown = [bad for bad in read.values() if isinstance(bad, FileProblem) and bad.flaw is Flaw.UNKNOWN_FORMAT]
    if unknown and len(unknown) == len(batches):
        raise UnknownFormatVersion(
            unknown[-1].text, path=unknown[-1].path, hint="nothing was changed; upgrade Statekeeper"
        )
    return replace(log, commits=read, whole_since=since)


def _read(storage: Storage, batch: int) -> logs.CommitLog | FileProblem:
    path = names.commits(batch)
    return attempt(path, lambda: logs.parse_commit(storage.read(path), path))


def _whole_since(batches: Sequence[int], files: Mapping[StorePath, StoreFiles]) -> int:
    """Return the first batch whose commit is kept in full: the batch before the oldest that has a file in any store.
    This batch marks the end of each chain."""
    there = (version.version for of_store in files.values() for version in (*of_store.changelogs, *of_store.snapshots))
    newest = max(batches, default=0)
    return min(newest, max(0, min(there, default=newest + 1) - 2))


def committed(
    root: RootFacts, log: LogFacts, described: Mapping[int, tuple[StoreInfo, ...]]
) -> tuple[dict[StorePath, dict[int, VersionId]], dict[StorePath, range], dict[int, Misfit], frozenset[StorePath]]:
    """Return the committed versions of each described store, the numbers of purged versions, the contradictions between
    commits and metadata, and the stores of the newest readable commit."""
    found: dict[StorePath, dict[int, VersionId]] = {}
    first: dict[StorePath, int] = {}
    misfits: dict[int, Misfit] = {}
    seen: set[tuple[int, int, int | None]] = set()
    for batch, commit in log.readable.items():
        is_gone = batch < log.whole_since
        for operator, infos in described.items():
            width = _width(root, log, operator, infos, batch)
            named = None if commit.marks is None else commit.marks.get(operator, ())
            problem = None if named is None else _misfit(named, infos, width)
            if problem is not None:
                misfits.setdefault(batch, Misfit(operator, problem))
            if is_gone:
                # Commits of one shape have the same partitions.
                shape = (id(commit.marks), operator, width)
                if shape in seen:
                    continue
                seen.add(shape)
            # Limit the loop to the partitions that exist: a corrupt number of partitions could mean billions.
            partitions = min(width or max(info.partitions for info in infos), root.seen[operator])
            for partition, (place, info) in itertools.product(range(partitions), enumerate(infos)):
                store = StorePath(operator, partition, info.name, root.provider)
                of_store = found.setdefault(store, {})
                if is_gone:
                    first.setdefault(store, batch + 1)
                elif named is None:
                    of_store[batch + 1] = VersionId(batch + 1)
                else:
                    with suppress(IndexError):
                        of_store[batch + 1] = commit.version(batch + 1, named[partition][place])
    until = log.whole_since + 1
    # Only purged batches have these stores: a rescale or a conversion removed them, and no file of them is left.
    found = {store: versions for store, versions in found.items() if versions}
    head = max(log.readable, default=-1) + 1
    newest = frozenset(store for store, versions in found.items() if head in versions)
    return found, {store: range(first.get(store, until), until) for store in found}, misfits, newest


def contradicted_among_gone(
    storage: Storage,
    log: LogFacts,
    found: Mapping[StorePath, StoreResult],
    described: Mapping[int, tuple[StoreInfo, ...]],
) -> dict[StorePath, StoreResult]:
    """Compare lineages that name purged versions with the commits of these versions, which are read again. Returns the
    changed stores."""
    places = {operator: {info.name: place for place, info in enumerate(infos)} for operator, infos in described.items()}
    in_lineages: dict[int, list[tuple[StoreAuditFacts, VersionId]]] = {}
    for one in found.values():
        if isinstance(one, StoreAuditFacts):
            for version in one.lineage or ():
                if version.version in one.gone:
                    in_lineages.setdefault(version.version - 1, []).append((one, version))
    contradicted: dict[StorePath, dict[int, VersionId]] = {}
    for batch in sorted(in_lineages.keys() & log.readable.keys()):
        commit = _read(storage, batch)
        if isinstance(commit, FileProblem) or commit.marks is None:
            continue
        for one, version in in_lineages[batch]:
            store = one.store
            with suppress(KeyError, IndexError):
                place = places[store.operator][store.store]
                named = commit.version(batch + 1, commit.marks[store.operator][store.partition][place])
                if named != version:
                    contradicted.setdefault(store, {})[batch + 1] = named
    return {
        store: replace(one, contradicted={**numbers, **one.contradicted})
        for store, numbers in contradicted.items()
        if isinstance(one := found[store], StoreAuditFacts)
    }


def _width(root: RootFacts, log: LogFacts, operator: int, infos: Sequence[StoreInfo], batch: int) -> int | None:
    """Return the number of partitions of an operator in a batch; None if commit, metadata and offsets conflict."""
    metadata, schema = root.operators[operator], root.schemas.get(operator)
    name = metadata.name if isinstance(metadata, OperatorMetadata) else ""
    is_lone = operators.has_one_partition(name, schema[0] if isinstance(schema, tuple) else None)
    marks = log.readable[batch].marks
    named = None if marks is None else len(marks.get(operator, ()))
    pinned = log.pinned_partitions(batch, named) if name else None
    described = {info.partitions for info in infos}
    one = next(iter(described)) if len(described) == 1 else 0
    return operators.partitions_at(one, pinned, named, is_lone=is_lone) or None


def _misfit(ids: Sequence[Sequence[str]], infos: Sequence[StoreInfo], width: int | None) -> str | None:
    if width is None:
        described = _listed({info.partitions for info in infos})
        return f"names {len(ids):,} partitions, but the metadata describes {described}"
    widths = {len(of_partition) for of_partition in ids}
    if widths != {len(infos)}:
        return f"names {_listed(widths)} stores per partition, but the metadata describes {len(infos)}"
    return None


def _listed(numbers: Collection[int]) -> str:
    return " and ".join(f"{number:,}" for number in sorted(numbers)) or "none"
