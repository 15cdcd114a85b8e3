"""Our own records: JSON files that Statekeeper writes in a root or beside it. Files in the formats of Spark do not belong
here, and neither do the binary records of changelogs, which are in `records`.

The type of a record, a `Record` or a frozen dataclass, declares its fields with their limits. Only this module converts the
bytes of a file to a record and back. The bytes are untrusted: the size of the text is checked before it is parsed, and each
field before it is used. Unknown fields are ignored, so that a record of a later release stays readable. A field that an
earlier release did not write has a default.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

import msgspec
from msgspec import Meta, Struct

from statekeeper.statestore.base.errors import RESTORE, CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format import names
from statekeeper.statestore.format.untrusted import BAD_VALUES, require_parsable

Kind = TypeVar("Kind")

_YEAR_10000_MS = 253_402_300_800_000
_LONGEST_PROBLEM = 200
"""Characters of an error, which may quote a value of the file."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A long of Spark that is not negative."""
Number = Annotated[int, Meta(ge=0, le=names.LARGEST_NUMBER)]
"""The number of an operator or of a partition."""
PartitionCount = Annotated[int, Meta(ge=1, le=names.MOST_PARTITIONS)]
UnixMs = Annotated[int, Meta(ge=0, lt=_YEAR_10000_MS)]
"""A time that a date can show."""
UnixSeconds = Annotated[float, Meta(ge=0, lt=_YEAR_10000_MS / 1000)]
"""A time that a date can show."""
Text = Annotated[str, Meta(min_length=1)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""128 bits as hexadecimal digits."""
Uuid = Annotated[str, Meta(pattern=r"\A[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")]
CheckpointId = Annotated[str, Meta(pattern=rf"\A{names.CHECKPOINT_ID.pattern}\Z")]
StoreName = Annotated[str, Meta(pattern=rf"\A{names.STORE_NAME.pattern}\Z")]
TableName = Annotated[str, Meta(pattern=rf"\A{names.TABLE_NAME.pattern}\Z")]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Record(Struct, frozen=True, kw_only=True):
    """The base of records whose fields have other names in the file, or are not written if they have their default."""


@dataclass(frozen=True)
class About:
    """Describes a kind of record for its errors.

    name  such as "hold of a batch"
    then  the consequence of an invalid record
    """

    name: str
    then: str = ""
    hint: str = RESTORE

    def invalid(self, error: object, path: str) -> CorruptFile:
        """Return the error for an invalid record."""
        what = f"is not a valid {self.name}: {str(error)[:_LONGEST_PROBLEM]}"
        return CorruptFile(f"{what}; {self.then}" if self.then else what, path=path, hint=self.hint)


class _Head(Record):
    format: int


def encoded(
    record: object,
    *,
    indent: int | None = None,
    sort_keys: bool = False,
    ensure_ascii: bool = True,
    compact: bool = False,
) -> bytes:
    """Encode a record as JSON. The bytes depend on the layout, which stays the same in all releases."""
    text = json.dumps(
        record,
        default=as_json,
        indent=indent,
        sort_keys=sort_keys,
        ensure_ascii=ensure_ascii,
        separators=(",", ":") if compact else None,
    )
    return text.encode()


def encoded_lines(records: Iterable[object]) -> bytes:
    """Encode a file with one record per line."""
    return b"".join(encoded(record) + b"\n" for record in records)


def as_json(record: object) -> Any:
    """Return a record as objects, lists and scalars of JSON."""
    return msgspec.to_builtins(record, str_keys=True, enc_hook=_plain)


def _plain(value: object) -> object:
    """Return a value of a subclass, such as a float of NumPy, as one of its base."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise NotImplementedError(f"a record has no {type(value).__name__}")


def converted(kind: type[Kind], body: object) -> Kind:
    """Convert parsed JSON to a record. Raises `ValueError`."""
    return msgspec.convert(body, kind, strict=True, str_keys=True)


def recast(kind: type[Kind], record: object) -> Kind:
    """Convert a record to a type whose fields have the same names in Python, but maybe not in the file."""
    return msgspec.convert(record, kind, strict=True, from_attributes=True)


def decoded(kind: type[Kind], data: bytes, path: str, about: About, *, only_format: int | None = None) -> Kind:
    """Decode a record. `only_format`: the format that it must have; None if it has none, or after `require_format`.

    Raises `CorruptFile`, also for a text with more than `MOST_JSON_VALUES` values.
    """
    try:
        require_parsable(data)
        if only_format is not None and (other := _decoder(_Head).decode(data).format) != only_format:
            raise ValueError(f"it has format {other}, and this release knows only format {only_format}")
        found: Kind = _decoder(cast("Hashable", kind)).decode(data)
    except BAD_VALUES as error:
        raise about.invalid(error, path) from error
    return found


def decoded_lines(kind: type[Kind], data: bytes, path: str, about: About) -> Iterator[Kind]:
    """Decode a file with one record per line. Raises `CorruptFile`."""
    return (decoded(kind, line, path, about) for line in data.splitlines())


def require_format(data: bytes, path: str, about: About, known: Collection[int]) -> None:
    """Verify that this release knows the format of a record. Raises `UnknownFormatVersion`, `CorruptFile`."""
    found = decoded(_Head, data, path, about).format
    if found not in known:
        raise UnknownFormatVersion(
            f"has {about.name} format {found}, but this release only knows {' and '.join(map(str, known))}; "
            "nothing was changed",
            path=path,
            hint="upgrade Statekeeper",
        )


@cache
def _decoder(kind: Hashable) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, strict=True)
