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
from statekeeper.statestore.maintenance.rounds import delivery
from statekeeper.statestore.maintenance.rounds.delivery import Silent, deliver
from statekeeper.statestore.maintenance.rounds.notices import Notice
from statekeeper.statestore.maintenance.rounds.visit import Status
from statekeeper.statestore.maintenance.verbs.config import Channels, Configuration
from tests.support.webhooks import Webhook

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
"""The event of `/enqueue` of PagerDuty's Events API v2: the used fields, their types and values, and what is required, are
those of `reference/events-v2/openapiv3.json` in the repository PagerDuty/api-schema (commit 5cd58ff2). Stricter: no other
fields, and the lengths that the documentation states. A `dedup_key` is required unless `event_action` is `trigger`."""

SLACK_MESSAGE = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "minLength": 1, "maxLength": 40_000}},
    "additionalProperties": False,
}
"""The message of an incoming webhook of Slack, without blocks: `text` is its only required field. Slack cuts a text of more
than 40,000 characters."""


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
    assert deliver(notice(text="x" * 2000), channels, fleet="prod", silent=Silent()) == ([], None)
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
        assert deliver(one, channels, fleet="prod", silent=Silent()) == ([], None)
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
        deliver(replace(notice(), run=run), channels, fleet="prod", silent=Silent())
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
    assert deliver(notice(), channels, fleet="prod", silent=Silent()) == ([problem], None)
    assert [path for path, _ in received] == ["/broken", "/hook"]
    for given in ("env:NOT_SET", "ftp://host/secret", "http://host:x/secret"):
        (problem,), left = deliver(notice(), Channels(slack=given), fleet="prod", silent=Silent())
        assert "secret" not in problem
        assert left == notice()


def test_a_name_in_a_checkpoint_mentions_nobody(server: tuple[str, list[tuple[str, Any]]]) -> None:
    url, received = server
    deliver(notice(text="<!channel> & \n password=hunter2"), Channels(slack=url), fleet="prod", silent=Silent())
    assert received[0][1]["text"].endswith("ERROR: &lt;!channel> &amp; \\n password=***")


def test_a_failed_run_reaches_all_alerts_of_a_fleet_in_dagster(server: tuple[str, list[tuple[str, Any]]]) -> None:
    url, received = server
    notifier = Notifier(
        webhook=f"{url}/slack", alert_webhook=f"{url}/json", alert_pagerduty="key", alert_pagerduty_url=f"{url}/events"
    )
    failed = replace(notice(text="the run died"), subject="job maintain_queries", team="")
    assert notifier.send(failed, Configuration(), fleet="prod") is None
    found = dict(received)
    assert found["/slack"]["text"].endswith(": the run died")
    assert (found["/json"]["status"], found["/json"]["problem"]) == ("ERROR", "the run died")
    assert found["/json"]["id"] == failed.id
    jsonschema.validate(found["/events"], PAGERDUTY_EVENT)
    notifier = Notifier(alert_webhook=f"{url}/broken")
    assert notifier.send(failed, Configuration(), fleet="prod") == failed


def test_an_incident_of_a_file_with_a_long_path_has_a_valid_name(server: tuple[str, list[tuple[str, Any]]]) -> None:
    url, received = server
    long = replace(notice(), subject=f"file /{'x' * 300}.toml")
    for one in (long, replace(long, subject=f"{long.subject}2")):
        deliver(one, Channels(pagerduty="key", pagerduty_url=f"{url}/events"), fleet="jobs", silent=Silent())
        jsonschema.validate(received[-1][1], PAGERDUTY_EVENT)
    assert received[0][1]["dedup_key"] != received[1][1]["dedup_key"]


def test_a_channel_that_does_not_answer_is_called_once_in_a_pass(
    server: tuple[str, list[tuple[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_TIMEOUT_SECONDS", 0.1)
    url, received = server
    silent = Silent()
    with Webhook.opened() as webhook:
        webhook.hangs = True
        for subject in ("clicks", "orders", "views"):
            one = replace(notice(), subject=subject)
            (problem,), left = deliver(one, Channels(slack=webhook.url), fleet="prod", silent=silent)
            assert (left, "/hook" in problem) == (one, False)
            assert deliver(one, Channels(slack=f"{url}/slack"), fleet="prod", silent=silent) == ([], None)
        assert len(webhook.bodies) == 1
        assert len(received) == 3, "another channel is called for each notice"
        webhook.hangs = False
        other = Channels(slack=f"{webhook.url}/of-another-team")
        assert deliver(notice(), other, fleet="prod", silent=silent) == ([], None)
        silent.clear()
        assert deliver(notice(), Channels(slack=webhook.url), fleet="prod", silent=silent) == ([], None)


def test_a_host_without_a_connection_is_called_once_in_a_pass_and_one_that_refuses_each_time(
    server: tuple[str, list[tuple[str, Any]]],
) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        down = f"http://127.0.0.1:{closed.server_port}"
    silent = Silent()
    problems = [
        deliver(notice(), Channels(slack=f"{down}/{team}"), fleet="prod", silent=silent)[0][0] for team in ("a", "b")
    ]
    assert "Connection refused" in problems[0]
    assert problems[1] == "the webhook was not called, because it has just failed to answer"
    url, received = server
    for _ in range(2):
        deliver(notice(), Channels(slack=f"{url}/broken"), fleet="prod", silent=silent)
    assert len(received) == 2


@pytest.mark.parametrize("now", [Status.ERROR, Status.OK])
def test_a_notice_that_pagerduty_alone_did_not_accept_is_left_for_pagerduty_alone(
    now: Status, server: tuple[str, list[tuple[str, Any]]]
) -> None:
    url, received = server
    one = notice(now, before=Status.WARN)
    channels = Channels(slack=f"{url}/slack", pagerduty="key", pagerduty_url=f"{url}/broken")
    left = one
    for _ in range(2):
        _, found = deliver(left, channels, fleet="prod", silent=Silent())
        assert found == replace(one, only_pagerduty=True)
        left = found
    assert [path for path, _ in received] == ["/slack", "/broken", "/broken"]
    works = replace(channels, pagerduty_url=f"{url}/events")
    assert deliver(left, works, fleet="prod", silent=Silent()) == ([], None)
    assert [path for path, _ in received[3:]] == ["/events"]
    # Without any answer, the notice is left for all channels.
    broken = replace(channels, slack=f"{url}/broken")
    assert deliver(one, broken, fleet="prod", silent=Silent())[1] == one
    assert deliver(left, Channels(slack=f"{url}/slack"), fleet="prod", silent=Silent()) == ([], None)
