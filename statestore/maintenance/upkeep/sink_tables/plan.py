"""Plans the merges and deletions of a sink table. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from statekeeper.statestore.base.durations import duration_text
from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError, UnsupportedTable
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.contents.delta_logs import in_sql
from statekeeper.statestore.format.delta_log import CHANGE_DATA, LoggedFile
from statekeeper.statestore.maintenance.upkeep.sink_tables.gather import DELETED_FILES, parse_interval
from statekeeper.statestore.maintenance.upkeep.sink_tables.model import (
    FileRule,
    FileVerdict,
    MergeBin,
    SinkFacts,
    SinkPlan,
    SinkPolicy,
)
from statekeeper.statestore.storage import Entry

_LEAST_FILES = 4
"""A merge of fewer files is not worth a rewrite of their rows."""
_MOST_FILES = 5_000
"""Of a merge, so that an interrupted run loses little work."""
_LEAST_AGE_SECONDS = 86_400.0
"""Of a file that no version names: the tasks of a batch write their files before the driver commits them."""
_LOG_RETENTION = "delta.logRetentionDuration"
_DEFAULT_DAYS = {_LOG_RETENTION: 30, DELETED_FILES: 7}
_MARGIN = 1.25
"""A retention of the table that is not this much longer than the age of the oldest batch is too short soon."""
_DAY = 86_400.0

_PATHS_ONLY = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "generatedColumns", "allowColumnDefaults", "identityColumns"),
        *("changeDataFeed", "deletionVectors", "domainMetadata", "timestampNtz", "vacuumProtocolCheck"),
    }
)
"""Features of tables whose files can be merged: the rows stay as they are."""
_ROWS_DIFFER: Mapping[str, str] = {
    "columnMapping": "column mapping",
    "typeWidening": "type widening",
    "typeWidening-preview": "type widening",
    "rowTracking": "row tracking",
    "clustering": "liquid clustering",
    "inCommitTimestamp": "in-commit timestamps",
    "variantType": "variant columns",
    "variantType-preview": "variant columns",
}
"""Features of tables whose unneeded files can be deleted, but whose files only Spark merges."""
_MODES: Mapping[str, str] = {
    "delta.columnMapping.mode": "column mapping",
    "delta.enableRowTracking": "row tracking",
    "delta.enableInCommitTimestamps": "in-commit timestamps",
}
_OFF = ("", "none", "false")

_DATA = re.compile(r"part-[A-Za-z0-9._-]+\.parquet|deletion_vector_[0-9a-f-]{36}\.bin")
_FEED = re.compile(r"cdc-[A-Za-z0-9._-]+\.parquet")


def plan(facts: SinkFacts, policy: SinkPolicy, *, stopped: bool = False) -> SinkPlan:
    """Plan. `stopped`: a person confirms that the query is stopped."""
    small = [one for one in facts.live if _is_small(one, policy)]
    waits = facts.unmergeable is not None and not stopped
    found = {one.digest(policy.file_bytes): one for one in (_bins(small, policy) if policy.compacts else ())}
    useless = tuple(one for digest, one in found.items() if digest in facts.useless)
    bins = () if waits else tuple(one for digest, one in found.items() if digest not in facts.useless)
    refusals = tuple(_refusals(facts, policy, has_bins=bool(bins)))
    kept_from = _kept_from(facts)
    return SinkPlan(
        bins=bins,
        verdicts=tuple(_verdicts(facts, kept_from)) if policy.vacuums else (),
        kept_from=kept_from,
        small_files=len(small),
        useless=useless,
        findings=tuple(_findings(facts)),
        notes=tuple(_notes(facts, policy, useless, has_small=bool(small))),
        needs_stopped=facts.unmergeable is not None and bool(bins),
        refusals=refusals,
    )


# -- merges ------------------------------------------------------------------------------------------------------------


def _is_small(one: LoggedFile, policy: SinkPolicy) -> bool:
    return one.file.size_bytes < policy.file_bytes / 2


def _bins(small: Sequence[LoggedFile], policy: SinkPolicy) -> Iterator[MergeBin]:
    """Divide the small files of each partition into bins of the size of a file, in the order in which they were written."""
    partitions: dict[tuple[tuple[str, str | None], ...], list[LoggedFile]] = {}
    for one in sorted(small, key=lambda one: (one.file.modified_ms, one.file.path)):
        partitions.setdefault(tuple(sorted(one.file.values.items())), []).append(one)
    for _, files in sorted(partitions.items(), key=lambda item: str(item[0])):
        waiting, size = list[LoggedFile](), 0
        for one in files:
            if waiting and (size + one.file.size_bytes > policy.file_bytes or len(waiting) >= _MOST_FILES):
                yield from _bin(waiting)
                waiting, size = [], 0
            waiting.append(one)
            size += one.file.size_bytes
        yield from _bin(waiting)


def _bin(files: list[LoggedFile]) -> Iterator[MergeBin]:
    if len(files) >= _LEAST_FILES:
        yield MergeBin(files=tuple(files))


# -- deletions ---------------------------------------------------------------------------------------------------------


def _kept_from(facts: SinkFacts) -> int:
    """The oldest version that stays readable. If the log no longer has the one that a rewind restores, all that are left
    stay."""
    oldest = facts.oldest_readable or 0
    return oldest if facts.restored is None else max(oldest, min(facts.restored, facts.for_readers))


def _verdicts(facts: SinkFacts, kept_from: int) -> Iterator[FileVerdict]:
    partition_by = [str(name) for name in facts.metadata.get("partitionColumns") or ()]
    # Another table, such as a savepoint, may be in a folder of this one.
    tables = tuple({one.path.partition("/_delta_log/")[0] + "/" for one in facts.listed if "/_delta_log/" in one.path})
    for entry in facts.listed:
        yield FileVerdict(entry.path, entry.size_bytes, _rule(facts, entry, kept_from, partition_by, tables))


def _rule(
    facts: SinkFacts, entry: Entry, kept_from: int, partition_by: Sequence[str], tables: tuple[str, ...]
) -> FileRule:
    needed = facts.last_versions.get(entry.path)
    if needed is not None and needed >= facts.version:
        return FileRule.LIVE
    if needed is not None and needed >= kept_from:
        return FileRule.READERS if facts.restored is not None and needed < facts.restored else FileRule.REWIND
    if needed is None and (not _is_of_table(entry.path, partition_by) or entry.path.startswith(tables)):
        return FileRule.UNKNOWN
    if entry.path in facts.interrupted:
        return FileRule.INTERRUPTED
    least = max(facts.keep_seconds or 0.0, _LEAST_AGE_SECONDS)
    if entry.modified_at_seconds is None or facts.now_seconds - entry.modified_at_seconds < least:
        return FileRule.YOUNG
    return FileRule.UNNEEDED


def _is_of_table(path: str, partition_by: Sequence[str]) -> bool:
    """Return whether a file that no version names has a name and a place that writers of the table give."""
    *folders, name = path.split("/")
    is_feed = folders[:1] == [CHANGE_DATA]
    of_values = folders[1:] if is_feed else folders
    named = [folder.partition("=")[0] for folder in of_values if "=" in folder]
    return (
        len(named) == len(of_values)
        and named in ([], list(partition_by))
        and (_FEED if is_feed else _DATA).fullmatch(name) is not None
    )


# -- refusals and findings ---------------------------------------------------------------------------------------------


def _refusals(facts: SinkFacts, policy: SinkPolicy, *, has_bins: bool) -> Iterator[StatekeeperError]:
    if facts.held is None:
        yield RefusedAsUnsafe(
            f"has no batch of the query of {facts.root}: it is not known to be its sink, and the versions that a "
            "rewind needs are unknown; nothing was changed",
            path=facts.table,
            hint="give the URL of the table that the query writes",
        )
    outside = next((path for path in facts.last_versions if "://" in path or path.startswith(("/", "file:"))), None)
    unknown = sorted(facts.features - _PATHS_ONLY - _ROWS_DIFFER.keys())
    for kind, most in (("minReaderVersion", 3), ("minWriterVersion", 7)):
        if (version := int(facts.protocol.get(kind) or 0)) > most:
            unknown.append(f"{kind} {version}")
    if outside is not None:
        unknown.append("files outside of its folder, as a shallow clone has")
    formats = facts.configuration.get("delta.universalFormat.enabledFormats", "")
    if formats.lower() not in _OFF:
        unknown.append(f"metadata in the format of {formats}")
    if unknown:
        yield UnsupportedTable(
            f"has {', '.join(unknown)}, which this command does not support; nothing was changed",
            path=facts.table,
            hint="maintain the table with OPTIMIZE and VACUUM in Spark. A rewind needs files of versions that are up to "
            f"{_days(facts.restored_age_seconds)} old",
        )
    if has_bins and (differing := _differing(facts)):
        yield UnsupportedTable(
            f"has {', '.join(differing)}, so that only Spark can merge its files; nothing was changed",
            path=facts.table,
            hint="to only delete unneeded files, add --no-compact, or set compact = false in statekeeper.toml. To merge "
            f"small files, run in Spark: OPTIMIZE {in_sql(facts.table)}",
        )
    if policy.vacuums:
        yield from _refusals_of_deletions(facts, policy)


def _refusals_of_deletions(facts: SinkFacts, policy: SinkPolicy) -> Iterator[StatekeeperError]:
    if facts.keep_seconds is None:
        yield RefusedAsUnsafe(
            f"has {DELETED_FILES} = {facts.configuration.get(DELETED_FILES)!r}, which is not a number of days; nothing was "
            "changed",
            path=facts.table,
            hint=f"run: ALTER TABLE {in_sql(facts.table)} SET TBLPROPERTIES ('{DELETED_FILES}' = 'interval 7 days')",
        )
    if others := sorted(facts.others - policy.retired):
        ids = " ".join(f"--retired-query {shlex.quote(one)}" for one in sorted(facts.others))
        yield RefusedAsUnsafe(
            f"also has batches of {counted(len(others), 'other writer')}: {', '.join(others[:3])}. A rewind of it may need "
            "files that this root does not need, or it is a former id of this query; nothing was changed",
            path=facts.table,
            hint="to only merge small files, add --no-vacuum, or set vacuum = false in statekeeper.toml. If these queries "
            "never will be rolled back, and no retained batch is from before the newest rewind of this query, run: "
            f"statekeeper optimize {shlex.quote(facts.root)} {shlex.quote(facts.table)} {ids}",
        )


def _differing(facts: SinkFacts) -> list[str]:
    found = {text for name, text in _ROWS_DIFFER.items() if name in facts.features}
    found |= {text for name, text in _MODES.items() if facts.configuration.get(name, "").lower() not in _OFF}
    return sorted(found)


def _findings(facts: SinkFacts) -> Iterator[str]:
    if facts.restored is None:
        yield (
            f"the log of the table begins at version {facts.oldest_readable} and no longer has the version of batch "
            f"{facts.oldest}: a rewind to the oldest batches cannot restore the table. All versions that are left stay "
            f"readable. To keep the log for longer, run in Spark: {_set(facts, _LOG_RETENTION, 30 * _DAY)}"
        )
    age = facts.restored_age_seconds
    kinds = {_LOG_RETENTION: "Delta deletes commits", DELETED_FILES: "VACUUM of another program deletes files"}
    for name, who in kinds.items():
        text = facts.configuration.get(name)
        kept = _DEFAULT_DAYS[name] * _DAY if text is None else parse_interval(text)
        if kept is not None and kept < age * _MARGIN:
            yield (
                f"{name} is {duration_text(kept)}, but a rewind to batch {facts.oldest} needs a version of the table that "
                f"is {_days(age)} old: {who} that a rewind needs. Run in Spark: {_set(facts, name, 2 * age)}"
            )


def _notes(facts: SinkFacts, policy: SinkPolicy, useless: Sequence[MergeBin], *, has_small: bool) -> Iterator[str]:
    if useless:
        files = counted(sum(len(one.files) for one in useless), "small file")
        yield f"{files} in {counted(len(useless), 'merge')} stay: an earlier run found that they would not become fewer"
    if facts.unmergeable is not None and policy.compacts and has_small:
        yield f"{facts.unmergeable.value}. Small files are merged only while the query is stopped, with --confirm-stopped"


def _set(facts: SinkFacts, name: str, seconds: float) -> str:
    days = max(ceil(seconds / _DAY), _DEFAULT_DAYS[name])
    return f"ALTER TABLE {in_sql(facts.table)} SET TBLPROPERTIES ('{name}' = 'interval {days} days')"


def _days(seconds: float) -> str:
    return counted(max(1, ceil(seconds / _DAY)), "day")
