"""How a failure reaches a person: always in the log, and by a webhook where one is set."""

import http.client
import json
import logging
import urllib.error
import urllib.request

import dagster as dg
from pydantic import Field

from statestore.redaction import redacted

_TIMEOUT_SECONDS = 10

_LOG = logging.getLogger("statekeeper.notifier")


class Notifier(dg.ConfigurableResource):
    """`webhook` gets `{"text": ...}` by POST, as Slack, Mattermost and others take it; "" for the log only."""

    webhook: str = Field(default="", repr=False)

    def tell(self, text: str) -> str | None:
        """Tell a person. Returns what went wrong with the webhook, None when all went well: a failure that could not be
        told must not hide the one that was to be told."""
        text = redacted(text)
        _LOG.error(text)
        if not self.webhook:
            return None
        if not self.webhook.startswith(("https://", "http://")):
            return f"the webhook is no http URL: {self.webhook.partition(':')[0]}:..."
        request = urllib.request.Request(  # noqa: S310 - looked at above
            self.webhook, data=json.dumps({"text": text}).encode(), headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):  # noqa: S310 - looked at above
                return None
        except (urllib.error.URLError, OSError) as error:
            return f"the webhook could not be told: {error}"
        except http.client.HTTPException as error:
            # What it says may hold the URL, which is a secret.
            return f"the webhook could not be told: {type(error).__name__}"
