"""Tells people of failures: always in the log, and by the channels of the team or a webhook."""

import logging

import dagster as dg
from pydantic import Field, PrivateAttr

from statekeeper.statestore.base.redaction import printable, redacted
from statekeeper.statestore.maintenance.rounds.delivery import Silent, announce, deliver
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
    _silent: Silent = PrivateAttr(default_factory=Silent)
    """Of a run: Dagster makes an instance for each run and each tick."""

    @property
    def channels(self) -> Channels:
        """The channels of teams without one, and of failed runs."""
        return Channels(self.webhook, self.alert_webhook, self.alert_pagerduty, self.alert_pagerduty_url)

    def link(self, run_id: str) -> str:
        """The URL of a run; its id without a URL of the UI."""
        return f"{self.ui_url.rstrip('/')}/runs/{run_id}" if self.ui_url else run_id

    def announce(self, text: str, configuration: Configuration, *, team: str, fleet: str) -> None:
        """Log a text that reports no problem, and send it to the chat and the webhook of a team, but not to PagerDuty."""
        _LOG.info(printable(redacted(text)))
        channels = configuration.channels_of(team)
        for problem in announce(
            text, self.channels if channels == Channels() else channels, fleet=fleet, silent=self._silent
        ):
            _LOG.error("a message to the team %s was not sent: %s", printable(team or "default"), problem)

    def send(self, notice: Notice, configuration: Configuration, *, fleet: str) -> Notice | None:
        """Log a notice and send it. Returns what is left to send, as `deliver`."""
        _LOG.warning(printable(redacted(str(notice))))
        channels = configuration.channels_of(notice.team)
        chosen = self.channels if channels == Channels() else channels
        problems, left = deliver(notice, chosen, fleet=fleet, silent=self._silent)
        for problem in problems:
            _LOG.error("a notice of %s was not sent: %s", printable(notice.subject), problem)
        return left
