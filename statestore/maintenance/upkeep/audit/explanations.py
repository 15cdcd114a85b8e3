"""What each kind of finding means: the one text for `statekeeper explain`, for the pages of the checks and for Dagster.

A finding itself names the file and the batches. These texts say what is true of all findings of a kind.
A command has the placeholder ROOT. A text has no markup except `code`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from statekeeper.statestore.maintenance.upkeep.audit.findings import REPAIR, SNAPSHOT_ALL, FindingKind

LINEAGE_IS_GAPLESS = "lineage_is_gapless"
COMMIT_LOG_MATCHES_FILES = "commit_log_matches_files"
FAR_FROM_LINEAGE_CEILING = "far_from_lineage_ceiling"
CHECKS = (LINEAGE_IS_GAPLESS, COMMIT_LOG_MATCHES_FILES, FAR_FROM_LINEAGE_CEILING)
"""The checks of Dagster that report findings."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The explanation of a kind of finding.

    check      the check that turns red; its page has this text, too
    meaning    what is wrong, and the consequence
    causes     the usual causes, the most frequent first
    works      what still works
    action     the next step
    commands   the commands of the next step, in order
    """

    check: str
    meaning: str
    causes: tuple[str, ...]
    works: str
    action: str
    commands: tuple[str, ...] = ()


_AUDIT, _DEEP_AUDIT = "statekeeper audit ROOT", "statekeeper audit ROOT --deep"
_DEEP_REPAIR = "statekeeper repair ROOT --deep --apply --confirm-stopped"
_REWIND = "statekeeper rewind ROOT --to-batch BATCH"

_DELETED = "A lifecycle rule of the bucket, a cleanup script or a person deleted the file."
_TORN = "A faulty disk, a full disk or an interrupted copy truncated or altered the file."
_COPIED = "A copy or a backup of the checkpoint was restored only in part."
_EDITED = "A person edited the file, or restored it from another checkpoint."
_TWO_RUNS = "Two runs of the query wrote to the checkpoint at the same time."
_LATER = "A later Spark release wrote the file."

_WHOLE_STATE = "The query starts, and the state of every batch loads."
_OTHER_VERSIONS = (
    "Batches that do not need this file load. The finding names the newest batch from which the query can restart."
)
_NO_DELETION = "gc deletes nothing while this error remains."
_IF_WARNING = "With a WARNING, every batch loads, but a load replays more changelogs."
_RESTORE_OR_REWIND = (
    "Restore the file from a backup under the same name. If there is no backup, roll back to the batch that the finding "
    "names. If the finding says that only older batches are lost, the query is not affected: wait until retention no "
    "longer includes them, by default after 100 more batches."
)


def _log(
    meaning: str,
    causes: tuple[str, ...],
    works: str,
    action: str,
    *commands: str,
    check: str = COMMIT_LOG_MATCHES_FILES,
) -> Explanation:
    return Explanation(check=check, meaning=meaning, causes=causes, works=works, action=action, commands=commands)


def _store(meaning: str, causes: tuple[str, ...], works: str, action: str, *commands: str) -> Explanation:
    return _log(meaning, causes, works, action, *commands, check=LINEAGE_IS_GAPLESS)


EXPLANATIONS: Mapping[FindingKind, Explanation] = MappingProxyType(
    {
        FindingKind.COMMIT_MISSING: _log(
            "Commits between two existing commits are missing. A start reads only the newest commit, so it is not "
            "affected. A rewind to one of these batches is not possible.",
            (_DELETED, _COPIED),
            _WHOLE_STATE,
            "No action is needed. For a rewind to one of these batches, first restore its commit from a backup.",
        ),
        FindingKind.COMMIT_UNREADABLE: _log(
            "The file of a commit is damaged. If it is the newest commit (ERROR), the query cannot start. If it is an "
            "older one (WARNING), no start reads it, but gc and rewrites reject it, and a rewind to this batch is not "
            "possible.",
            (_TORN, _LATER),
            "With a damaged older commit, the query starts. With a damaged newest commit, the finding names the newest "
            "batch from which it can restart.",
            "If the commit is the newest one, restore it from a backup, or roll back to the batch that the finding "
            "names. If it is an older one, stop the query and let repair move it to quarantine. If its format is "
            "unknown, upgrade Statekeeper.",
            _REWIND,
            REPAIR,
        ),
        FindingKind.COMMIT_UNKNOWN_ID: _log(
            "In structure V2, a commit contains the unique id of the version of each store. No state file has the id in"
            " this commit, and later changelogs build on another id. The batch can no longer be restored.",
            (_EDITED, _TWO_RUNS),
            "Later batches do not depend on this commit: the query starts. " + _NO_DELETION,
            "Restore the commit from a backup.",
            _AUDIT,
        ),
        FindingKind.COMMIT_AT_ODDS: _log(
            "A commit has another number of partitions or stores than the metadata of the operator. The batch can no "
            "longer be restored.",
            (_EDITED, _COPIED),
            "Batches whose commit agrees with the metadata can be restored. " + _NO_DELETION,
            "Restore the commit from a backup.",
            _AUDIT,
        ),
        FindingKind.COMMITS_MIXED: _log(
            "The newest change between structures V1 and V2 in the commit log is not a switchover: some stores have no "
            "snapshot since then. Spark loads only batches in the structure of the running query.",
            (
                "Commits were restored from an older copy of the checkpoint.",
                "The snapshots of a switchover were deleted.",
            ),
            _OTHER_VERSIONS,
            "Restore `commits/` from a backup.",
            _AUDIT,
        ),
        FindingKind.HALF_SWITCHED: _log(
            "A switchover or another rewrite of the state was interrupted. A query that starts now fails, or reads "
            "state of the wrong structure.",
            ("The process of the rewrite was stopped, or the machine failed.",),
            "No data is lost. Verbs that only read work. Verbs that change the checkpoint are rejected until the "
            "rewrite has ended.",
            "Do not start the query. Finish the rewrite with the command that started it, or reverse it with `--abort`:"
            " the finding has both commands. If the journal itself is damaged, restore it from a backup.",
            _AUDIT,
        ),
        FindingKind.FORMAT_FLIPPED: _log(
            "The query was started with structure V2 on a checkpoint of structure V1, and failed in its first batch "
            "(`None.get`).",
            ("The setting `spark.sql.streaming.stateStore.checkpointFormatVersion=2` was added to an existing query.",),
            "No state is lost. The query continues with the former setting.",
            "Set `spark.sql.streaming.stateStore.checkpointFormatVersion=1` and start the query. To change the "
            "structure of the checkpoint, run switch.",
            "statekeeper switch ROOT --to v2",
        ),
        FindingKind.PARTITIONS_CHANGED: _log(
            "The query was started again with another `spark.sql.shuffle.partitions`. It looks up each key in a "
            "partition that does not have its state. Spark 4.2 and 4.3 do not detect this with an offset log of version"
            " 2 (SPARK-59662).",
            ("The session of the restarted query has another number of shuffle partitions than the first run.",),
            "The batches before this restart are not affected. State and output of later batches are wrong.",
            "Stop the query. Roll it back to the batch that the finding names, and start it with the former number. To "
            "change the number, run rescale.",
            f"{_REWIND} --apply --confirm-stopped",
            "statekeeper rescale ROOT --partitions NUMBER",
        ),
        FindingKind.OFFSETS_MISSING: _log(
            "The file of a batch in `offsets/` is missing. A start reads the newest offsets and those of the batch "
            "before: if one of these is missing, the query cannot start (ERROR). Without older offsets, only a rewind "
            "to their batch is not possible (WARNING).",
            (_DELETED, _COPIED),
            "With a WARNING, the query starts. With an ERROR, the finding names the newest batch from which it can "
            "restart.",
            "Restore the file from a backup. If only the offsets of the batch before the newest one are lost and the "
            "newest batch is complete, repair writes them again, with the content of the newest ones; a rewind to the "
            "batch before stays impossible. Otherwise, roll back to the batch that the finding names.",
            REPAIR,
            _REWIND,
        ),
        FindingKind.OFFSETS_UNREADABLE: _log(
            "The file of a batch in `offsets/` is damaged. A start reads the newest offsets and those of the batch "
            "before: if one of these is damaged, the query cannot start (ERROR). With other damaged offsets, only a "
            "rewind to their batch is not possible (WARNING).",
            (_TORN, _LATER),
            "With a WARNING, the query starts. With an ERROR, the finding names the newest batch from which it can "
            "restart.",
            "Restore the file from a backup. If only the offsets of the batch before the newest one are damaged and the"
            " newest batch is complete, repair writes them again, with the content of the newest ones; a rewind to the "
            "batch before stays impossible. Otherwise, roll back to the batch that the finding names. If the format is "
            "unknown, upgrade Statekeeper.",
            REPAIR,
            _REWIND,
        ),
        FindingKind.OFFSETS_AT_ODDS: _log(
            "The offsets of a batch contain settings that contradict the state, for example another number of "
            "partitions or another state store provider. A start takes these settings: it fails, or continues without "
            "the state.",
            (_EDITED,),
            "Batches whose offsets have the settings of the state can be restored.",
            "Restore the file from a backup, or roll back to the batch that the finding names.",
            _REWIND,
        ),
        FindingKind.SOURCE_LOG_DAMAGED: _log(
            "The log of a file source in `sources/` has lost entries. Spark reads all entries since the newest "
            "compaction, so the query cannot start.",
            (_DELETED, _TORN),
            "The state is not affected. The finding names the newest batch from which the query can restart.",
            "Restore the entries from a backup, or roll back to a batch that has not read them.",
            _REWIND,
        ),
        FindingKind.LOG_IN_THE_WAY: _log(
            "A hidden Hadoop checksum `.N.crc` remains beside a log entry N that was deleted. When the query reaches "
            'batch N, it fails: Spark reports "Multiple streaming queries are concurrently using" the log.',
            ("Log entries on a local disk were deleted by hand to roll a query back, without their hidden checksums.",),
            "The query runs up to batch N. No state is lost.",
            "Stop the query, and let repair move the checksum to quarantine, or delete it.",
            REPAIR,
        ),
        FindingKind.OFFSETS_AHEAD: _log(
            "The offset log has a batch more than one after the newest commit. Spark begins a batch only after the "
            "commit of the batch before, so commits are lost.",
            (_DELETED, "The query was rolled back by hand: commits were deleted, and offsets remained."),
            "The finding names the newest batch from which the query can restart.",
            "Restore `commits/` from a backup, or roll back to the batch that the finding names.",
            _REWIND,
        ),
        FindingKind.DESCRIPTION_MISSING: _log(
            "A metadata file is missing: `metadata` of the query, the metadata or the state schema of an operator, or "
            "the binding of a state root.",
            (_DELETED, _COPIED),
            "State files are not affected. A WARNING is about a file that a job on pipelines writes again when it "
            "starts.",
            "If the finding says so, start the job. Otherwise, restore the file from a backup.",
            _AUDIT,
        ),
        FindingKind.DESCRIPTION_UNREADABLE: _log(
            "A metadata file is damaged, or has a format that this release does not know: `metadata` of the query, the "
            "metadata or the state schema of an operator, or the binding of a state root.",
            (_TORN, _LATER),
            "State files are not affected. If a later Spark release wrote the file, this release can start the query.",
            "Restore the file from a backup. If the finding says so, upgrade Statekeeper or start the job instead.",
            _AUDIT,
        ),
        FindingKind.DESCRIPTION_AT_ODDS: _log(
            "Two metadata files contradict each other, or the metadata of an operator contradicts every commit.",
            (_EDITED, _COPIED),
            "State files are not affected. With a WARNING, the job writes the file again when it starts.",
            "If the finding says so, start the job. Otherwise, restore the file from a backup.",
            _AUDIT,
        ),
        FindingKind.DESCRIPTION_MOVED: _log(
            "For transformWithState, and for stream-stream joins in state format 3 or 4, the metadata of the operator "
            "contains the absolute URL of the state schema. This URL is outside the checkpoint: the query cannot start,"
            " or depends on the files of another checkpoint.",
            ("The checkpoint was moved, renamed or copied with a tool that does not know this URL.",),
            "State files are not affected. gc is not blocked.",
            "Stop the query, and let repair correct the URL. If repair cannot derive the URL under which Spark opens "
            "the checkpoint, add it with `--location`.",
            REPAIR,
        ),
        FindingKind.DESCRIPTION_CHANGED: _log(
            "A log or metadata file does not match the hidden checksum that Hadoop wrote with it on a local disk. The "
            "file was changed after Spark wrote it.",
            ("A person edited the file.", "A faulty disk altered the file."),
            "The query may start, but it may restart from wrong data.",
            "Restore the file from a backup. If the change is intended, delete the hidden checksum that the finding "
            "names.",
            _DEEP_AUDIT,
        ),
        FindingKind.TWO_OPERATORS: _log(
            "The metadata of two operators has the same operator id, so that it is unclear to which store an id in the "
            "commit log belongs.",
            (_EDITED, "The metadata of one operator was copied over that of another one."),
            "State files are not affected.",
            "Restore the metadata of the operator from a backup.",
            _AUDIT,
        ),
        FindingKind.STORE_UNKNOWN_FORMAT: _store(
            "The files of a store have a format version that this release of Statekeeper does not know, so that the "
            "store was not audited.",
            (_LATER,),
            "The Spark release that wrote the files reads them. Statekeeper changes no file of this store.",
            "Upgrade Statekeeper. Do not change the files.",
        ),
        FindingKind.STORE_NOT_AUDITED: _store(
            "A store could not be audited: its folder is a link, its files could not be listed or read, or no readable "
            "commit names it.",
            (
                "The commit log or the metadata of the operator is damaged: other findings say so.",
                "The credentials do not permit to read the folder.",
                "In a deep audit: its task on a Spark cluster failed, or its files were deleted before they were read.",
            ),
            "It is unknown whether the query can restart. " + _NO_DELETION,
            "Resolve the other findings, or follow the action of the finding. Then run the audit again.",
            _AUDIT,
        ),
        FindingKind.STORE_UNDESCRIBED: _log(
            "A folder has the files of a store that neither the commit log nor the metadata of an operator names. No "
            "query loads these files.",
            (
                "A rescale removed the partition, and gc has not deleted its files yet.",
                "The folder was copied from another checkpoint, or the metadata of its operator is lost.",
            ),
            _WHOLE_STATE,
            "If a rescale removed the partition, run gc. If the store belongs to this query, restore the metadata of "
            "its operator. If not, move the folder out of the checkpoint.",
            "statekeeper gc ROOT",
        ),
        FindingKind.BATCHES_SKIPPED: _log(
            "After a rewind, Spark skipped batches and committed them without state, because the log of the query's "
            "file sink still has these batches.",
            ("The query writes files with Spark's file sink, and was rewound without `--file-sink`.",),
            "The batch of the rewind can be restored. The query cannot start after the skipped batches.",
            "Stop the query. Rewind it again, together with its file sink: the finding has the whole command.",
            f"{_REWIND} --file-sink URL --apply --confirm-stopped",
        ),
        FindingKind.CHANGELOG_MISSING: _store(
            "The changelog of a batch is missing. This batch and the later ones up to the next snapshot cannot be "
            "restored.",
            (
                _DELETED,
                _COPIED,
                "Spark's maintenance deleted it, because a file in the folder has a larger version number.",
            ),
            _OTHER_VERSIONS + " " + _NO_DELETION,
            _RESTORE_OR_REWIND,
            _AUDIT,
            _REWIND,
        ),
        FindingKind.CHANGELOG_UNREADABLE: _store(
            "A changelog is empty, truncated or altered. Its batch and the later ones up to the next snapshot cannot "
            "be restored.",
            (_TORN,),
            _OTHER_VERSIONS + " " + _NO_DELETION,
            _RESTORE_OR_REWIND,
            _DEEP_AUDIT,
            _REWIND,
        ),
        FindingKind.CHANGELOG_TOO_LARGE: _store(
            "A changelog has a key and value above the limit of its readers, by default 64 MiB together. The file is "
            "intact, so a backup does not help.",
            ("One key has collected a very large value, for example a list.",),
            "Spark has no such limit: a native query starts. A job on pipelines and maintenance cannot load the "
            "version.",
            "Raise the limit: the finding names the number. Or roll back to the batch before.",
            "statekeeper snapshot ROOT --all --record-mib 256",
            _REWIND,
        ),
        FindingKind.CHANGELOG_REPLACED: _store(
            "The bytes of a changelog do not match the digest in its commit. The file is valid, but it is not the file "
            "of the committed attempt, so the state may not match the output of the query.",
            ("A late task attempt or a second run of the job wrote the file after the commit.", _EDITED),
            _OTHER_VERSIONS + " " + _NO_DELETION,
            _RESTORE_OR_REWIND,
            _DEEP_AUDIT,
            _REWIND,
        ),
        FindingKind.BATCH_LOG_UNREADABLE: _store(
            "A batch log, which holds the changelogs of a whole batch, is damaged. The changelogs in it are lost. "
            "Findings of the stores name the batches that cannot be restored.",
            (_TORN,),
            "Batches that a snapshot has, and all earlier batches, load.",
            "Restore the file from a backup.",
            _DEEP_AUDIT,
        ),
        FindingKind.LINEAGE_AT_ODDS: _store(
            "The lineage in a changelog names another version than the commit log. It is ambiguous which version is "
            "committed.",
            (_TWO_RUNS, _EDITED),
            "Versions before the contradiction load. " + _NO_DELETION,
            "Compare the changelog and `commits/` with a backup, and restore the file that differs. Without a backup, "
            "roll back to the batch that the finding names.",
            _DEEP_AUDIT,
            _REWIND,
        ),
        FindingKind.FAMILIES_LOST: _store(
            "Operators such as transformWithState keep the names of their state variables (column families) only in "
            "snapshots. The store has no snapshot, and neither Spark nor Statekeeper can read its changelogs without "
            "these names.",
            ("The first snapshot of the store was deleted.", _COPIED),
            "The other stores are not affected. " + _NO_DELETION,
            "Restore a snapshot of the store from a backup.",
            _AUDIT,
        ),
        FindingKind.NO_BASE: _store(
            "No snapshot precedes the changelogs of a store, or its folder is missing or empty. The batches cannot be "
            "restored.",
            (_DELETED, _COPIED),
            "Other stores, and later batches with a snapshot, load. " + _NO_DELETION,
            "Restore the folder or a snapshot from a backup. If the finding names an earlier batch, you can also roll "
            "back to it.",
            _AUDIT,
            _REWIND,
        ),
        FindingKind.SNAPSHOT_MISSING: _store(
            "The lineage of the newest changelog starts from a snapshot that is missing. A load uses an older snapshot "
            "and replays more changelogs. Spark 4.0 and 4.1 cannot load the newest batch. Later releases load it only"
            " if Spark's snapshot repair finds all changelogs that it needs: it replays hundreds of them and ignores "
            "snapshots between them.",
            (_DELETED, "The executor failed before its background upload of the snapshot."),
            "A WARNING means that Statekeeper can load every batch. The finding names the Spark releases that cannot.",
            "For a native query, stop it and take a snapshot at the head. For a job on pipelines, take snapshots while "
            "it runs.",
            "statekeeper snapshot ROOT --at-head --mode snapshots --confirm-stopped",
        ),
        FindingKind.SNAPSHOT_UNREADABLE: _store(
            "The zip of a snapshot is damaged. Loads that start from it fail or use an older snapshot. If the finding "
            "says that loads report no error, the query can continue with wrong state.",
            (_TORN,),
            _IF_WARNING,
            "Do not delete the file by hand. Stop the query, move the snapshot to quarantine, and take a new one. With "
            "an ERROR, restore the file from a backup or roll back to the batch that the finding names.",
            _DEEP_REPAIR,
            SNAPSHOT_ALL,
        ),
        FindingKind.SNAPSHOT_AT_ODDS: _store(
            "The content of a snapshot contradicts its metadata: another number of keys, rows that do not decode, or "
            "another version. A load can use it without an error.",
            (_EDITED, _TWO_RUNS),
            _IF_WARNING,
            "Stop the query, move the snapshot to quarantine, and take a new one. With an ERROR, restore the file from "
            "a backup or roll back to the batch that the finding names.",
            _DEEP_REPAIR,
            SNAPSHOT_ALL,
        ),
        FindingKind.TABLE_MISSING: _store(
            "An SST file that a snapshot needs is missing. The snapshot cannot be loaded.",
            (_DELETED, _COPIED),
            _IF_WARNING,
            "Restore the file from a backup. With a WARNING, you can instead stop the query, move the snapshot to "
            "quarantine, and take a new one.",
            _DEEP_REPAIR,
            SNAPSHOT_ALL,
        ),
        FindingKind.TABLE_WRONG_SIZE: _store(
            "An SST file of a snapshot has another size than the snapshot expects. The snapshot cannot be loaded.",
            (_TORN, _EDITED),
            _IF_WARNING,
            "Restore the file from a backup. With a WARNING, you can instead stop the query, move the snapshot to "
            "quarantine, and take a new one.",
            _DEEP_REPAIR,
            SNAPSHOT_ALL,
        ),
        FindingKind.TABLE_REPLACED: _store(
            "A valid SST file has the name of another one: it is not the file from which the snapshot was made.",
            (_TWO_RUNS, _EDITED),
            _IF_WARNING,
            "Restore the file from a backup. With a WARNING, you can instead stop the query, move the snapshot to "
            "quarantine, and take a new one.",
            _DEEP_REPAIR,
            SNAPSHOT_ALL,
        ),
        FindingKind.TABLE_UNREADABLE: _store(
            "The bytes of an SST file are damaged. A load may open it without an error, and fail or return wrong values"
            " later.",
            (_TORN,),
            _IF_WARNING,
            "Restore the file from a backup. With a WARNING, you can instead stop the query, move the snapshot to "
            "quarantine, and take a new one.",
            _DEEP_REPAIR,
            SNAPSHOT_ALL,
        ),
        FindingKind.SIDECAR_AT_ODDS: _store(
            "Spark writes a checksum file (`.crc`) beside a changelog or a snapshot, and rejects a file that does not "
            "match it (`CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED`).",
            (
                "A second attempt replaced only one of the two files.",
                "The file itself is damaged: its codec (zstd, snappy or lzf) has no checksum of its own.",
            ),
            "Statekeeper loads the batch. Spark cannot load the batches that the finding names.",
            "The audit says whether the file is intact. If it is, delete only the checksum file; of a snapshot, repair "
            "moves it to quarantine. If it may be damaged, restore both files from a backup.",
            _DEEP_AUDIT,
            REPAIR,
        ),
        FindingKind.SIDECAR_STRAY: _store(
            "A checksum file (`.crc`) of a snapshot has no snapshot. Spark would reject a new snapshot of this batch.",
            ("An executor failed between the two writes.", "The zip was deleted, and its checksum file remained."),
            _WHOLE_STATE,
            "Stop the query, which may still write the zip. Then let repair move the checksum file to quarantine.",
            REPAIR,
        ),
        FindingKind.HIDDEN_CHECKSUM_AT_ODDS: _store(
            "On a local disk, Hadoop keeps a hidden checksum beside each file, and rejects a file that does not match "
            "it (`ChecksumException`).",
            ("A tool replaced the file without its hidden checksum.", "A faulty disk altered the file."),
            "Statekeeper loads the batch. Spark cannot load the batches that the finding names.",
            "If the audit says that the file is intact, delete only the hidden checksum. If it may be damaged, restore "
            "both files from a backup.",
            _DEEP_AUDIT,
        ),
        FindingKind.ROLLED_BACK_FILES: _store(
            "State files are newer than all logs: commits and offsets were deleted, and the files of their batches "
            "remain. In structure V1, a later restart can load such a snapshot and silently use wrong state. In "
            "structure V2, Spark's maintenance counts from the largest version and deletes files that are still needed.",
            ("The query was rolled back by hand, instead of with rewind.", _DELETED),
            "The batches that the logs contain can be restored.",
            "Before you start the query, let repair move these files to quarantine. If the query was not rolled back, "
            "restore `commits/` and `offsets/` from a backup.",
            REPAIR,
        ),
        FindingKind.SNAPSHOT_OF_SPARK_4_0: _store(
            "Spark 4.0 wrote a snapshot of structure V2. Spark 4.1 and later reject it (`Expected v1, but found v2`).",
            ("The query ran on Spark 4.0.",),
            "Spark 4.0 and Statekeeper load every batch.",
            "Stay on Spark 4.0. To upgrade, stop the query and rewrite the headers of the snapshots for the new "
            "release.",
            "statekeeper repair ROOT --for-spark 4.2 --apply --confirm-stopped",
        ),
        FindingKind.NEAR_CEILING: _log(
            "In structure V2, each changelog names all versions since the newest snapshot that the query knows: its "
            "lineage. Spark cannot read a lineage above 65,535 bytes, and the query fails when it reaches this limit.",
            (
                "There was no snapshot for hundreds of batches: no process takes them, or they fail.",
                "A native query was not restarted since its newest snapshot: it finds snapshots only when it loads a "
                "store.",
            ),
            "Every batch loads. The query runs until the number of commits in the finding is used up. gc is not "
            "blocked.",
            "Take snapshots of all stores. Then restart a native query. If the finding says so, stop the query first.",
            SNAPSHOT_ALL,
            check=FAR_FROM_LINEAGE_CEILING,
        ),
        FindingKind.NAME_STOPS_LOADS: _log(
            "Spark reads a file as a snapshot because of its name, and cannot load any batch of the store.",
            (
                "A person or a tool copied a `.zip` file into the folder of a store.",
                "A snapshot of structure V2 is in a checkpoint of structure V1.",
            ),
            "Statekeeper loads every batch. The query cannot start.",
            "Stop the query. If the finding says so, let repair move the file to quarantine; otherwise, move it out of "
            "the checkpoint.",
            REPAIR,
        ),
        FindingKind.NAME_STOPS_CLEANUP: _log(
            "Spark's maintenance expects a version number in a file name and does not find one. It fails without a "
            "message, and never deletes old files of the store.",
            ("A person or a tool wrote a file into the folder of a store.",),
            _WHOLE_STATE,
            "Move the file out of the checkpoint.",
        ),
        FindingKind.FOREIGN_FILE: _log(
            "A file has a name that neither Spark nor Statekeeper writes. Spark's maintenance may fail on it. If it "
            "takes a number in the name for the newest version, it deletes files that are still needed.",
            ("A person or a tool wrote a file into the checkpoint.",),
            _WHOLE_STATE,
            "Move the file out of the checkpoint.",
        ),
        FindingKind.NOT_A_FILE: _log(
            "An entry is a symbolic link, a device or has an invalid name. Statekeeper does not follow it and treats "
            "the file as missing.",
            (
                "A tool that saves space replaced files by links.",
                "A person moved files to another disk and left links.",
            ),
            "Spark follows links, so the query may start. gc keeps all SST files of the store.",
            "Replace a link by a copy of its target. Move other entries out of the checkpoint.",
        ),
    }
)
"""The explanation of each kind."""
