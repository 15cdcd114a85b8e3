"""Comparing files with the checksums that lie beside them: Spark's sidecars, and Hadoop's hidden ones on a local disk.

Neither is asked for by a load of ours; Spark refuses a file that they do not fit. What is bad by itself is not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from statestore.chain import Chain
from statestore.format import compression, names
from statestore.format.changelog import Readable
from statestore.format.checksum import checksum, first_misfit, parse_sidecar
from statestore.format.names import VersionId
from statestore.loading.changelogs import readable
from statestore.maintenance.audit.facts import Bad, Flaw, Keeper, Refused, attempt
from statestore.storage import Entry, Storage

_PIECE_BYTES = 1024 * 1024


def empty(chain: Chain) -> Iterator[Refused]:
    """Sidecars in which there is nothing: the listing shows it."""
    sidecars = _sidecars(chain)
    for version in chain.versions:
        for path, is_changelog in _checked(chain, version):
            entry = sidecars.get(names.sidecar(path))
            if entry is not None and entry.size_bytes == 0:
                bad = Bad(entry.path, Flaw.CORRUPT, "is empty")
                yield Refused(Keeper.SPARK, path, bad, (version,), is_changelog, None)


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
    """Whether the files of these snapshots fit what lies beside them. Two requests for each that something lies beside."""
    sidecars = _sidecars(chain)
    users: dict[str, list[VersionId]] = {}
    for version in whole:
        path = chain.store.snapshot(version)
        if version.id is None:
            users.setdefault(path, []).append(version)
        elif names.sidecar(path) in sidecars and (bad := _compared(storage, path, storage.read(path))) is not None:
            yield Refused(Keeper.SPARK, path, bad, (version,), False, True)
        metadata = chain.snapshots[version].metadata
        for table in metadata.named_files if metadata else ():
            users.setdefault(chain.store.table_file(table.dfs_name), []).append(version)
    for path, versions in users.items():
        beside = names.hidden_checksum(path)
        if beside not in hidden:
            continue
        storage.download(path, local)
        misfit = first_misfit(storage.read(beside), _pieces(readable(local)))
        local.unlink()
        if misfit is not None:
            bad = Bad(beside, Flaw.AT_ODDS, f"does not fit its file from byte {misfit:,} on")
            yield Refused(Keeper.HADOOP, path, bad, tuple(versions), False, True)


def _compared(storage: Storage, path: str, content: Readable) -> Bad | None:
    beside = names.sidecar(path)
    said = attempt(beside, lambda: parse_sidecar(storage.read(beside), beside))
    if isinstance(said, Bad):
        # Gone meanwhile, or of a later Spark, which knows what it means.
        return said if said.flaw is Flaw.CORRUPT else None
    if said.size_bytes != len(content):
        return Bad(beside, Flaw.AT_ODDS, f"says {said.size_bytes:,} bytes, the file has {len(content):,}")
    found = checksum(_pieces(content))
    if said != found:
        return Bad(beside, Flaw.AT_ODDS, f"says checksum {said.value}, the file has {found.value}")
    return None


def _checked(chain: Chain, version: VersionId) -> list[tuple[str, bool]]:
    """The files of a version that Spark compares with their sidecars, and whether each is the changelog."""
    changelog = [(chain.store.changelog(version), True)] if version in chain.files.changelogs else []
    zips = version in chain.snapshots and version.id is not None
    return [*changelog, (chain.store.snapshot(version), False)] if zips else changelog


def _sidecars(chain: Chain) -> Mapping[str, Entry]:
    return {entry.path: entry for entry in chain.files.others}


def _pieces(content: Readable) -> Iterator[bytes]:
    return (content[start : start + _PIECE_BYTES] for start in range(0, len(content), _PIECE_BYTES))
