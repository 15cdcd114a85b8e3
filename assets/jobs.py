"""The jobs. Each runs in one process: starting an interpreter for each step costs more than the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import dagster as dg

from statekeeper.assets.maintenance import MAINTAIN_QUERY, Maintenance
from statekeeper.assets.names import NO_LIMIT, Names, job_of
from statekeeper.assets.partitions import ALONE_TAG

_FIFTEEN_MINUTES = {"dagster/max_runtime": "900"}
"""Ends runs that hang."""

AssetJob: TypeAlias = Any
"""The result of `define_asset_job`, whose type Dagster does not export."""


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """The jobs of a fleet. `by_hand`: those that only a person launches."""

    maintain_queries: dg.JobDefinition
    maintain_query: AssetJob
    mirror_checkpoint: AssetJob
    publish_state: AssetJob
    audit_deep: AssetJob
    drill_restore: AssetJob
    optimize_sink: AssetJob
    refresh_fleet_health: AssetJob
    record_history: AssetJob
    write_report: AssetJob
    by_hand: tuple[AssetJob, ...]

    @property
    def all(self) -> tuple[AssetJob, ...]:
        maintain = (self.maintain_queries, self.maintain_query)
        reads = (self.audit_deep, self.drill_restore)
        of_each = (self.mirror_checkpoint, self.publish_state, *reads, self.optimize_sink)
        of_all = (self.refresh_fleet_health, self.record_history, self.write_report)
        return (*maintain, *self.by_hand, *of_each, *of_all)


def jobs(
    names: Names,
    *,
    maintenance: Maintenance,
    mirror: dg.AssetsDefinition,
    state_table: dg.AssetsDefinition,
    deep_audit: dg.AssetsDefinition,
    restore_drill: dg.AssetsDefinition,
    sink_table: dg.AssetsDefinition,
    fleet_health: dg.AssetsDefinition,
    history_table: dg.AssetsDefinition,
    fleet_report: dg.AssetsDefinition,
    by_hand: Mapping[str, dg.AssetsDefinition],
) -> Jobs:
    """Make the jobs of a fleet. `by_hand`: the assets that only a person launches, by their names without the prefix of the
    fleet."""

    def job(name: str, *assets: dg.AssetsDefinition, description: str, tags: Mapping[str, str] = NO_LIMIT) -> AssetJob:
        return dg.define_asset_job(
            names.of(name),
            selection=dg.AssetSelection.assets(*assets),
            executor_def=dg.in_process_executor,
            tags={**names.tags, **tags},
            description=description,
        )

    def launched(name: str, asset: dg.AssetsDefinition) -> AssetJob:
        """The job with which a person launches an asset. It has no limit on its runtime."""
        purpose = str(asset.specs_by_key[asset.key].description).partition(". ")[0]
        described = f"{purpose}. Launch it by hand. It only plans unless the launchpad sets do: APPLY."
        return job(job_of(name), asset, description=described)

    return Jobs(
        maintain_queries=maintenance.job,
        maintain_query=job(
            MAINTAIN_QUERY,
            maintenance.assets,
            tags=_FIFTEEN_MINUTES,
            description="Takes snapshots of stores with a long tail, audits the lineage, then applies retention, for one "
            "query. Launch it by hand. If the audit reports an error, retention deletes nothing and the run fails. With "
            'executor = "spark", a Spark cluster does the work on each store, and the sensor '
            f"{names.of('changelog_tail')} requests it.",
        ),
        # Without a limit on its runtime: the first run copies the whole state.
        mirror_checkpoint=job(
            "mirror_checkpoint",
            mirror,
            description="Copies the batches that the mirror of a query lacks, and checks its lag. The schedule "
            f"{names.of('mirror_queries')} launches it for each query with a `mirror` in statekeeper.toml.",
        ),
        # Without a limit on its runtime: the first run loads the whole state.
        publish_state=job(
            "publish_state",
            state_table,
            description="Brings the Delta tables of a query to the newest batch of its state. The schedule "
            f"{names.of('publish_queries')} launches it for each query with `tables` in statekeeper.toml.",
        ),
        # Without a limit on its runtime: it reads every byte.
        audit_deep=job(
            "audit_deep",
            deep_audit,
            tags={**NO_LIMIT, ALONE_TAG: names.of("audit_deep")},
            description="Audits the checkpoint of a query and reads every byte of it. The schedule "
            f"{names.of('nightly_deep_audit')} launches it for the queries with `audit.deep_every` in statekeeper.toml.",
        ),
        # Without a limit on its runtime: a restore takes as long as it takes.
        drill_restore=job(
            "drill_restore",
            restore_drill,
            description="Restores a sample of the stores of a query into scratch folders, times it, and compares the rows. "
            f"The schedule {names.of('weekly_drill')} launches it for each query.",
        ),
        # Without a limit on its runtime: the first run may merge many files.
        optimize_sink=job(
            "optimize_sink",
            sink_table,
            description="Merges small files of the Delta tables that a query writes, and deletes the files that no rewind "
            f"and no reader needs. The schedule {names.of('weekly_optimize')} launches it for each query with `sinks` in "
            "statekeeper.toml.",
        ),
        # A run that dies needs no recovery, because it writes nothing.
        refresh_fleet_health=job(
            "refresh_fleet_health",
            fleet_health,
            tags=_FIFTEEN_MINUTES,
            description="Examines every query and writes nothing.",
        ),
        # Without a limit on its runtime: the first run reads all records.
        record_history=job(
            "record_history",
            history_table,
            description="Adds the runs of all queries to the tables of history. The schedule "
            f"{names.of('daily_history')} launches it if statekeeper.toml has a table [history].",
        ),
        write_report=job(
            "write_report",
            fleet_report,
            tags=_FIFTEEN_MINUTES,
            description="Writes an HTML page about all queries, and tells each team. The schedule "
            f"{names.of('weekly_report')} launches it if statekeeper.toml has a table [report].",
        ),
        by_hand=tuple(launched(name, asset) for name, asset in by_hand.items()),
    )
