"""Reports failures: always in the log, and to a webhook if one is configured."""

import http.client
import json
import logging
import urllib.error
import urllib.request

import dagster as dg
from pydantic import Field

from statekeeper.statestore.base.redaction import printable, redacted

_TIMEOUT_SECONDS = 10

_LOG = logging.getLogger("statekeeper.notifier")


class Notifier(dg.ConfigurableResource):
    """Sends `{"text": ...}` by POST to `webhook`, the format of Slack and Mattermost; "" logs only."""

    webhook: str = Field(default="", repr=False)

    def notify(self, text: str) -> str | None:
        """Log the text and send it to the webhook. Returns the webhook's error, or None. It does not raise: an error of
        the webhook must not hide the failure to report."""
        text = printable(redacted(text))
        _LOG.error(text)
        if not self.webhook:
            return None
        if not self.webhook.startswith(("https://", "http://")):
            return f"the webhook is not an http URL: {self.webhook.partition(':')[0]}:..."
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
            self.webhook, data=json.dumps({"text": _plain(text)}).encode(), headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):  # noqa: S310 - the scheme is checked above
                return None
        except (urllib.error.URLError, OSError) as error:
            return f"the webhook could not be called: {error}"
        except http.client.HTTPException as error:
            # Its message may contain the URL, which is a secret.
            return f"the webhook could not be called: {type(error).__name__}"


def _plain(text: str) -> str:
    """Escape the start of links and mentions of Slack, such as `<!channel>`: names of a checkpoint may look like one."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
