"""Find the commands in an output, as a person would copy them to a terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

import click

from statekeeper.statestore.cli import main

_BEGIN = re.compile(r"\bstatekeeper (?=[a-z])")
_END = ".,;:)"
_UNKNOWN = re.compile(r"[A-Z]{1,11}(:[A-Z]+)?")
"""A placeholder, if it is not one of those that a reader can replace."""


def commands(text: str, places: Mapping[str, str]) -> list[list[str]]:
    """Return the arguments of each command in the text. `places`: the values of the placeholders, such as ROOT.

    A command with a placeholder that is not in `places` is omitted: it is a pattern.
    """
    found = []
    for line in text.splitlines():
        for begin in _BEGIN.finditer(line):
            words = _words(line[begin.end() :])
            arguments = _command(words, places)
            if arguments is not None and arguments not in found:
                found.append(arguments)
    return found


def _words(text: str) -> list[str]:
    """The words up to the next command, as a shell splits them."""
    rest = text[: found.start()] if (found := _BEGIN.search(text)) else text
    try:
        return shlex.split(rest)
    except ValueError:
        # An apostrophe of the prose after the command.
        return rest.split()


def _command(words: Sequence[str], places: Mapping[str, str]) -> list[str] | None:
    verb = main.commands.get(words[0].rstrip(_END)) if words else None
    if verb is None or words[0] != words[0].rstrip(_END):
        return None
    options = {name: one for one in verb.params if isinstance(one, click.Option) for name in one.opts}
    left = sum(max(one.nargs, 1) for one in verb.params if isinstance(one, click.Argument))
    taken, position = [words[0]], 1
    while position < len(words):
        word = words[position]
        bare = word.rstrip(_END)
        option = options.get(bare)
        if option is not None:
            taken.append(bare)
            position += 1
            if not option.is_flag and bare == word and position < len(words):
                word = words[position]
                taken.append(word.rstrip(_END))
                position += 1
        elif left and not word.startswith("-") and _is_place(bare):
            taken.append(bare)
            left -= 1
            position += 1
        else:
            break
        if word != word.rstrip(_END):
            break
    if len(taken) == 1:
        return None
    filled = [places.get(word, word) for word in taken]
    return None if any(_UNKNOWN.fullmatch(word) for word in filled[1:]) else filled


def _is_place(word: str) -> bool:
    return "/" in word or bool(_UNKNOWN.fullmatch(word))
