"""The component of a fleet for `defs.yaml`. It only calls `build_definitions`."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import dagster as dg
from pydantic import BaseModel, Field

from statekeeper.assets.factory import asset_key, build_definitions
from statekeeper.assets.names import StartSpark, Translate
from statekeeper.assets.schedules import (
    DEEP_AUDIT_CRON,
    DRILL_CRON,
    HEALTH_CRON,
    HISTORY_CRON,
    MIRROR_CRON,
    OPTIMIZE_CRON,
    PUBLISH_CRON,
    REPORT_CRON,
)
from statekeeper.resources.fleet import KEPT_TABLES_MIB, QUERIES_PER_RUN
from statekeeper.statestore.base.messages import CONFIGURATION_FILE
from statekeeper.statestore.contents.quiet import QUIET_SECONDS
from statekeeper.statestore.storage import canonical

_CONFIGURATION = """\
# The checkpoints of this fleet, and how they are maintained.

[defaults]
mode = "observe"                   # only reads; later "snapshots" or "full"

"""
_EXAMPLE = """\
# [roots.orders]
# url = "s3://bucket/orders/checkpoint"
"""


class ScaffoldOptions(BaseModel):
    """The options of `dg scaffold defs statekeeper.dagster.FleetComponent`."""

    url: str | None = Field(None, description="URL or path of the first checkpoint; later ones: in statekeeper.toml.")
    query: str | None = Field(
        None, pattern="^[A-Za-z0-9_-]+$", description="Name of the query of the first checkpoint; default: the fleet's."
    )


class FleetScaffolder(dg.Scaffolder[ScaffoldOptions]):
    """Writes `defs.yaml`, and beside it a `statekeeper.toml` that permits only reads, unless there is one."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldOptions]:
        return ScaffoldOptions

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldOptions]) -> None:
        folder = request.target_path.parent if request.append else request.target_path
        name = re.sub("[^A-Za-z0-9_]", "_", folder.name)
        dg.scaffold_component(request, {"name": name, "config": CONFIGURATION_FILE})
        if (folder / CONFIGURATION_FILE).exists():
            return
        url, query = request.params.url, request.params.query or name
        root = _EXAMPLE
        if url is not None:
            absolute = canonical(url) if "://" in url else str(Path(url).absolute())
            root = f"[roots.{query}]\nurl = {json.dumps(absolute)}\n"  # a JSON string is also a TOML string
        (folder / CONFIGURATION_FILE).write_text(_CONFIGURATION + root)


def _translate(context: dg.ResolutionContext, given: Any) -> Translate:
    """Return the function that applies `translation` to an asset. Templates in it can use `spec`."""

    def translated(spec: dg.AssetSpec) -> dg.AssetSpec:
        scope = context.at_path("translation").with_scope(spec=spec)
        found: Any = given if isinstance(given, str) else given.model_dump(exclude_unset=True)
        found = scope.resolve_value(found)
        return found if isinstance(found, dg.AssetSpec) else _changed(spec, found)

    return translated


def _changed(spec: dg.AssetSpec, changes: Mapping[str, Any]) -> dg.AssetSpec:
    """Return the asset with its tags, metadata and dependencies extended, and its other attributes replaced."""
    left = dict(changes)
    if "partitions_def" in left:
        raise dg.DagsterInvalidDefinitionError(
            "translation cannot change the partitions of the assets, which are the queries; remove partitions_def"
        )
    tags = {key: str(value) for key, value in left.pop("tags", {}).items()}
    key = asset_key(left.pop("key", spec.key))
    prefix = left.pop("key_prefix", None)
    added = {"metadata": left.pop("metadata", {}), "deps": [asset_key(one) for one in left.pop("deps", None) or ()]}
    for name in {"group_name", "description", "code_version"} & left.keys():
        left[name] = str(left[name])
    if "kinds" in left:
        left["kinds"] = set(left["kinds"])
    return spec.replace_attributes(key=key.with_prefix(prefix) if prefix else key, **left).merge_attributes(
        tags=tags, **added
    )


def _described(description: str, *examples: Any) -> Any:
    return dg.Resolver.default(description=description, examples=list(examples) or None)


Translation: TypeAlias = Annotated[
    Callable[[dg.AssetSpec], dg.AssetSpec] | None,
    dg.Resolver(
        _translate,
        model_field_type=dg.AssetAttributesModel | str,
        inject_before_resolve=False,
        description=(
            "Changes of each asset of the fleet: tags, metadata and deps are added, other attributes are replaced. "
            "Templates can use `spec`, the AssetSpec before the changes. A template can also return the whole AssetSpec."
        ),
        examples=[{"key_prefix": "streaming", "tags": {"cost-center": "17"}}],
    ),
]


Automation: TypeAlias = Annotated[
    bool | dg.AutomationCondition[Any],
    dg.Resolver(
        lambda context, given: context.resolve_value(given),
        model_field_type=bool | str,
        description=(
            "`false`: without sensors and schedules, for a fleet that your own jobs maintain. A template with an "
            "AutomationCondition: also of the assets of maintenance and of `fleet_health`, instead of the schedules for "
            "them."
        ),
        examples=["{{ dg.AutomationCondition.on_cron('0 2 * * *') }}"],
    ),
]


_StartSpark: TypeAlias = Annotated[
    StartSpark | None,
    dg.Resolver(
        lambda context, given: context.resolve_value(given),
        model_field_type=str | None,
        description=(
            'A template with a function that starts the Spark application for a query with `executor = "spark"`, with '
            "another client of Dagster Pipes than that for `submit` of `[spark]`. It gets the context and the extras, and "
            "returns what the client returns."
        ),
        examples=["{{ on_databricks }}"],
    ),
]


@dg.scaffold_with(FleetScaffolder)
@dataclass(kw_only=True)
class FleetComponent(dg.Component, dg.Resolvable):
    """Maintains the checkpoints of a fleet of Spark Structured Streaming queries.

    `dg scaffold defs statekeeper.dagster.FleetComponent payments` writes `defs.yaml`, and beside it `statekeeper.toml` for
    the checkpoints. All sensors and schedules are stopped until a person starts them.
    """

    name: Annotated[
        str,
        _described(
            "Name of the fleet, unique in the Dagster instance: a letter, then up to 39 letters, digits and underscores.",
            "payments",
        ),
    ]
    config: Annotated[
        str,
        _described(
            "Path of the file with the checkpoints, of a folder with one file for each team, or of a pattern of files, "
            "relative to the folder of defs.yaml.",
            CONFIGURATION_FILE,
            "teams/*.toml",
        ),
    ] = CONFIGURATION_FILE
    key_prefix: Annotated[
        str | Sequence[str] | None, _described("Prefix of the asset keys; default: the name.", "streaming/payments")
    ] = None
    group: Annotated[str | None, _described("Group of the assets; default: the name.", "streaming")] = None
    owners: Annotated[
        Sequence[str], _described("Owners of the assets: email addresses, or teams as `team:NAME`.", ["team:payments"])
    ] = ()
    translation: Translation = None
    streaming_query: Annotated[
        dg.ResolvedAssetKey | None,
        _described(
            "Key of the asset of your project that stands for the streaming query. The assets of the fleet depend on it. "
            "Without this attribute, the fleet defines an external asset for its queries.",
            "kafka/orders",
        ),
    ] = None
    pool: Annotated[str | None, _described("Pool of all steps; default: `NAME_maintenance`.", "streaming")] = None
    webhook_env: Annotated[
        str | None,
        _described(
            "Environment variable with the URL to which notices of teams without a channel, and failed runs, are sent. "
            "The UI shows only the name of the variable.",
            "PAYMENTS_WEBHOOK",
        ),
    ] = None
    alerts: Annotated[
        Mapping[str, str] | None,
        _described(
            "Further channels, with the keys of `[teams.NAME]` in statekeeper.toml: slack, webhook, pagerduty, "
            "pagerduty_url. Write `env:NAME` for the environment variable with the value; the UI shows only its name.",
            {"pagerduty": "env:PAYMENTS_PAGERDUTY"},
        ),
    ] = None
    automation: Automation = True
    ui_url: Annotated[
        str, _described("URL of your Dagster UI, for links to runs in notices.", "https://dagster.example.com")
    ] = ""
    queries_per_run: Annotated[int, _described("The most queries that one run maintains.", QUERIES_PER_RUN)] = (
        QUERIES_PER_RUN
    )
    scratch: Annotated[
        str | None,
        _described(
            "Folder on a local disk for temporary files, relative to the folder of defs.yaml; default: the system's.",
            "/scratch",
        ),
    ] = None
    kept_tables_mib: Annotated[
        int,
        _described(
            "Most MiB in that folder for SST files of the newest snapshots, so that the next run does not fetch them "
            "again; 0 keeps none.",
            KEPT_TABLES_MIB,
        ),
    ] = KEPT_TABLES_MIB
    health_cron: Annotated[str, _described("When the fleet is examined, as a cron expression.", HEALTH_CRON)] = (
        HEALTH_CRON
    )
    mirror_cron: Annotated[
        str, _described("When the queries with a mirror are mirrored, as a cron expression.", MIRROR_CRON)
    ] = MIRROR_CRON
    publish_cron: Annotated[
        str, _described("When the queries with tables of their state publish them, as a cron expression.", PUBLISH_CRON)
    ] = PUBLISH_CRON
    deep_audit_cron: Annotated[
        str,
        _described(
            "When the queries with `audit.deep_every` are audited in depth, if they are due, as a cron expression.",
            DEEP_AUDIT_CRON,
        ),
    ] = DEEP_AUDIT_CRON
    drill_cron: Annotated[
        str, _described("When a sample of the stores of each query is restored, as a cron expression.", DRILL_CRON)
    ] = DRILL_CRON
    history_cron: Annotated[
        str,
        _described(
            "When the history of all queries is added to its tables, as a cron expression; it needs `[history]` in "
            "statekeeper.toml.",
            HISTORY_CRON,
        ),
    ] = HISTORY_CRON
    report_cron: Annotated[
        str,
        _described(
            "When the report of all queries is written, as a cron expression; it needs `[report]` in statekeeper.toml.",
            REPORT_CRON,
        ),
    ] = REPORT_CRON
    optimize_cron: Annotated[
        str, _described("When the tables that queries write are optimized, as a cron expression.", OPTIMIZE_CRON)
    ] = OPTIMIZE_CRON
    rewrites: Annotated[
        bool, _described("Whether the fleet has the assets and jobs that rewrite the state of a stopped query.")
    ] = True
    with_rewrites: Annotated[
        bool | None, _described("The former name of `rewrites`, which works for one more release.")
    ] = None
    quiet_seconds: Annotated[float, _described("Seconds without a change after which a query counts as stopped.")] = (
        QUIET_SECONDS
    )
    start_spark: _StartSpark = None

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Return the asset with its keys, groups, owners, tags and kinds. The default applies `translation`.

        Override it in a subclass for changes in Python. Dependencies between the assets of the fleet follow their keys.
        """
        return spec if self.translation is None else self.translation(spec)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions of the fleet. Override it in a subclass to merge others with them."""
        return build_definitions(
            context.path / self.config,
            name=self.name,
            key_prefix=self.key_prefix,
            group=self.group,
            owners=self.owners,
            translate=self.get_asset_spec,
            streaming_query=self.streaming_query,
            pool=self.pool,
            webhook=dg.EnvVar(self.webhook_env) if self.webhook_env else "",
            ui_url=self.ui_url,
            queries_per_run=self.queries_per_run,
            scratch=None if self.scratch is None else context.path / self.scratch,
            kept_tables_mib=self.kept_tables_mib,
            health_cron=self.health_cron,
            mirror_cron=self.mirror_cron,
            publish_cron=self.publish_cron,
            deep_audit_cron=self.deep_audit_cron,
            drill_cron=self.drill_cron,
            history_cron=self.history_cron,
            report_cron=self.report_cron,
            optimize_cron=self.optimize_cron,
            alerts=self.alerts,
            automation=self.automation,
            rewrites=self.rewrites,
            with_rewrites=self.with_rewrites,
            quiet_seconds=self.quiet_seconds,
            start_spark=self.start_spark,
        )
