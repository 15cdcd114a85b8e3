"""Reports failures: always in the log, and to a webhook if one is configured."""

import logging
from dataclasses import replace

import dagster as dg
from pydantic import Field

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.redaction import printable, redacted
from statekeeper.statestore.maintenance.rounds.delivery import deliver, for_chat, post
from statekeeper.statestore.maintenance.rounds.notices import Notice
from statekeeper.statestore.maintenance.rounds.visit import Status
from statekeeper.statestore.maintenance.verbs.config import Channels

_LOG = logging.getLogger("statekeeper.notifier")


class Notifier(dg.ConfigurableResource):
    """Sends `{"text": ...}` by POST to `webhook`, the format of Slack and Mattermost; "" logs only.

    The fields `alert_...` are the other channels of `Channels`.
    """

    webhook: str = Field(default="", repr=False)
    alert_webhook: str = Field(default="", repr=False)
    alert_pagerduty: str = Field(default="", repr=False)
    alert_pagerduty_url: str = Channels.pagerduty_url

    @property
    def channels(self) -> Channels:
        """The channels of teams without one, and of failed runs."""
        return Channels(self.webhook, self.alert_webhook, self.alert_pagerduty, self.alert_pagerduty_url)

    def notify(self, text: str) -> str | None:
        """Log the text and send it to the webhook. Returns the webhook's error, or None. It does not raise: an error of
        the webhook must not hide the failure to report."""
        text = printable(redacted(text))
        _LOG.error(text)
        problem = post(self.webhook, {"text": for_chat(text)}) if self.webhook else None
        now = SystemClock().now_seconds()
        notice = Notice(
            subject="a run", before=Status.OK, now=Status.ERROR, text=text, at_seconds=now, since_seconds=now
        )
        problems, _ = deliver(notice, replace(self.channels, slack=""), fleet="statekeeper")
        return problem or next(iter(problems), None)
