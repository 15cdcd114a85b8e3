"""The parts of messages: counts, and commands that can be pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from itertools import count

from statekeeper.statestore.base.redaction import printable

CONFIGURATION_FILE = "statekeeper.toml"
"""The name of the configuration file, in the working directory."""


def counted(number: int, noun: str) -> str:
    """Return the number with its noun, which is plural unless the number is 1."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith(("ry", "ly")):
        return f"{number:,} {noun.removesuffix('y')}ies"
    return f"{number:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def with_next(description: str, command: str) -> str:
    """Append the next command to the description of a problem."""
    return f"{printable(description).removesuffix('.')}. Next: {command}"


def after_each_step(told: Callable[[str], None], text: Callable[[int], str]) -> Callable[[object], None]:
    """Return the function to call after each step: it tells the text for the number of steps."""
    numbers = count(1)
    return lambda step: told(text(next(numbers)))


_ROOT = re.compile(r"\bROOT\b")
_COMMAND = re.compile(r"\bstatekeeper (?P<before>(?:\S*[^\s.,;:] )*?)(?:ROOT|SOURCE)\b")


def with_root(text: str, url: str) -> str:
    """Replace the placeholder ROOT in the commands of a message by the URL of the checkpoint, quoted for a shell."""
    return _ROOT.sub(lambda _: shlex.quote(url), text) if url else text


def of_job(text: str, root: str, checkpoint: str) -> str:
    """Replace the placeholders ROOT and CHECKPOINT in the commands of a message of a job by its places."""
    return with_name(text, root).replace(" --checkpoint CHECKPOINT", f" --checkpoint {shlex.quote(checkpoint)}")


def without_root(text: str, url: str) -> str:
    """Replace the URL of the checkpoint in the commands of a message by ROOT: the inverse of `with_root`."""
    in_command = rf"(\bstatekeeper (?:\S*[^\s.,;:] )*?){re.escape(shlex.quote(url))}(?=[.,;:)]?(?:\s|$))"
    return re.sub(in_command, r"\1ROOT", text)


def with_name(text: str, name: str, *, before: Sequence[str] = (), after: Sequence[str] = ()) -> str:
    """Replace the placeholder ROOT, or SOURCE for the source of a copy, in the commands of a message by the name that the
    user has given. Other texts stay. `before`: options before the verb; `after`: options after the root."""
    program, root = shlex.join(["statekeeper", *before]), shlex.join([name, *after])
    return _COMMAND.sub(lambda found: f"{program} {found['before']}{root}", text)
