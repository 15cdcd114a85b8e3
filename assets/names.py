"""The names of one fleet in a Dagster instance that other teams and other fleets use, too.

Every definition gets its name, its asset key and its partition set from here. A fleet in this repository's own instance has
no prefix; a fleet in a company's instance has the prefix `<name>_`.
"""

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import dagster as dg

from statekeeper.assets.partitions import QUERY_SET, STORE_SET
from statekeeper.resources.fleet import FLEET_TAG, Fleet
from statekeeper.resources.notifier import Notifier

Translate: TypeAlias = Callable[[dg.AssetSpec], dg.AssetSpec]
StartSpark: TypeAlias = Callable[[dg.AssetExecutionContext, Mapping[str, Any]], dg.PipesClientCompletedInvocation]
"""Starts the Spark application of a step through Dagster Pipes, with these extras, and waits for its end."""

_AUTOMATED = frozenset({"snapshot", "lineage", "retention", "fleet_health"})

_JOBS = {"checkpoint_format": "switch_checkpoint"}

NO_LIMIT = {"dagster/max_runtime": "0"}
"""The tag of a run that may take as long as its work takes. Without it, the limit of run monitoring applies."""

OWN_OWNERS = ("team:streaming",)
"""The owners of the assets in this repository's own instance."""


def job_of(asset: str) -> str:
    """The name of the job with which a person launches an asset, without the prefix of the fleet."""
    return _JOBS.get(asset, f"{asset}_checkpoint")


@dataclass(frozen=True)
class Check:
    """A check of an asset; `statekeeper.assets.checks` declares all of them."""

    name: str
    description: str
    blocking: bool = False
    of_each_query: bool = True
    """Each query has a status of its own. Otherwise the check has one status for the fleet."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of a fleet.

    fleet       the value of the tag `statekeeper/fleet` of its runs
    prefix      of jobs, ops, sensors, schedules, resources and partition sets
    key_prefix  of asset keys
    group       of all assets; None: `queries` for the queries and `maintenance` for the other assets
    pool        of all steps; None for no pool
    translate   the owner's changes of an asset
    starts      sensors and schedules run unless a person stops them; otherwise they are stopped until a person starts them
    automation  the condition of the assets that may run without a person: maintenance, and `fleet_health`
    start_spark  starts Spark instead of `submit` of `[spark]`
    """

    fleet: str
    prefix: str = ""
    key_prefix: tuple[str, ...] = ()
    group: str | None = None
    owners: tuple[str, ...] = OWN_OWNERS
    pool: str | None = None
    translate: Translate | None = None
    starts: bool = True
    automation: dg.AutomationCondition[Any] | None = None
    start_spark: StartSpark | None = None

    def of(self, name: str) -> str:
        """The name of a definition of this fleet."""
        return f"{self.prefix}{name}"

    @property
    def query_set(self) -> str:
        """The name of the partition set of the queries."""
        return self.of(QUERY_SET)

    @property
    def store_set(self) -> str:
        """The name of the partition set of the ledger."""
        return self.of(STORE_SET)

    @cached_property
    def queries(self) -> dg.DynamicPartitionsDefinition:
        """The queries that the sensor `changelog_tail` found, by their names in `statekeeper.toml`."""
        return dg.DynamicPartitionsDefinition(name=self.query_set)

    @cached_property
    def stores(self) -> dg.DynamicPartitionsDefinition:
        """The stores that maintenance changed: `<query>:<operator>-<partition>[-<store name>]`."""
        return dg.DynamicPartitionsDefinition(name=self.store_set)

    @property
    def tags(self) -> dict[str, str]:
        """The tags of each run of this fleet."""
        return {FLEET_TAG: self.fleet}

    @property
    def sensor_status(self) -> dg.DefaultSensorStatus:
        return dg.DefaultSensorStatus.RUNNING if self.starts else dg.DefaultSensorStatus.STOPPED

    @property
    def schedule_status(self) -> dg.DefaultScheduleStatus:
        return dg.DefaultScheduleStatus.RUNNING if self.starts else dg.DefaultScheduleStatus.STOPPED

    # -- resources: two fleets of one code location have different keys -------------------------------------------------

    @property
    def fleet_key(self) -> str:
        """The key of the resource `Fleet`."""
        return self.of("fleet")

    @property
    def notifier_key(self) -> str:
        """The key of the resource `Notifier`."""
        return self.of("notifier")

    def fleet_in(self, context: Any) -> Fleet:
        """The fleet of a run, or of a tick."""
        found: Fleet = getattr(context.resources, self.fleet_key)
        return found

    def notifier_in(self, context: Any) -> Notifier:
        """The notifier of a tick."""
        found: Notifier = getattr(context.resources, self.notifier_key)
        return found

    def queries_in(self, context: Any) -> list[str]:
        """The partitions of the queries of this fleet. Raises `BadConfiguration`.

        Fleets without a prefix share a partition set; the configuration tells which queries are of this one.
        """
        known = context.instance.get_dynamic_partitions(self.query_set)
        return list(filter(self.fleet_in(context).configuration().names, known))

    # -- assets ---------------------------------------------------------------------------------------------------------

    def spec(self, name: str, *, group: str = "maintenance", **given: Any) -> dg.AssetSpec:
        """The specification of an asset, with the changes of the owner. `given`: as for `AssetSpec`."""
        made = dg.AssetSpec([*self.key_prefix, name], group_name=self.group or group, owners=list(self.owners), **given)
        if self.automation is not None and name in _AUTOMATED:
            made = made.replace_attributes(automation_condition=self.automation)
        if self.translate is None:
            return made
        changed = self.translate(made)
        if not isinstance(changed, dg.AssetSpec) or changed.partitions_def != made.partitions_def:
            raise dg.DagsterInvalidDefinitionError(
                f"translate changed the partitions of {made.key.to_user_string()}, or returned no AssetSpec; return "
                "spec.replace_attributes(...) or spec.merge_attributes(...) without partitions_def"
            )
        return changed

    def asset(
        self,
        name: str,
        *,
        deps: Iterable[dg.AssetsDefinition | dg.AssetSpec | dg.AssetDep],
        does: str,
        checks: Collection[Check] = (),
        description: str | None = None,
        of_each_query: bool = True,
        **given: Any,
    ) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
        """Decorate the function that materializes an asset. Its description is the docstring, unless one is given.

        For the other arguments, see `asset_spec`.
        """

        def decorated(function: Callable[..., Any]) -> dg.AssetsDefinition:
            spec = self.asset_spec(
                name,
                deps=deps,
                does=does,
                description=description or inspect.getdoc(function),
                of_each_query=of_each_query,
                **given,
            )
            return dg.multi_asset(
                name=self.of(name),
                description=spec.description,
                specs=[spec],
                check_specs=[self.check_spec(one, spec.key) for one in checks],
                required_resource_keys={self.fleet_key, self.notifier_key},
                pool=self.pool,
            )(function)

        return decorated

    def asset_spec(
        self,
        name: str,
        *,
        deps: Iterable[dg.AssetsDefinition | dg.AssetSpec | dg.AssetDep],
        does: str,
        description: str | None,
        of_each_query: bool = True,
        **given: Any,
    ) -> dg.AssetSpec:
        """The specification of an asset that maintenance materializes.

        `does`: to files, the value of the tag `statekeeper/does`; `given`: as for `AssetSpec`.
        """
        return self.spec(
            name,
            deps=list(deps),
            description=description,
            kinds={"rocksdb"},
            tags={"statekeeper/does": does},
            code_version="1",
            partitions_def=self.queries if of_each_query else None,
            **given,
        )

    def check_spec(self, check: Check, asset: dg.AssetKey) -> dg.AssetCheckSpec:
        """The specification of a check of an asset."""
        with warnings.catch_warnings():
            # Partitioned checks are a preview of Dagster 1.13. They keep a status for each query.
            warnings.simplefilter("ignore", dg.PreviewWarning)
            return dg.AssetCheckSpec(
                check.name,
                asset=asset,
                description=check.description,
                blocking=check.blocking,
                partitions_def=self.queries if check.of_each_query else None,
            )


@dataclass(frozen=True)
class OwnRuns:
    """The runs of a fleet: with its tag, and of its jobs, or of only its assets. A job of the company that also
    materializes an asset of the fleet is the company's."""

    names: Names
    jobs: frozenset[str]
    assets: frozenset[dg.AssetKey]

    def filter(self, **given: Any) -> dg.RunsFilter:
        """A filter for the runs with the tag of the fleet. `given`: as for `RunsFilter`."""
        tags: Mapping[str, str] = given.pop("tags", {})
        return dg.RunsFilter(tags={**tags, **self.names.tags}, **given)

    def include(self, run: dg.DagsterRun) -> bool:
        """Whether a run is of this fleet."""
        is_tagged = run.tags.get(FLEET_TAG) == self.names.fleet
        only_ours = bool(run.asset_selection) and self.assets.issuperset(run.asset_selection or ())
        return is_tagged and (run.job_name in self.jobs or only_ours)
