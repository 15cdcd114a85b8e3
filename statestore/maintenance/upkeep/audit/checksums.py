"""Verify files against Spark's checksum files, and against Hadoop's hidden checksum files on a local disk.

Statekeeper loads files without them; Spark rejects a file that does not match. Corrupt files are not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from statekeeper.statestore.base.errors import ObjectMissing
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.sidecars import misfit, pieces, readable
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format import compression, names
from statekeeper.statestore.format.checksum import first_misfit
from statekeeper.statestore.format.compression import Readable
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.upkeep.audit.facts import Keeper, Refused
from statekeeper.statestore.storage import Entry, Storage, read_or_none


def empty(chain: Chain) -> Iterator[Refused]:
    """Yield changelogs whose checksum file is empty, as listed."""
    sidecars = _sidecars(chain)
    for version in chain.versions:
        path = chain.store.changelog(version)
        entry = sidecars.get(names.sidecar(path))
        if version in chain.files.changelogs and entry is not None and entry.size_bytes == 0:
            bad = FileProblem(entry.path, Flaw.CORRUPT, "is empty")
            yield Refused(
                keeper=Keeper.SPARK, file=path, checksum=bad, versions=(version,), is_changelog=True, is_guarded=None
            )


def of_zips(chain: Chain) -> Iterator[Refused]:
    """Yield intact V2 zips that do not match their checksum file."""
    for version, facts in chain.snapshots.items():
        if facts.sidecar is not None:
            path = chain.store.snapshot(version)
            bad = FileProblem(names.sidecar(path), Flaw.MISMATCH, facts.sidecar)
            yield Refused(
                keeper=Keeper.SPARK, file=path, checksum=bad, versions=(version,), is_changelog=False, is_guarded=True
            )


def strays(storage: Storage, chain: Chain) -> tuple[VersionId, ...]:
    """Return the V2 versions of the chain that have the checksum file of a zip and no zip. One request each: a running
    executor writes the checksum file first."""
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
    """Yield a downloaded changelog if it does not match its checksum file. One request if that file exists."""
    path = chain.store.changelog(version)
    if names.sidecar(path) in _sidecars(chain):
        content = readable(local)
        bad = _compared(storage, path, content)
        if bad is not None:
            yield Refused(
                keeper=Keeper.SPARK,
                file=path,
                checksum=bad,
                versions=(version,),
                is_changelog=True,
                is_guarded=compression.is_guarded(content),
            )


def of_snapshots(
    storage: Storage, chain: Chain, whole: Collection[VersionId], hidden: Collection[str], local: Path
) -> Iterator[Refused]:
    """Yield files of these snapshots that do not match their hidden Hadoop checksum. Two requests for each checksum.

    With its default provider, Spark does not verify it.
    """
    if chain.store.provider is Provider.HDFS_BACKED:
        return
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
        try:
            storage.download(path, local)
            misfit = first_misfit(storage.read(beside), pieces(readable(local)))
        except ObjectMissing:
            continue  # race: it was deleted after the listing, which `gather` notices
        finally:
            local.unlink(missing_ok=True)
        if misfit is not None:
            bad = FileProblem(beside, Flaw.MISMATCH, f"does not match its file from byte {misfit:,} on")
            yield Refused(
                keeper=Keeper.HADOOP,
                file=path,
                checksum=bad,
                versions=tuple(versions),
                is_changelog=False,
                is_guarded=True,
            )


def of_descriptions(storage: Storage, paths: Collection[str]) -> Iterator[FileProblem]:
    """Yield files that do not match their hidden Hadoop checksum, on a local disk. Two requests for each file."""
    for path in paths:
        beside = names.hidden_checksum(path)
        expected = read_or_none(storage, beside)
        content = None if expected is None else read_or_none(storage, path)
        if content is not None and expected is not None and first_misfit(expected, [content]) is not None:
            yield FileProblem(path, Flaw.MISMATCH, f"does not match its hidden checksum {beside.rpartition('/')[2]}")


def _compared(storage: Storage, path: str, content: Readable) -> FileProblem | None:
    text = misfit(storage, path, content)
    return None if text is None else FileProblem(names.sidecar(path), Flaw.MISMATCH, text)


def _sidecars(chain: Chain) -> Mapping[str, Entry]:
    return {entry.path: entry for entry in chain.files.others}
