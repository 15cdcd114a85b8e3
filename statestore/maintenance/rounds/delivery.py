"""How a notice reaches the people of a team: a POST to the URL of a chat, of an on-call service, or of a program.

slack      {"text": ...}, also for Mattermost
pagerduty  an event of PagerDuty's Events API v2; the same incident for all notices of a query
webhook    all fields of the notice as JSON
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.redaction import printable, redacted
from statekeeper.statestore.maintenance.rounds.notices import Notice
from statekeeper.statestore.maintenance.rounds.visit import Status
from statekeeper.statestore.maintenance.verbs.config import Channels, of_channel

_TIMEOUT_SECONDS = 10
_LONGEST_SUMMARY = 1024
"""Characters of a summary in PagerDuty's Events API v2."""

_LONGEST_INCIDENT = 255
"""Characters of a `dedup_key`."""

_SEVERITIES = {Status.WARN: "warning", Status.ERROR: "error"}


def deliver(notice: Notice, channels: Channels, *, fleet: str) -> tuple[list[str], bool]:
    """Send a notice to each channel of its team; an error of one channel does not keep it from the others.

    Returns the errors, and whether the notice was sent: to at least one channel, or there is none.
    """
    sent: list[tuple[str, Mapping[str, Any]]] = []
    if channels.slack:
        sent.append((channels.slack, slack(notice)))
    if channels.webhook:
        sent.append((channels.webhook, webhook(notice, fleet)))
    if channels.pagerduty:
        sent.append((channels.pagerduty_url, pagerduty(notice, fleet, of_channel(channels.pagerduty, os.environ))))
    problems = [problem for url, body in sent if (problem := post(of_channel(url, os.environ), body)) is not None]
    return problems, len(problems) < len(sent) or not sent


def slack(notice: Notice) -> dict[str, Any]:
    """The message of a notice for Slack and Mattermost."""
    return {"text": for_chat(str(notice))}


def for_chat(text: str) -> str:
    """Escape the start of links and mentions of Slack, such as `<!channel>`: names of a checkpoint may look like one."""
    return printable(redacted(text)).replace("&", "&amp;").replace("<", "&lt;")


def webhook(notice: Notice, fleet: str) -> dict[str, Any]:
    """All fields of a notice."""
    return {
        "id": notice.id,
        "is_repeated": notice.is_repeated,
        "text": str(notice),
        "fleet": fleet,
        "subject": notice.subject,
        "team": notice.team,
        "owner": notice.owner,
        "labels": dict(notice.labels),
        "before": notice.before.name,
        "status": notice.now.name,
        "is_reminder": notice.is_reminder,
        "at": utc(notice.at_seconds),
        "since": utc(notice.since_seconds),
        "problem": notice.text,
        "run": notice.run,
    }


def pagerduty(notice: Notice, fleet: str, routing_key: str) -> dict[str, Any]:
    """An event of PagerDuty's Events API v2. Its `dedup_key` makes one incident of all notices of a query."""
    event = {"routing_key": routing_key, "dedup_key": _incident(fleet, notice.subject), "client": "Statekeeper"}
    if notice.now is Status.OK:
        return {**event, "event_action": "resolve"}
    is_url = notice.run.startswith(("https://", "http://"))
    return {
        **event,
        **({"links": [{"href": notice.run, "text": "Run in Dagster"}]} if is_url else {}),
        "event_action": "trigger",
        "payload": {
            "summary": f"{notice.subject}: {notice.text}"[:_LONGEST_SUMMARY],
            "source": fleet,
            "severity": _SEVERITIES[notice.now],
            "component": notice.subject,
            "group": notice.team or fleet,
            "custom_details": webhook(notice, fleet),
        },
    }


def _incident(fleet: str, subject: str) -> str:
    """The name of the incident of a subject. A file of a configuration can have a path that is too long for it."""
    name = f"statekeeper/{fleet}/{subject}"
    return name if len(name) <= _LONGEST_INCIDENT else f"statekeeper/{sha256(name.encode()).hexdigest()}"


def post(url: str, body: Mapping[str, Any]) -> str | None:
    """Send JSON. Returns the error, which never has the URL, because that is a secret; None after a success."""
    if not url.startswith(("https://", "http://")):
        return f"the webhook is not an http URL: {url.partition(':')[0]}:..." if url else "the webhook has no URL"
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):  # noqa: S310 - the scheme is checked above
            return None
    except (urllib.error.URLError, OSError) as error:
        return f"the webhook could not be called: {error}"
    except http.client.HTTPException as error:
        # Its message may contain the URL, which is a secret.
        return f"the webhook could not be called: {type(error).__name__}"
