"""External assets: the queries, their commit logs, and the ledger of their stores."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from statekeeper.assets.names import Names


@dataclass(frozen=True)
class Sources:
    """The external assets of a fleet. `streaming_query`: a dependency if the asset is the company's."""

    streaming_query: dg.AssetSpec | dg.AssetDep
    commit_log: dg.AssetSpec
    state_store: dg.AssetSpec

    @property
    def specs(self) -> list[dg.AssetSpec]:
        """Those that the fleet defines."""
        found = (self.streaming_query, self.commit_log, self.state_store)
        return [one for one in found if isinstance(one, dg.AssetSpec)]


def sources(names: Names, streaming_query: dg.AssetDep | None = None) -> Sources:
    """Make the external assets. `streaming_query`: the asset of the company that takes the place of the fleet's."""
    query = streaming_query or names.spec(
        "streaming_query",
        description="A stateful Spark query, which runs outside Dagster. It writes only changelogs; the assets of the "
        f"group `{names.group or 'maintenance'}` take its snapshots, audit its checkpoint and delete its garbage.",
        group="queries",
        kinds={"spark"},
        partitions_def=names.queries,
    )
    commit_log = names.spec(
        "commit_log",
        deps=[query],
        description="`commits/` of a checkpoint: the version and checkpoint id of each store after each batch. Batch N "
        f"writes version N+1. Every check compares the files with it, and the sensor `{names.of('changelog_tail')}` "
        "watches it.",
        group="queries",
        kinds={"spark"},
        partitions_def=names.queries,
    )
    state_store = names.spec(
        "state_store",
        deps=[commit_log],
        description="The ledger: one partition for each store, and one materialization for each change that maintenance "
        "made to it. A store without a materialization was never due. `statekeeper inspect QUERY` reads the checkpoint "
        "itself.",
        group="queries",
        kinds={"rocksdb"},
        partitions_def=names.stores,
    )
    return Sources(query, commit_log, state_store)
