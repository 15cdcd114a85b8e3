"""Who carries a verb out."""

from __future__ import annotations

from dataclasses import dataclass

from statestore.clock import Clock, Ids


@dataclass(frozen=True)
class Maintainer:
    """The process that carries a verb out: `holder` names it for people; `clock` and `ids` are its sources of time and of
    new ids."""

    holder: str
    clock: Clock
    ids: Ids
