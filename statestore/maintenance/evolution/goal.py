"""The goal of a schema evolution, as a person states it: changes of value columns, not yet compared with the state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class AddedColumn:
    """A new column at the end of the value. `type`: Spark's name or JSON; `default`: the value of all present rows."""

    type: Any
    nullable: bool = True
    default: Any = None


@dataclass(frozen=True, kw_only=True)
class Widened:
    """A column whose new type holds all its values. `type`: None keeps it; `nullable`: None keeps the present setting."""

    type: Any = None
    nullable: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ColumnChanges:
    """The changes of the value columns of one store. Only `add` and the new names of `rename` are new names."""

    add: Mapping[str, AddedColumn] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    widen: Mapping[str, Widened] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether no column changes."""
        return not (self.add or self.drop or self.widen or self.rename)


@dataclass(frozen=True, kw_only=True)
class Evolve:
    """The goal of other value columns.

    stores   the changes; the keys are the names of the stores
    options  the options of the command that state this goal
    """

    stores: Mapping[str, ColumnChanges]
    options: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A digest of the changes, by which a later run recognizes them."""
        changes = {name: asdict(one) for name, one in self.stores.items()}
        # The order of added columns is that of the new schema, so it counts.
        return hashlib.sha256(json.dumps(changes, default=repr).encode()).hexdigest()
