"""The problem of a file in storage."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from statestore.errors import ObjectMissing, StatekeeperError, UnknownFormatVersion
from statestore.format.families import UnknownColumnType


class Flaw(Enum):
    """The kind of a problem of a file."""

    MISSING = "is missing"
    CORRUPT = "cannot be read"
    UNKNOWN_FORMAT = "has an unsupported format"
    UNKNOWN_TYPE = "has a column of an unsupported type"
    MISMATCH = "contradicts other files"
    REPLACED = "is another file under the same name"

    @classmethod
    def of(cls, error: StatekeeperError) -> Flaw:
        """Return the kind of problem that an error about a file reports."""
        if isinstance(error, ObjectMissing):
            return cls.MISSING
        if isinstance(error, UnknownColumnType):
            return cls.UNKNOWN_TYPE
        return cls.UNKNOWN_FORMAT if isinstance(error, UnknownFormatVersion) else cls.CORRUPT


@dataclass(frozen=True)
class FileProblem:
    """A file in storage that cannot be used. `text` is a predicate without the path: "is missing"."""

    path: str
    flaw: Flaw
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"
