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


def redacted(text: str) -> str:
    """The text with each secret that can be recognized replaced by `***`."""
    return _NAMED.sub(rf"\g<before>{_MASK}", _PASSWORD.sub(rf"\g<before>{_MASK}@", text))
