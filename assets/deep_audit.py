"""The asset `deep_audit`: an audit that reads every byte of a checkpoint."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from statekeeper.assets import metadata
from statekeeper.assets.checks import DEEP_AUDIT_HAS_NO_FINDING, deep_audit_has_no_finding, for_a_person
from statekeeper.assets.memory import tell_checks, tell_run
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.assets.verdicts import red_in
from statekeeper.assets.work import Given, Outcome, of_asset, recorded
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.maintenance.verbs.audit import look


def deep_audit(names: Names, sources: Sources, memory: dg.AssetKey) -> dg.AssetsDefinition:
    """Make the asset `deep_audit` of a fleet. `memory`: the asset that remembers notices."""

    @names.asset("deep_audit", deps=[sources.streaming_query], does="reads", checks=[DEEP_AUDIT_HAS_NO_FINDING])
    def made(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        """Audits a checkpoint and reads every byte of it: each changelog is decoded, and each snapshot is restored and
        scanned.

        The query may be running and is not changed. The asset `lineage` audits names, sizes and headers after each visit,
        and does not see damage inside a file. The time of the newest materialization is that of the last deep audit.
        It reads the whole checkpoint, so the schedule requests it only for queries with `audit.deep_every` in
        statekeeper.toml. If the Dagster instance allows one run per query at a time, other runs of this query wait until
        the deep audit has ended. By hand: `statekeeper audit QUERY --deep`.
        """
        found: list[dg.AssetCheckResult] = []
        for event in recorded(context, names, DEEP_AUDIT):
            if isinstance(event, dg.AssetCheckResult):
                found.append(event)
            yield event
        configuration = names.fleet_in(context).configuration()
        subject = f"deep audit of {context.partition_key}"
        tell_checks(context, names, memory, subject, red_in(found), configuration)
        tell_run(context, names, memory, context.run, None)

    return made


def _do(given: Given, how: Mapping[str, Any]) -> Outcome:
    del how
    run, query = given.run, given.query
    started = run.clock.monotonic_seconds()
    try:
        with run.naming_root():
            looked = look(
                run.storage,
                run.policies,
                clock=run.clock,
                scratch=run.scratch,
                progress=lambda done, of: given.told(f"deep audit: {done:,} of {of:,} stores"),
                cluster=run.cluster,
            )
    except StatekeeperError as error:
        return Outcome(errors={query.name: str(error)})
    looked = for_a_person(looked, query)
    shown = metadata.of_deep_audit(looked)
    shown["seconds"] = round(run.clock.monotonic_seconds() - started, 3)
    return Outcome(metadata=shown, checks=[deep_audit_has_no_finding(looked.audit, query)])


DEEP_AUDIT = of_asset("deep_audit", _do)
"""The work of the asset."""
