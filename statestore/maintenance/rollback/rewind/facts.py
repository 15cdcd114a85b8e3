"""The facts of a rewind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statekeeper.statestore.checkpoint.commit_log import Heads
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records.quarantine import QueryPosition
from statekeeper.statestore.maintenance.records.skipped_batches import SkippedBatches
from statekeeper.statestore.maintenance.rollback.rewind.sources import SourceData
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.storage import Entry


@dataclass(frozen=True, kw_only=True)
class RewindFacts:
    """A checkpoint at its newest batch, and at the batch to rewind to.

    url                 of the checkpoint
    batch               the target: the newest batch after the rewind
    newest              the newest committed batch
    heads               the version of each store at the target
    chains              the committed versions of each store, back to a base of the target
    structure           of the target
    provider            of the target; Statekeeper's roots have RocksDB
    crosses_conversion  whether a later batch has another provider
    newest_structure    of the newest later batch whose commit can be read; None if there is none
    appended            the later batches with another provider or number of partitions than the batch before
    later_stores        the stores that a later batch added, and this batch
    position            the query position after the rewind
    commits             the SHA-256 of each later commit, by batch
    files               all files by path; without hidden files and without quarantined ones
    positions           the newest entry of each file source that the target has read
    sources             the data that each source must still have, by source
    query_id            of the query; that of a Python job is in the binding
    former_ids          its ids before and after earlier rewinds and claims
    known               the newest batch that the query has begun, before earlier rewinds, too
    file_sinks          the output folders of a file sink that earlier runs of Statekeeper name
    skipped             the batches that Spark skipped after an earlier rewind, see `skipped_batches`; None if none
    binding             of a root of a Python job, as in its file; None for a native checkpoint
    rows                the state schemas of a Python job that a later batch has extended, by path, as of the target
    metadata            the bytes of the metadata of its operators, by path
    sinks               table id of each sink -> its version after the target, as the root of a Python job records them
    """

    url: str
    batch: int
    newest: int
    heads: Heads
    chains: Mapping[StorePath, Chain]
    structure: Structure
    provider: Provider
    crosses_conversion: bool
    newest_structure: Structure | None
    appended: frozenset[int]
    later_stores: Mapping[StorePath, int]
    position: QueryPosition
    commits: Mapping[int, str]
    files: Mapping[str, Entry]
    positions: Positions
    sources: Mapping[str, SourceData]
    query_id: str
    former_ids: frozenset[str]
    known: int
    file_sinks: frozenset[str]
    skipped: SkippedBatches | None
    binding: Binding | None
    rows: Mapping[str, bytes]
    metadata: Mapping[str, bytes]
    sinks: Mapping[str, int]
