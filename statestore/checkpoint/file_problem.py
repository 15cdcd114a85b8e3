"""The problem of a file in storage."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from statekeeper.statestore.base.errors import ObjectMissing, RecordTooLarge, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.format import names
from statekeeper.statestore.format.operators import UnknownColumnType


class Flaw(Enum):
    """The kind of a problem of a file."""

    MISSING = "is missing"
    CORRUPT = "cannot be read"
    UNKNOWN_FORMAT = "has an unsupported format"
    UNKNOWN_TYPE = "has a column of an unsupported type"
    TOO_LARGE = "has a record above the limit"
    MISMATCH = "contradicts other files"
    REPLACED = "is another file under the same name"

    @classmethod
    def of(cls, error: StatekeeperError) -> Flaw:
        """Return the kind of problem that an error about a file reports."""
        if isinstance(error, ObjectMissing):
            return cls.MISSING
        if isinstance(error, UnknownColumnType):
            return cls.UNKNOWN_TYPE
        if isinstance(error, RecordTooLarge):
            return cls.TOO_LARGE
        return cls.UNKNOWN_FORMAT if isinstance(error, UnknownFormatVersion) else cls.CORRUPT


@dataclass(frozen=True)
class FileProblem:
    """A file in storage that cannot be used.

    text  a predicate without the path: "is missing"
    fix   the action that makes an intact file usable; "" if it must be restored
    """

    path: str
    flaw: Flaw
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{names.with_batch(self.path)}: {self.text}"

    @property
    def of_batch(self) -> str:
        """The text with the batch of the file, for a message that names another batch, too."""
        batch = names.batch_of(self.path)
        return self.text if batch is None else f"{self.text} (the file is of batch {batch})"
