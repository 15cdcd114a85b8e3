"""Commands in messages: they name the checkpoint, so that a person can paste them."""

from __future__ import annotations

import re
import shlex

_ROOT = re.compile(r"\bROOT\b")


def with_root(text: str, url: str) -> str:
    """Replace the placeholder ROOT in the commands of a message by the URL of the checkpoint, quoted for a shell."""
    return _ROOT.sub(lambda _: shlex.quote(url), text) if url else text
