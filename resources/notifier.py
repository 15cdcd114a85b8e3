"""Reports failures: always in the log, and to a webhook if one is configured."""

import logging

import dagster as dg
from pydantic import Field

from statekeeper.statestore.base.redaction import printable, redacted
from statekeeper.statestore.maintenance.rounds.delivery import for_chat, post

_LOG = logging.getLogger("statekeeper.notifier")


class Notifier(dg.ConfigurableResource):
    """Sends `{"text": ...}` by POST to `webhook`, the format of Slack and Mattermost; "" logs only."""

    webhook: str = Field(default="", repr=False)

    def notify(self, text: str) -> str | None:
        """Log the text and send it to the webhook. Returns the webhook's error, or None. It does not raise: an error of
        the webhook must not hide the failure to report."""
        text = printable(redacted(text))
        _LOG.error(text)
        return post(self.webhook, {"text": for_chat(text)}) if self.webhook else None
