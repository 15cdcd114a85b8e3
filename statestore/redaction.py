"""Keeps secrets out of texts that people and logs get: errors, the record of a run, the description of a value.

Secrets belong into storage options and environment variables. They also come in URLs, and other libraries repeat those in
their messages: passwords before the host, and tokens and signatures in a query or a connection string.
"""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(?P<before>://[^/\s:@]*:)(?!\d+[/,\s])[^@\s]+@")
"""What stands between user and host. A port is none."""

_NAMED = re.compile(
    r"(?P<before>\b(?:sig|signature|delegation|token|sas_token|session_token|password|secret|client_secret|account_?key|"
    r"SharedAccessSignature|AWSAccessKeyId|X-Amz-(?:Credential|Signature|Security-Token))(?:=|%3D))[^&\s;,'\")]+",
    re.IGNORECASE,
)
_MASK = "***"

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor of a terminal, change its colors or title, reverse a text, or cannot be encoded."""


def redacted(text: str) -> str:
    """The text with each secret that can be recognized replaced by `***`."""
    return _NAMED.sub(rf"\g<before>{_MASK}", _PASSWORD.sub(rf"\g<before>{_MASK}@", text))


def printable(text: str) -> str:
    """The text with control characters written as escapes: names and values from a checkpoint reach terminals and logs."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
