"""Shows the lineage of a store as text: versions, dead branches, snapshots, and the files that the next gc deletes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format import batch_log
from statekeeper.statestore.format.names import StoreFileKind, VersionId, parse_store_path
from statekeeper.statestore.maintenance.upkeep.retention import Rule, StoreVerdicts, Verdict


@dataclass
class _Version:
    """The files of one version."""

    version: VersionId
    files: dict[StoreFileKind, Verdict] = field(default_factory=dict)


def lineage_object(chain: Chain, verdicts: StoreVerdicts) -> dict[str, Any]:
    """The lineage as a JSON object: all versions, ascending, with their files and rules."""
    committed = set(chain.versions)
    return {
        "store": str(chain.store),
        "head": str(chain.head),
        "base_of_floor": None if verdicts.base is None else str(verdicts.base),
        "begins": str(chain.end) if chain.end is not None and verdicts.base is None else None,
        "versions": [
            {
                "version": str(one.version),
                "committed": one.version in committed,
                "loads_from": str(chain.bases[one.version]) if one.version in chain.bases else None,
                "problem": None if _is_deleted(one, verdicts) else _problem(chain, one.version),
                "files": {kind.value: code(verdict.rule) for kind, verdict in one.files.items()},
            }
            for one in _versions(chain, verdicts)
        ],
    }


def lineage_lines(chain: Chain, verdicts: StoreVerdicts) -> Iterator[str]:
    """The lineage as text, newest version first; consecutive versions with the same description share a line."""
    base = "unknown" if verdicts.base is None else verdicts.base.in_words
    yield (
        f"{chain.store}: the newest batch is {chain.head.version - 1}, a restore of the retention floor starts at: {base}. "
        "Below, each line begins with its batches; the files of batch N have the number N + 1"
    )
    newest_first = list(_versions(chain, verdicts))[::-1]
    for line, alike in groupby(newest_first, key=lambda one: _line(chain, one, verdicts)):
        together = list(alike)
        newest, oldest = together[0].version.version - 1, together[-1].version.version - 1
        span = f"{newest}" if newest == oldest else f"{oldest} .. {newest}"
        size = sum(verdict.size_bytes for one in together for verdict in one.files.values())
        yield f"{span:>16}  {line}" + (f", {size:,} bytes" if any(one.files for one in together) else "")
    if chain.end and verdicts.base is None:
        yield f"older batches: {chain.end}"
    going = [verdict for verdict in verdicts.files if verdict.rule is Rule.UNNAMED]
    if going:
        size = sum(verdict.size_bytes for verdict in going)
        yield f"{len(going):,} tables that no retained snapshot references, {size:,} bytes (next gc deletes them)"


def _is_deleted(one: _Version, verdicts: StoreVerdicts) -> bool:
    """Whether retention has deleted the version: it is below the base of the floor and has no files."""
    return not one.files and verdicts.base is not None and one.version.version < verdicts.base.version


def _line(chain: Chain, one: _Version, verdicts: StoreVerdicts) -> str:
    """The description of a version. Dead branches never share a line with other versions."""
    if _is_deleted(one, verdicts):
        return "deleted, below the floor"
    what = " and ".join(_file(one.files[kind], kind) for kind in sorted(one.files, key=lambda kind: kind.value))
    if one.version.version > chain.head.version:
        return f"{what} of an attempt that may still run, {one.version.id}"
    if one.version not in chain.versions:
        if one.version.version > chain.versions[0].version:
            return f"{what} of a dead branch, {one.version.id}"
        return f"{what}, older than the lineage"
    what = what or ("changelog in a batch log" if batch_log.path_of(one.version) else "no file")
    problem = _problem(chain, one.version)
    return what if problem is None else f"{what}: {problem}"


def _file(verdict: Verdict, kind: StoreFileKind) -> str:
    return f"{_NAMES[kind]} (next gc deletes it)" if verdict.rule.deletes else _NAMES[kind]


_NAMES = {StoreFileKind.CHANGELOG: "changelog", StoreFileKind.SNAPSHOT: "snapshot"}


def _problem(chain: Chain, version: VersionId) -> str | None:
    facts = chain.snapshots.get(version)
    if facts is not None:
        return None if facts.damage is None else str(facts.damage)
    return str(chain.broken[version]) if version in chain.broken else None


def _versions(chain: Chain, verdicts: StoreVerdicts) -> Iterator[_Version]:
    found: defaultdict[VersionId, dict[StoreFileKind, Verdict]] = defaultdict(dict)
    for version in chain.versions:
        found[version] = {}
    for verdict, (version, kind) in _of_versions(verdicts.files):
        found[version][kind] = verdict
    for version in sorted(found, key=lambda version: (version.version, version.id or "")):
        yield _Version(version, found[version])


def _of_versions(verdicts: Sequence[Verdict]) -> Iterator[tuple[Verdict, tuple[VersionId, StoreFileKind]]]:
    for verdict in verdicts:
        place = parse_store_path(verdict.path)
        if place is not None:
            yield verdict, (place[1].version, place[1].kind)
