"""The factory of all definitions of a fleet: for this repository's own Dagster, and for a guest in a company's Dagster."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import dagster as dg

from statekeeper.assets.clone import clone
from statekeeper.assets.deep_audit import deep_audit
from statekeeper.assets.fleet_health import fleet_health
from statekeeper.assets.fleet_report import fleet_report
from statekeeper.assets.history import PRUNE_HISTORY, prune_history
from statekeeper.assets.history_table import history_table
from statekeeper.assets.host import warn_of_missing_settings
from statekeeper.assets.jobs import jobs
from statekeeper.assets.maintenance import maintenance
from statekeeper.assets.mirror import mirror
from statekeeper.assets.names import Names, OwnRuns, StartSpark, Translate
from statekeeper.assets.restore_drill import restore_drill
from statekeeper.assets.rewrites import rewrites as all_rewrites
from statekeeper.assets.savepoint import savepoint
from statekeeper.assets.schedules import (
    DEEP_AUDIT_CRON,
    DRILL_CRON,
    HEALTH_CRON,
    HISTORY_CRON,
    MIRROR_CRON,
    OPTIMIZE_CRON,
    PUBLISH_CRON,
    REPORT_CRON,
    schedules,
)
from statekeeper.assets.sensors import sensors
from statekeeper.assets.sink_table import sink_table
from statekeeper.assets.sources import sources
from statekeeper.assets.state_table import state_table
from statekeeper.resources.fleet import KEPT_TABLES_MIB, QUERIES_PER_RUN, Fleet
from statekeeper.resources.notifier import Notifier
from statekeeper.resources.worker import Worker
from statekeeper.statestore.base.messages import CONFIGURATION_FILE
from statekeeper.statestore.contents.quiet import QUIET_SECONDS
from statekeeper.statestore.maintenance.verbs.config import Channels

_WEBHOOK = "STATEKEEPER_WEBHOOK"
_UI_URL = "STATEKEEPER_UI_URL"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")


def build(environment: Mapping[str, str], *, quiet_seconds: float = QUIET_SECONDS) -> dg.Definitions:
    """Build the definitions of this repository's own Dagster for an environment. Tests inject both arguments."""
    fleet = Fleet(
        config_file=str(Path(environment.get("STATEKEEPER_CONFIG", CONFIGURATION_FILE)).resolve()),
        scratch=environment.get("STATEKEEPER_SCRATCH", tempfile.gettempdir()),
        worker=Worker(),
        name=environment.get("STATEKEEPER_FLEET", ""),
        quiet_seconds=quiet_seconds,
        kept_tables_mib=_mib(environment, "STATEKEEPER_KEPT_TABLES_MIB", KEPT_TABLES_MIB),
    )
    return _definitions(
        Names(fleet=fleet.label),
        fleet,
        # EnvVar: the UI shows the values of a resource, and a webhook's URL is a secret.
        Notifier(webhook=dg.EnvVar(_WEBHOOK) if environment.get(_WEBHOOK) else "", ui_url=environment.get(_UI_URL, "")),
        health_cron=environment.get("STATEKEEPER_HEALTH_CRON", HEALTH_CRON),
        mirror_cron=environment.get("STATEKEEPER_MIRROR_CRON", MIRROR_CRON),
        publish_cron=environment.get("STATEKEEPER_PUBLISH_CRON", PUBLISH_CRON),
        deep_audit_cron=environment.get("STATEKEEPER_DEEP_AUDIT_CRON", DEEP_AUDIT_CRON),
        drill_cron=environment.get("STATEKEEPER_DRILL_CRON", DRILL_CRON),
        history_cron=environment.get("STATEKEEPER_HISTORY_CRON", HISTORY_CRON),
        report_cron=environment.get("STATEKEEPER_REPORT_CRON", REPORT_CRON),
        optimize_cron=environment.get("STATEKEEPER_OPTIMIZE_CRON", OPTIMIZE_CRON),
    )


def build_definitions(
    config: str | Path,
    *,
    name: str,
    key_prefix: str | Sequence[str] | None = None,
    group: str | None = None,
    owners: Sequence[str] = (),
    translate: Translate | None = None,
    streaming_query: dg.AssetKey | str | Sequence[str] | None = None,
    pool: str | None = None,
    webhook: str | dg.EnvVar = "",
    alerts: Mapping[str, str | dg.EnvVar] | None = None,
    automation: bool | dg.AutomationCondition[Any] = True,
    ui_url: str = "",
    queries_per_run: int = QUERIES_PER_RUN,
    scratch: str | Path | None = None,
    kept_tables_mib: int = KEPT_TABLES_MIB,
    health_cron: str = HEALTH_CRON,
    mirror_cron: str = MIRROR_CRON,
    publish_cron: str = PUBLISH_CRON,
    deep_audit_cron: str = DEEP_AUDIT_CRON,
    drill_cron: str = DRILL_CRON,
    history_cron: str = HISTORY_CRON,
    report_cron: str = REPORT_CRON,
    optimize_cron: str = OPTIMIZE_CRON,
    rewrites: bool = True,
    with_rewrites: bool | None = None,
    quiet_seconds: float = QUIET_SECONDS,
    start_spark: StartSpark | None = None,
) -> dg.Definitions:
    """Build the definitions of a fleet for `Definitions.merge` in a company's own Dagster project.

    All sensors and schedules are stopped until a person starts them. Jobs, ops, sensors, schedules, resources and partition
    sets have the prefix `<name>_`, and each run has the tag `statekeeper/fleet=<name>`. Only runs with this tag, and only
    partitions of these sets, are read or changed.

    config           path of `statekeeper.toml`, of a folder with one file for each team, or of a pattern of files
    name             the name of the fleet: a letter, then up to 39 letters, digits and underscores; unique in the instance
    key_prefix       of the asset keys; default: the name
    group            of the assets; default: the name
    owners           of the assets, as in `AssetSpec`
    translate        gets the `AssetSpec` of each asset; returns it with other keys, groups, owners, tags or dependencies
    streaming_query  the key of your asset of the query; the assets of the fleet depend on it, and the fleet defines none
    pool             of all steps; default: `<name>_maintenance`
    webhook          URL to which notices of teams without a channel, and failed runs, are sent; `dg.EnvVar` keeps it secret
    alerts           further channels, with the keys of `[teams.NAME]` in `statekeeper.toml`: slack, webhook, pagerduty,
                     pagerduty_url. A value is `dg.EnvVar`, or `env:NAME`, which both keep it secret
    automation       False: without sensors and schedules, for a fleet that your own jobs maintain. An
                     `AutomationCondition`: of the assets of maintenance and of `fleet_health`, instead of the schedules
                     for them
    ui_url           URL of your Dagster UI, for links to runs in notices
    queries_per_run  the most queries that one run of `<name>_maintain_queries` maintains
    scratch          folder on a local disk for temporary files; default: the system's
    kept_tables_mib  most MiB in that folder for SST files of the newest snapshots, so that the next run does not fetch them
                     again; 0 keeps none
    health_cron      when the fleet is examined
    mirror_cron      when the queries with a mirror are mirrored
    publish_cron     when the queries with tables of their state publish them
    deep_audit_cron  when the queries with `audit.deep_every` are audited in depth, if they are due
    drill_cron       when a sample of the stores of each query is restored
    history_cron     when the history of all queries is added to its tables
    report_cron      when the report of all queries is written
    optimize_cron    when the tables that queries write are optimized
    rewrites         False: without the assets and jobs that rewrite the state of a stopped query
    with_rewrites    the former name of `rewrites`, which works for one more release
    quiet_seconds    time without a change after which a query counts as stopped
    start_spark      starts the application for a query with `executor = "spark"` with another client of Dagster Pipes than
                     that for `submit` of `[spark]`. It gets the context and the extras, and returns what the client returns
    """
    if not _NAME.fullmatch(name):
        raise dg.DagsterInvalidDefinitionError(
            f"{name!r} is no name of a fleet: it is a letter, then up to 39 letters, digits and underscores"
        )
    names = Names(
        fleet=name,
        prefix=f"{name}_",
        key_prefix=(name,) if key_prefix is None else _parts(key_prefix),
        group=group or name,
        owners=tuple(owners),
        pool=pool or f"{name}_maintenance",
        translate=translate,
        starts=False,
        automation=None if isinstance(automation, bool) else automation,
        start_spark=start_spark,
    )
    if with_rewrites is not None:
        warnings.warn("with_rewrites of build_definitions is now rewrites", DeprecationWarning, stacklevel=2)
        rewrites = with_rewrites
    warn_of_missing_settings(name, names.pool)
    return _definitions(
        names,
        Fleet(
            # Not resolved: a ConfigMap is a link to a folder that Kubernetes deletes at the next change.
            config_file=str(Path(config).absolute()),
            scratch=str(scratch or tempfile.gettempdir()),
            worker=Worker(),
            name=name,
            job_prefix=names.prefix,
            has_rewrites=rewrites,
            quiet_seconds=quiet_seconds,
            queries_per_run=queries_per_run,
            kept_tables_mib=kept_tables_mib,
        ),
        Notifier(**_alerts(webhook, alerts or {}), ui_url=ui_url),
        health_cron=health_cron,
        mirror_cron=mirror_cron,
        publish_cron=publish_cron,
        deep_audit_cron=deep_audit_cron,
        drill_cron=drill_cron,
        history_cron=history_cron,
        report_cron=report_cron,
        optimize_cron=optimize_cron,
        streaming_query=None if streaming_query is None else dg.AssetDep(asset_key(streaming_query)),
        with_rewrites=rewrites,
        with_automation=automation is not False,
    )


def _alerts(webhook: str | dg.EnvVar, alerts: Mapping[str, str | dg.EnvVar]) -> dict[str, str | dg.EnvVar]:
    """The fields of the notifier. `webhook` gets the format of Slack, as the channel `slack` does."""
    known = [one.name for one in fields(Channels)]
    if unknown := sorted(alerts.keys() - known):
        raise dg.DagsterInvalidDefinitionError(f"alerts has no channel {unknown[0]!r}; use {', '.join(known)}")
    if webhook and "slack" in alerts:
        raise dg.DagsterInvalidDefinitionError("webhook and alerts['slack'] are the same channel; remove webhook")
    given = {f"alert_{name}": _secret(value) for name, value in alerts.items() if name != "slack"}
    return {"webhook": _secret(alerts.get("slack", webhook)), **given}


def _mib(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal():
        raise dg.DagsterInvalidDefinitionError(f"{name} is {text!r}; write a number of MiB, for example {default}")
    return int(text)


def _secret(given: str | dg.EnvVar) -> str | dg.EnvVar:
    """`env:NAME` as a variable: the UI shows only its name."""
    is_variable = isinstance(given, str) and not isinstance(given, dg.EnvVar) and given.startswith("env:")
    return dg.EnvVar(given.removeprefix("env:")) if is_variable else given


def _definitions(
    names: Names,
    fleet: Fleet,
    notifier: Notifier,
    *,
    health_cron: str,
    mirror_cron: str,
    publish_cron: str,
    deep_audit_cron: str,
    drill_cron: str,
    history_cron: str,
    report_cron: str,
    optimize_cron: str,
    streaming_query: dg.AssetDep | None = None,
    with_rewrites: bool = True,
    with_automation: bool = True,
) -> dg.Definitions:
    external = sources(names, streaming_query)
    maintained = maintenance(names, external)
    health = fleet_health(names, maintained)
    mirrors = mirror(names, external)
    of_state = state_table(names, external)
    deep_audits = deep_audit(names, external, maintained.memory)
    drills = restore_drill(names, external, maintained.memory)
    recorded = history_table(names, health)
    reported = fleet_report(names, health)
    sinks = sink_table(names, external)
    by_hand = {
        **(all_rewrites(names, external) if with_rewrites else {}),
        "clone": clone(names, external),
        "savepoint": savepoint(names, external),
    }
    assets: list[dg.AssetsDefinition | dg.AssetSpec]
    assets = [
        *external.specs,
        maintained.assets,
        *by_hand.values(),
        mirrors,
        of_state,
        deep_audits,
        drills,
        sinks,
        health,
        recorded,
        reported,
    ]
    of_assets = jobs(
        names,
        maintenance=maintained,
        mirror=mirrors,
        state_table=of_state,
        deep_audit=deep_audits,
        restore_drill=drills,
        sink_table=sinks,
        fleet_health=health,
        history_table=recorded,
        fleet_report=reported,
        by_hand=by_hand,
    )
    runs = OwnRuns(
        names,
        jobs=frozenset({names.of(PRUNE_HISTORY), *(job.name for job in of_assets.all)}),
        assets=frozenset(
            key for one in assets for key in (one.keys if isinstance(one, dg.AssetsDefinition) else (one.key,))
        ),
    )
    pruning = prune_history(runs, maintained.memory)
    by_time = schedules(
        runs,
        of_assets,
        pruning,
        deep_audit=deep_audits.key,
        health_cron=health_cron,
        mirror_cron=mirror_cron,
        publish_cron=publish_cron,
        deep_audit_cron=deep_audit_cron,
        drill_cron=drill_cron,
        history_cron=history_cron,
        report_cron=report_cron,
        optimize_cron=optimize_cron,
    )
    by_event = sensors(runs, of_assets, pruning, maintenance=maintained, fleet_health=health)
    return dg.Definitions(
        assets=assets,
        jobs=[*of_assets.all, pruning],
        schedules=by_time if with_automation else [],
        sensors=by_event if with_automation else [],
        resources={names.fleet_key: fleet, names.notifier_key: notifier},
    )


def asset_key(given: dg.AssetKey | str | Sequence[str]) -> dg.AssetKey:
    """The key of an asset; `a/b` has two parts."""
    return given if isinstance(given, dg.AssetKey) else dg.AssetKey(_parts(given))


def _parts(given: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(given.split("/")) if isinstance(given, str) else tuple(given)
