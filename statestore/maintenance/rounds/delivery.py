"""How a notice reaches the people of a team: a POST to the URL of a chat, of an on-call service, or of a program.

slack      {"text": ...}, also for Mattermost
pagerduty  an event of PagerDuty's Events API v2; the same incident for all notices of a query
webhook    all fields of the notice as JSON

A channel that does not answer costs a pass the wait of one POST, and not that of each notice: see `Silent`.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.redaction import printable, redacted
from statekeeper.statestore.maintenance.rounds.notices import Notice
from statekeeper.statestore.maintenance.rounds.visit import Status
from statekeeper.statestore.maintenance.verbs.config import Channels, of_channel

_TIMEOUT_SECONDS = 5.0
_LONGEST_SUMMARY = 1024
"""Characters of a summary in PagerDuty's Events API v2."""

_LONGEST_INCIDENT = 255
"""Characters of a `dedup_key`."""

_SEVERITIES = {Status.WARN: "warning", Status.ERROR: "error"}


class Silent:
    """The channels that did not answer in a pass, or in a run. They are not called again in it.

    After a failed connection, this holds for the host of a URL: other teams have other URLs of it. After a connection
    without an answer in time, it holds for the URL.
    """

    def __init__(self) -> None:
        self._found: set[str] = set()

    def has(self, url: str) -> bool:
        """Whether not to call a URL."""
        return url in self._found or _host(url) in self._found

    def add(self, url: str, *, whole_host: bool) -> None:
        """Remember that a URL, or its host, did not answer."""
        self._found.add(_host(url) if whole_host else url)

    def clear(self) -> None:
        """Begin a pass."""
        self._found.clear()


def _host(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])


def deliver(notice: Notice, channels: Channels, *, fleet: str, silent: Silent) -> tuple[list[str], Notice | None]:
    """Send a notice to each channel of its team; an error of one channel does not keep it from the others.

    Returns the errors, and what is left to send. Nothing is left if a channel has accepted the notice, or if there is none.
    But PagerDuty must accept it, because it may be the only channel that wakes a person, and drops a repetition.
    """
    sent: list[tuple[str, Mapping[str, Any]]] = []
    if channels.slack and not notice.only_pagerduty:
        sent.append((channels.slack, slack(notice)))
    if channels.webhook and not notice.only_pagerduty:
        sent.append((channels.webhook, webhook(notice, fleet)))
    answers = [post(of_channel(url, os.environ), body, silent) for url, body in sent]
    is_received = notice.only_pagerduty or None in answers
    left = None if is_received or not sent else notice
    if channels.pagerduty:
        event = pagerduty(notice, fleet, of_channel(channels.pagerduty, os.environ))
        answers.append(post(of_channel(channels.pagerduty_url, os.environ), event, silent))
        left = None if answers[-1] is None else replace(notice, only_pagerduty=is_received)
    return [one for one in answers if one is not None], left


def announce(text: str, channels: Channels, *, fleet: str, silent: Silent) -> list[str]:
    """Post a text that is no problem to the chat and to the webhook; PagerDuty is not called. Returns the errors."""
    bodies: list[tuple[str, Mapping[str, Any]]] = [
        (channels.slack, {"text": for_chat(text)}),
        (channels.webhook, {"text": printable(redacted(text)), "fleet": fleet}),
    ]
    answers = [post(of_channel(url, os.environ), body, silent) for url, body in bodies if url]
    return [one for one in answers if one is not None]


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


def post(url: str, body: Mapping[str, Any], silent: Silent) -> str | None:
    """Send JSON. Returns the error, which never has the URL, because that is a secret; None after a success."""
    if silent.has(url):
        return "the webhook was not called, because it has just failed to answer"
    if not url.startswith(("https://", "http://")):
        return f"the webhook is not an http URL: {url.partition(':')[0]}:..." if url else "the webhook has no URL"
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):  # noqa: S310 - the scheme is checked above
            return None
    except OSError as error:
        # An HTTPError is an answer. Any other URLError is a failed connection.
        if not isinstance(error, urllib.error.HTTPError):
            silent.add(url, whole_host=isinstance(error, urllib.error.URLError))
        return f"the webhook could not be called: {error}"
    except http.client.HTTPException as error:
        # Its message may contain the URL, which is a secret.
        return f"the webhook could not be called: {type(error).__name__}"
