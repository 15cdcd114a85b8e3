"""Comparing files with the checksums that lie beside them: Spark's sidecars, and Hadoop's hidden ones on a local disk.

Neither is asked for by a load of ours; Spark refuses a file that they do not fit. What is bad by itself is not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from statestore.chain import Chain
from statestore.format import compression, names
from statestore.format.changelog import Readable
from statestore.format.checksum import first_misfit
from statestore.format.names import VersionId
from statestore.loading.local_file import readable
from statestore.loading.sidecars import misfit, pieces
from statestore.maintenance.audit.facts import Bad, Flaw, Keeper, Refused
from statestore.storage import Entry, Storage, read_or_none


def empty(chain: Chain) -> Iterator[Refused]:
    """Sidecars of changelogs in which there is nothing: the listing shows it."""
    sidecars = _sidecars(chain)
    for version in chain.versions:
        path = chain.store.changelog(version)
        entry = sidecars.get(names.sidecar(path))
        if version in chain.files.changelogs and entry is not None and entry.size_bytes == 0:
            bad = Bad(entry.path, Flaw.CORRUPT, "is empty")
            yield Refused(Keeper.SPARK, path, bad, (version,), True, None)


def of_zips(chain: Chain) -> Iterator[Refused]:
    """Zips of structure V2 that are whole and that their sidecars do not fit."""
    for version, facts in chain.snapshots.items():
        if facts.sidecar is not None:
            path = chain.store.snapshot(version)
            bad = Bad(names.sidecar(path), Flaw.MISMATCH, facts.sidecar)
            yield Refused(Keeper.SPARK, path, bad, (version,), False, True)


def strays(storage: Storage, chain: Chain) -> tuple[VersionId, ...]:
    """The versions of the chain in structure V2 whose zip has a sidecar and is not there. One request for each, since an
    executor that is at work writes the sidecar first."""
    beside = _sidecars(chain)
    found = (
        version
        for version in chain.versions
        if version.id is not None
        and version not in chain.files.snapshots
        and names.sidecar(chain.store.snapshot(version)) in beside
    )
    return tuple(version for version in found if storage.stat(chain.store.snapshot(version)) is None)


def of_changelog(storage: Storage, chain: Chain, version: VersionId, local: Path) -> Iterator[Refused]:
    """Whether a changelog, which was fetched, fits its sidecar. One request when there is one."""
    path = chain.store.changelog(version)
    if names.sidecar(path) in _sidecars(chain):
        content = readable(local)
        bad = _compared(storage, path, content)
        if bad is not None:
            yield Refused(Keeper.SPARK, path, bad, (version,), True, compression.is_guarded(content))


def of_snapshots(
    storage: Storage, chain: Chain, whole: Collection[VersionId], hidden: Collection[str], local: Path
) -> Iterator[Refused]:
    """Whether the files of these snapshots fit the hidden checksums of Hadoop's. Two requests for each that has one."""
    users: dict[str, list[VersionId]] = {}
    for version in whole:
        path = chain.store.snapshot(version)
        if version.id is None:
            users.setdefault(path, []).append(version)
        metadata = chain.snapshots[version].metadata
        for table in metadata.named_files if metadata else ():
            users.setdefault(chain.store.table_file(table.dfs_name), []).append(version)
    for path, versions in users.items():
        beside = names.hidden_checksum(path)
        if beside not in hidden:
            continue
        storage.download(path, local)
        misfit = first_misfit(storage.read(beside), pieces(readable(local)))
        local.unlink()
        if misfit is not None:
            bad = Bad(beside, Flaw.MISMATCH, f"does not fit its file from byte {misfit:,} on")
            yield Refused(Keeper.HADOOP, path, bad, tuple(versions), False, True)


def of_descriptions(storage: Storage, paths: Collection[str]) -> Iterator[Bad]:
    """Hadoop's checksums, on a local disk, that no longer fit the small files beside them. Two requests for each file."""
    for path in paths:
        beside = names.hidden_checksum(path)
        said = read_or_none(storage, beside)
        content = None if said is None else read_or_none(storage, path)
        if content is not None and said is not None and first_misfit(said, [content]) is not None:
            yield Bad(path, Flaw.MISMATCH, f"does not fit its hidden checksum, {beside.rpartition('/')[2]}")


def _compared(storage: Storage, path: str, content: Readable) -> Bad | None:
    why = misfit(storage, path, content)
    return None if why is None else Bad(names.sidecar(path), Flaw.MISMATCH, why)


def _sidecars(chain: Chain) -> Mapping[str, Entry]:
    return {entry.path: entry for entry in chain.files.others}
