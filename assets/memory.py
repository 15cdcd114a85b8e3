"""What Dagster's history knows of a query: the red checks, and the newest notice.

It is in the newest observation of an asset for the query. It is no source of truth: without it, the next visit of a query
sends the notice of each problem again.

*Guarantee*: the memory is in Dagster's storage before a notice is sent: the generator of an op continues after its event
was stored. It is stored again when the notice was accepted. So a killed run loses no notice. If it was killed in between,
the next look sends the notice again, with the same id. A notice that no channel accepted is sent again at the next look,
too; and to PagerDuty alone, a notice that only PagerDuty did not accept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import msgspec

from statekeeper.assets import metadata
from statekeeper.assets.names import Names
from statekeeper.assets.partitions import QUERY_TAG
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.redaction import printable, redacted
from statekeeper.statestore.format import json_records
from statekeeper.statestore.format.json_records import Record
from statekeeper.statestore.maintenance.rounds.notices import (
    REMINDER_SECONDS,
    Notice,
    Told,
    next_notice,
    sent,
    told_again,
)
from statekeeper.statestore.maintenance.rounds.visit import Status
from statekeeper.statestore.maintenance.verbs.config import Configuration, Policies

FORMAT = 1
_MEMORY = "memory"
_REMINDER_SECONDS = REMINDER_SECONDS - 7_200
"""An idle query is maintained each night, in one night some minutes earlier than in the night before."""


@dataclass(frozen=True)
class Red:
    """A red evaluation: whether it is an ERROR, and its description, which names the file and the next command."""

    is_error: bool
    description: str


@dataclass(frozen=True)
class Known:
    """What is known of a query: its newest notice, None if it is OK; and its red checks."""

    told: Told | None = None
    red: Mapping[str, Red] = field(default_factory=dict)


class _Written(Record):
    format: int
    told: Told | None = None
    red: dict[str, Red] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """The newest look at a query, or at another subject of notices. `is_certain`: see `next_notice`."""

    subject: str
    status: Status
    text: str
    is_certain: bool = True

    @classmethod
    def of_checks(cls, subject: str, red: Mapping[str, Red]) -> Look:
        """Return the look at a subject that has these red checks."""
        status = max((Status.ERROR if one.is_error else Status.WARN for one in red.values()), default=Status.OK)
        return cls(subject, status, "; ".join(one.description for one in red.values()) or "its checks pass")


def observation(key: dg.AssetKey, known: Known, look: Look) -> dg.AssetObservation:
    """Return the observation that remembers this."""
    body = {"format": FORMAT, "told": known.told, "red": known.red}
    shown: metadata.Metadata = {
        "status": look.status.name,
        "description": printable(look.text),
        _MEMORY: dg.MetadataValue.json(json_records.as_json(body)),
    }
    return dg.AssetObservation(key, partition=look.subject, metadata=shown)


def tell(
    context: Any,
    names: Names,
    key: dg.AssetKey,
    known: Known,
    look: Look,
    policies: Policies | None,
    configuration: Configuration,
    *,
    run: dg.DagsterRun | None = None,
) -> Iterator[dg.AssetObservation]:
    """Remember a look, and send the notice that it causes, from the generator of an op or of an asset.

    `policies`: of the subject; None if the configuration does not name it any more. `run`: that the notice links to;
    default: the run of the context.
    """
    notifier = names.notifier_in(context)

    def send(notice: Notice) -> Notice | None:
        return notifier.send(notice, configuration, fleet=names.fleet)

    if known.told is not None and known.told.unsent is not None:
        known = Known(told_again(known.told, send), known.red)
        yield observation(key, known, look)
        if known.told is not None and known.told.is_waiting:
            return
    now_known, notice = next_notice(
        look.subject,
        known.told,
        look.status,
        printable(look.text),
        now_seconds=SystemClock().now_seconds(),
        is_certain=look.is_certain,
        policies=policies,
        run=notifier.link((run or context.run).run_id),
        reminder_seconds=_REMINDER_SECONDS,
    )
    yield observation(key, Known(now_known, known.red), look)
    if now_known is not None and notice is not None and (left := send(notice)) != notice:
        yield observation(key, Known(sent(now_known, left), known.red), look)


def tell_run(context: Any, names: Names, key: dg.AssetKey, run: dg.DagsterRun, error: str | None) -> None:
    """Tell that a run has failed, or that the next run of its job succeeds (`error` None), by the channels of the fleet."""
    query = run.tags.get(QUERY_TAG)
    subject = f"job {run.job_name} of {query}" if query else f"job {run.job_name}"
    known = read(context.instance, key, subject)
    if error is None and known.told is None:
        return
    look = Look(subject, Status.OK if error is None else Status.ERROR, redacted(error or "its newest run succeeded"))
    for event in tell(context, names, key, known, look, None, Configuration(), run=run):
        context.instance.report_runless_asset_event(event)


def tell_checks(
    context: Any, names: Names, key: dg.AssetKey, subject: str, red: Mapping[str, Red], configuration: Configuration
) -> None:
    """Tell the people of the query of this run about the red checks of an asset. `subject`: of the notices."""
    known, policies = read(context.instance, key, subject), configuration.policies_of(context.partition_key)
    look = Look.of_checks(subject, red)
    for event in tell(context, names, key, known, look, policies, configuration):
        context.instance.report_runless_asset_event(event)


def read(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str) -> Known:
    """Read what is known of a query: one query to Dagster's storage."""
    records = instance.fetch_observations(dg.AssetRecordsFilter(key, asset_partitions=[partition]), limit=1).records
    found = records[0].asset_observation if records else None
    return Known() if found is None else parse(found)


def parse(found: dg.AssetObservation) -> Known:
    """Return what an observation remembers; nothing if a program of another release, or another program, has made it."""
    value = found.metadata.get(_MEMORY)
    if not isinstance(value, dg.JsonMetadataValue):
        return Known()
    try:
        written = json_records.converted(_Written, value.value)
    except ValueError:
        return Known()
    return Known(written.told, written.red) if written.format == FORMAT else Known()
