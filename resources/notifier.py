"""Tells people of failures: always in the log, and by the channels of the team or a webhook."""

import logging

import dagster as dg
from pydantic import Field

from statekeeper.statestore.base.redaction import printable, redacted
from statekeeper.statestore.maintenance.rounds.delivery import deliver
from statekeeper.statestore.maintenance.rounds.notices import Notice
from statekeeper.statestore.maintenance.verbs.config import Channels, Configuration

_LOG = logging.getLogger("statekeeper.notifier")


class Notifier(dg.ConfigurableResource):
    """Sends notices of a query by the channels of its team in `statekeeper.toml`.

    webhook    URL that gets `{"text": ...}` by POST, the format of Slack and Mattermost: failed jobs, and the notices of
               teams without a channel; "" for none
    alert_...  the other channels for them, as in `Channels`
    ui_url     URL of Dagster's UI, for links to runs; "" for none
    """

    webhook: str = Field(default="", repr=False)
    alert_webhook: str = Field(default="", repr=False)
    alert_pagerduty: str = Field(default="", repr=False)
    alert_pagerduty_url: str = Channels.pagerduty_url
    ui_url: str = ""

    @property
    def channels(self) -> Channels:
        """The channels of teams without one, and of failed runs."""
        return Channels(self.webhook, self.alert_webhook, self.alert_pagerduty, self.alert_pagerduty_url)

    def link(self, run_id: str) -> str:
        """The URL of a run; its id without a URL of the UI."""
        return f"{self.ui_url.rstrip('/')}/runs/{run_id}" if self.ui_url else run_id

    def send(self, notice: Notice, configuration: Configuration, *, fleet: str) -> bool:
        """Log a notice and send it. Returns whether a channel accepted it, or there is none."""
        _LOG.warning(printable(redacted(str(notice))))
        channels = configuration.channels_of(notice.team)
        problems, is_sent = deliver(notice, self.channels if channels == Channels() else channels, fleet=fleet)
        for problem in problems:
            _LOG.error("a notice of %s was not sent: %s", printable(notice.subject), problem)
        return is_sent
