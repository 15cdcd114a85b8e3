"""Removes secrets from errors, logs, run records and descriptions of values.

Secrets belong in storage options and environment variables. URLs may contain them, too, and other libraries quote URLs in
their messages: passwords before the host, tokens and signatures in a query or a connection string.
"""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(?P<before>://[^/\s:@]*:)(?!\d+[/,\s])[^@\s]+@")
"""The password between user and host. A port is no password."""

_NAMED = re.compile(
    r"(?P<before>\b(?:sig|signature|delegation|token|sas_token|session_token|password|secret|client_secret|account_?key|"
    r"SharedAccessSignature|AWSAccessKeyId|X-Amz-(?:Credential|Signature|Security-Token))(?:=|%3D))[^&\s;,'\")]+",
    re.IGNORECASE,
)
_MASK = "***"

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor of a terminal, change its colors or title, reverse text, or cannot be encoded."""


def redacted(text: str) -> str:
    """Replace each recognized secret by `***`."""
    return _NAMED.sub(rf"\g<before>{_MASK}", _PASSWORD.sub(rf"\g<before>{_MASK}@", text))


def printable(text: str) -> str:
    """Escape control characters: terminals and logs display names and values of a checkpoint."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
