"""Removes secrets and control characters from errors, logs, run records and descriptions of values.

Secrets belong in storage options and environment variables. URLs may contain them, too, and other libraries quote URLs in
their messages: passwords before the host, tokens and signatures in a query or a connection string.

Names and values in a checkpoint may be forged. So `printable` makes each text that is shown to people one line.
"""

from __future__ import annotations

import re
import unicodedata

_PASSWORD = re.compile(r"(?P<before>://[^/\s:@]*:)(?!\d+[/,\s])[^@\s]+@")
"""The password between user and host. A port is no password."""

_NAMED = re.compile(
    r"(?P<before>\b(?:sig|signature|delegation|token|sas_token|session_token|password|secret|client_secret|account_?key|"
    r"SharedAccessSignature|AWSAccessKeyId|X-Amz-(?:Credential|Signature|Security-Token))(?:=|%3D))[^&\s;,'\")]+",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"(?!.*secretKeyRef).*(?:secret|passw(?:or)?d|token|client\.secret[^=]*|(?:secret|access|account|private)[._-]?key[^=]*)=",
    re.IGNORECASE,
)
"""An option of a command with a secret. `spark.kubernetes.*.secretKeyRef` only names one."""

_MASK = "***"

_UNDECODABLE = 0xDC00
"""Python represents the byte 0xff of a file name that is no text as U+DCFF (`surrogateescape`)."""


def redacted(text: str) -> str:
    """Replace each recognized secret by `***`."""
    return _NAMED.sub(rf"\g<before>{_MASK}", _PASSWORD.sub(rf"\g<before>{_MASK}@", text))


def has_secret(word: str) -> bool:
    """Return whether a word of a command is or contains a secret: each user of the machine sees it."""
    return _OPTION.match(word) is not None or redacted(word) != word


def printable(text: str) -> str:
    """Return the text as one line that controls no terminal: for every text of a checkpoint that is shown to people.

    Line breaks, tabs, control characters, and invisible characters such as those that reverse text become escapes: `\\n`,
    `\\x1b`, `\\u202e`. Terminals, logs and Markdown would interpret them.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    byte = ord(character) - _UNDECODABLE
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else character.encode("unicode_escape").decode()
