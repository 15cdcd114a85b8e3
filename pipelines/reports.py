"""Reports of tasks to the driver."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.data_files import DataFile
from statestore.commit_metrics import CommitMetrics
from statestore.errors import StatekeeperError
from statestore.format.names import VersionId
from statestore.loading.loaded import LoadReport
from statestore.storage import RequestCounts


def tag_of(fresh_id: str) -> int:
    """Return 63 bits of an attempt's id, the tag of each of its rows; a long is cheap."""
    return int(fresh_id.replace("-", "")[:16], 16) >> 1


@dataclass(frozen=True, kw_only=True)
class StoreReport:
    """Load and commit of one store of a partition. `member`: its changelog, if the driver writes it into a batch log."""

    operator: int
    base: VersionId
    new: VersionId
    load: LoadReport
    commit: CommitMetrics
    member: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class PartitionReport:
    """Report of one partition after its commits.

    host                the place of the partition's local copies: the machine's name and the operator's folder on it
    peak_memory_bytes   peak memory of the worker's process
    """

    partition: int
    host: str
    rows_in: int
    stores: tuple[StoreReport, ...]
    peak_memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """Report of a task to the driver after the commits of all its partitions.

    tag       tag of the attempt's rows, see `tag_of`
    requests  its requests to the root
    files     data files of the output, if the task writes them
    """

    task: int
    tag: int
    partitions: tuple[PartitionReport, ...]
    requests: RequestCounts
    files: tuple[DataFile, ...] = ()


@dataclass(frozen=True)
class TaskFailure:
    """Report of a task if the batch cannot succeed."""

    task: int
    error: StatekeeperError


Reported = TaskReport | TaskFailure
