"""A step of Dagster whose work a Spark application does, through Dagster Pipes.

    the run of Dagster      starts `submit` of [spark], shows the progress, and records the answer: `spark_runs`
    the driver of Spark     does the work as a run on this machine does, with the cluster for each store: `spark_driver`

The driver does the same `Work`, and sends its result as one message of JSON. It records nothing in Dagster: it needs
neither its instance nor its storage. If the run is terminated, the driver gets a SIGINT.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dagster as dg

from statekeeper.assets.metadata import Metadata
from statekeeper.assets.names import NO_LIMIT, Names, StartSpark
from statekeeper.resources.fleet import OpenedQuery
from statekeeper.resources.worker import holder, tag_run
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.maintenance.executors import submit

APPLICATION = Path(__file__).parent / "on_spark" / "statekeeper_of_dagster.py"

GUIDE = "docs/how-to/run-on-a-spark-cluster.md"
"""The page that helps with each failure."""

_OF_FLEET = ("name", "config_file", "scratch", "job_prefix", "has_rewrites", "quiet_seconds", "kept_tables_mib")
_KEY = dg.AssetKey("sent")


# -- Dagster's values as JSON ---------------------------------------------------------------------------------------------


def metadata_as_sent(values: Metadata) -> str:
    """Encode metadata with Dagster's own encoding."""
    return dg.serialize_value(dg.AssetMaterialization(_KEY, metadata=dict(values)))


def metadata_in(sent: str) -> Metadata:
    """Decode metadata."""
    return dict(dg.deserialize_value(sent, dg.AssetMaterialization).metadata)


def check_as_sent(one: dg.AssetCheckResult) -> str:
    """Encode the result of a check."""
    assert one.check_name is not None
    return dg.serialize_value(
        dg.AssetCheckEvaluation(
            asset_key=_KEY,
            check_name=one.check_name,
            passed=one.passed,
            metadata=one.metadata,
            severity=one.severity,
            description=one.description,
        )
    )


def check_in(sent: str) -> dg.AssetCheckResult:
    """Decode the result of a check."""
    one = dg.deserialize_value(sent, dg.AssetCheckEvaluation)
    return dg.AssetCheckResult(
        check_name=one.check_name,
        passed=one.passed,
        metadata=one.metadata,
        severity=one.severity,
        description=one.description,
    )


# -- the application ------------------------------------------------------------------------------------------------------


def answer(
    context: dg.AssetExecutionContext, names: Names, query: OpenedQuery, work: str, how: Mapping[str, Any]
) -> Any:
    """Let a Spark application do the work with this name, and return what it sends. Raises `dg.Failure`."""
    if not query.submit and names.start_spark is None:
        raise dg.Failure(
            f'{query.name} has executor = "spark", but its file has no command that starts Spark; nothing was changed -> '
            f'add [spark] and submit = ["spark-submit", "--master", "yarn"] to {query.config_file}, see {GUIDE}'
        )
    if names.start_spark is None and submit.has_cluster_driver(query.submit):
        raise dg.Failure(
            f"submit of [spark] in {query.config_file} starts the driver on the cluster, whose messages do not reach this "
            "run; nothing was changed -> leave out --deploy-mode cluster, or set start_spark of build_definitions, see "
            f"{GUIDE}"
        )
    tag_run(context.instance, context.run.run_id, NO_LIMIT)
    fleet = names.fleet_in(context)
    extras = {
        "fleet": {name: getattr(fleet, name) for name in _OF_FLEET},
        "query": query.name,
        # The driver may live longer than the process of this run: its lease must not look like that of a dead run.
        "holder": f"{holder(context.run.run_id)}, on Spark",
        "release": version("statekeeper"),
        "work": work,
        "how": dict(how),
    }
    try:
        done = (names.start_spark or _submitted(query))(context, extras)
    except Exception as error:  # each client of Pipes has errors of its own
        raise dg.Failure(
            printable(
                f"the Spark application of {query.name} ended without a result: {error}. Its messages are in the log of "
                f"this step -> correct submit of [spark] in {query.config_file}, or give the driver the release of "
                f"Statekeeper that Dagster has, {version('statekeeper')}, see {GUIDE}"
            )
        ) from error
    return _checked(done.get_custom_messages(), query)


def _submitted(query: OpenedQuery) -> StartSpark:
    """Start Spark with the command of `[spark]`."""

    def started(context: dg.AssetExecutionContext, extras: Mapping[str, Any]) -> dg.PipesClientCompletedInvocation:
        command = submit.command_line(query.submit, APPLICATION, [])
        context.log.info(printable(f"starting Spark: {submit.shown(command)}"))
        client = dg.PipesSubprocessClient(termination_timeout_seconds=submit.END_SECONDS + 30)
        starter = [sys.executable, "-m", submit.__name__, str(APPLICATION)]
        return client.run(context=context, command=[*starter, *command], extras=dict(extras))

    return started


def _checked(sent: Sequence[Any], query: OpenedQuery) -> Any:
    if not sent:
        raise dg.Failure(
            f"no message of the Spark application of {query.name} has arrived. What it has done is in the history of "
            f"{query.name} -> let it write its messages where this run reads them, see {GUIDE}"
        )
    message: Mapping[str, Any] = sent[-1]
    if "error" in message:
        raise dg.Failure(printable(message["error"]))
    return message["result"]
