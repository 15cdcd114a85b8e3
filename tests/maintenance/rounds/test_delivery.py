"""What the channels of a team get, from a real HTTP server's view."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import jsonschema
import pytest

from statekeeper.resources.notifier import Notifier
from statekeeper.statestore.maintenance.rounds.delivery import deliver
from statekeeper.statestore.maintenance.rounds.notices import Notice
from statekeeper.statestore.maintenance.rounds.visit import Status
from statekeeper.statestore.maintenance.verbs.config import Channels, Configuration

PAGERDUTY_EVENT = {
    "type": "object",
    "required": ["routing_key", "event_action"],
    "properties": {
        "routing_key": {"type": "string", "minLength": 1},
        "event_action": {"enum": ["trigger", "acknowledge", "resolve"]},
        "dedup_key": {"type": "string", "maxLength": 255},
        "client": {"type": "string"},
        "links": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["href"],
                "properties": {"href": {"type": "string"}, "text": {"type": "string"}},
                "additionalProperties": False,
            },
        },
        "payload": {
            "type": "object",
            "required": ["summary", "source", "severity"],
            "properties": {
                "summary": {"type": "string", "maxLength": 1024},
                "source": {"type": "string", "minLength": 1},
                "severity": {"enum": ["critical", "warning", "error", "info"]},
                "component": {"type": "string"},
                "group": {"type": "string"},
                "custom_details": {"type": "object"},
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
    "if": {"properties": {"event_action": {"const": "trigger"}}},
    "then": {"required": ["payload"]},
    "else": {"required": ["dedup_key"]},
}
"""The event of PagerDuty's Events API v2, as its documentation describes the fields that are used."""

SLACK_MESSAGE = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "minLength": 1, "maxLength": 40_000}},
    "additionalProperties": False,
}
"""The message of an incoming webhook of Slack, without blocks."""


def notice(now: Status = Status.ERROR, *, before: Status = Status.OK, text: str = "a file is missing") -> Notice:
    return Notice(
        subject="orders", before=before, now=now, text=text, at_seconds=1e9, since_seconds=9e8, team="payments"
    )


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """The URL of an HTTP server, and the paths and bodies that it received."""
    received: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, json.loads(body)))
            self.send_response(500 if self.path == "/broken" else 202)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base
            del format, args

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}", received
        made.shutdown()
        thread.join()


def test_each_channel_gets_its_own_format(
    server: tuple[str, list[tuple[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, received = server
    monkeypatch.setenv("SLACK", f"{url}/slack")
    monkeypatch.setenv("KEY", "a routing key")
    channels = Channels(slack="env:SLACK", webhook=f"{url}/hook", pagerduty="env:KEY", pagerduty_url=f"{url}/events")
    assert deliver(notice(text="x" * 2000), channels, fleet="prod") == ([], True)
    by_path = dict(received)
    jsonschema.validate(by_path["/slack"], SLACK_MESSAGE)
    jsonschema.validate(by_path["/events"], PAGERDUTY_EVENT)
    assert by_path["/events"]["routing_key"] == "a routing key"
    assert by_path["/hook"]["status"] == "ERROR"
    assert (by_path["/hook"]["at"], by_path["/hook"]["since"]) == ("2001-09-09T01:46:40Z", "1998-07-09T16:00:00Z")


def test_the_end_of_a_problem_resolves_its_incident(server: tuple[str, list[tuple[str, Any]]]) -> None:
    url, received = server
    channels = Channels(pagerduty="key", pagerduty_url=f"{url}/events")
    for one in (notice(Status.WARN), notice(before=Status.WARN), notice(Status.OK, before=Status.ERROR)):
        assert deliver(one, channels, fleet="prod") == ([], True)
    events = [body for _, body in received]
    for event in events:
        jsonschema.validate(event, PAGERDUTY_EVENT)
    assert [event["event_action"] for event in events] == ["trigger", "trigger", "resolve"]
    assert [event["payload"]["severity"] for event in events[:2]] == ["warning", "error"]
    assert {event["dedup_key"] for event in events} == {"statekeeper/prod/orders"}


def test_the_link_to_a_run_is_in_each_format(server: tuple[str, list[tuple[str, Any]]]) -> None:
    url, received = server
    channels = Channels(slack=f"{url}/slack", webhook=f"{url}/hook", pagerduty="key", pagerduty_url=f"{url}/events")
    link = "https://dagster.example.com/runs/1"
    for run in (link, "1"):
        deliver(replace(notice(), run=run), channels, fleet="prod")
    slack, hook, event, _, _, without_link = (body for _, body in received)
    assert f"run: {link}" in slack["text"]
    assert hook["run"] == link
    assert [one["href"] for one in event["links"]] == [link]
    assert "links" not in without_link, "an id is no link"
    jsonschema.validate(event, PAGERDUTY_EVENT)


def test_a_broken_channel_does_not_silence_the_others_and_its_url_stays_secret(
    server: tuple[str, list[tuple[str, Any]]],
) -> None:
    url, received = server
    channels = Channels(slack=f"{url}/broken", webhook=f"{url}/hook")
    problem = "the webhook could not be called: HTTP Error 500: Internal Server Error"
    assert deliver(notice(), channels, fleet="prod") == ([problem], True)
    assert [path for path, _ in received] == ["/broken", "/hook"]
    for given in ("env:NOT_SET", "ftp://host/secret", "http://host:x/secret"):
        (problem,), is_sent = deliver(notice(), Channels(slack=given), fleet="prod")
        assert "secret" not in problem
        assert not is_sent


def test_a_name_in_a_checkpoint_mentions_nobody(server: tuple[str, list[tuple[str, Any]]]) -> None:
    url, received = server
    deliver(notice(text="<!channel> & \n password=hunter2"), Channels(slack=url), fleet="prod")
    assert received[0][1]["text"].endswith("ERROR: &lt;!channel> &amp; \\n password=***")


def test_a_failed_run_reaches_all_alerts_of_a_fleet_in_dagster(server: tuple[str, list[tuple[str, Any]]]) -> None:
    url, received = server
    notifier = Notifier(
        webhook=f"{url}/slack", alert_webhook=f"{url}/json", alert_pagerduty="key", alert_pagerduty_url=f"{url}/events"
    )
    failed = replace(notice(text="the run died"), subject="job maintain_queries", team="")
    assert notifier.send(failed, Configuration(), fleet="prod")
    found = dict(received)
    assert found["/slack"]["text"].endswith(": the run died")
    assert (found["/json"]["status"], found["/json"]["problem"]) == ("ERROR", "the run died")
    assert found["/json"]["id"] == failed.id
    jsonschema.validate(found["/events"], PAGERDUTY_EVENT)
    notifier = Notifier(alert_webhook=f"{url}/broken")
    assert not notifier.send(failed, Configuration(), fleet="prod")


def test_an_incident_of_a_file_with_a_long_path_has_a_valid_name(server: tuple[str, list[tuple[str, Any]]]) -> None:
    url, received = server
    long = replace(notice(), subject=f"file /{'x' * 300}.toml")
    for one in (long, replace(long, subject=f"{long.subject}2")):
        deliver(one, Channels(pagerduty="key", pagerduty_url=f"{url}/events"), fleet="jobs")
        jsonschema.validate(received[-1][1], PAGERDUTY_EVENT)
    assert received[0][1]["dedup_key"] != received[1][1]["dedup_key"]
