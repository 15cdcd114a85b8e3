"""Comparison of the declaration of a job with the binding of its root: stores, keys, initial rows, inputs, ticks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from statekeeper.statestore.base.errors import RESTORE, CorruptFile, SchemaMismatch, WrongInitial
from statekeeper.statestore.format import names
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json
from statekeeper.statestore.root.columns import (
    NO_MAPPING,
    ColumnChange,
    ColumnMapping,
    OlderSchemas,
    StoreSchema,
    change_of,
    column_text,
)
from statekeeper.statestore.storage import Storage


def require_same_start(storage: Storage, *, held: bool, wanted: bool, batch: int) -> None:
    """Verify that the job has initial rows if batch 0 needs them, and that this root has applied them otherwise.

    The binding is created once. So all attempts at batch 0 start from initial rows, or none does. Raises `WrongInitial`.
    """
    if wanted and not held:
        raise WrongInitial(
            "the state root was created without initial rows, so those of the job would be missing in the state; the query "
            "was not started",
            path=storage.url,
            hint="remove `initial` to continue with the state of this root, or start with a new root and a new checkpoint",
        )
    if held and not wanted and batch <= 0 and storage.stat(names.commits(0)) is None:
        raise WrongInitial(
            "the state root starts from initial rows, and batch 0 is not committed, but the job has no `initial`; the "
            "query was not started",
            path=storage.url,
            hint="start the job with the same `initial` as before. You can remove it after batch 0 is committed",
        )


def require_same_inputs(url: str, *, held: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """Verify that the offsets in the checkpoint, which are by position, belong to the same inputs. Otherwise an input reads
    from the offset of another one, and rows are lost (OffsetSeq.toStreamProgress). Raises `SchemaMismatch`."""
    if held != wanted:
        has, declares = (f"the inputs {list(of)}" if of else "one input without a name" for of in (held, wanted))
        raise SchemaMismatch(
            f"the root has {has}, but the job declares {declares}; the batch was not started",
            path=url,
            hint="declare the inputs of the root. For other inputs, start with a new root and a new checkpoint",
        )


def require_same_ticks(url: str, *, held: bool, wanted: bool) -> None:
    """Verify that the query has the sources of its offsets: ticks are one of them. Spark would otherwise stop with an
    assertion. Raises `SchemaMismatch`."""
    if held != wanted:
        has, declares = ("with `tick`", "has none") if held else ("without `tick`", "has one")
        raise SchemaMismatch(
            f"the root was created by a job {has}, but the job {declares}; the job cannot start with this root",
            path=url,
            hint="ticks are a source of the query, which cannot be added or removed. Any duration continues a job with "
            "`tick`. To add or remove it, start with a new root and a new checkpoint",
        )


def column_changes(
    url: str,
    held: tuple[StoreSchema, ...],
    declared: tuple[StoreSchema, ...],
    mappings: Mapping[str, ColumnMapping],
    older: OlderSchemas,
) -> Iterator[ColumnChange]:
    """Yield the changes of value columns that a job declares.

    older    the schemas that the root had before

    Raises `SchemaMismatch` for other stores, other keys, the columns of former code, and as `change_of`.
    """
    if [store.name for store in held] != [store.name for store in declared]:
        raise SchemaMismatch(
            f"the root has the stores {[s.name for s in held]}, but the job declares {[s.name for s in declared]}; the "
            f"job cannot start with this root",
            path=url,
            hint="declare the stores of the root in the same order. For other stores, start with a new root and a new "
            "checkpoint",
        )
    for mine, theirs in zip(held, declared, strict=True):
        former = max(
            (batch for batch, values in older.items() if values.get(mine.name) == theirs.value_json), default=None
        )
        try:
            _require_same_key(url, mine, theirs)
            change = change_of(mine.name, mine.value_json, theirs.value_json, mappings.get(mine.name, NO_MAPPING), url)
        except BAD_VALUES as error:
            raise CorruptFile(
                f"a schema of store {mine.name!r} cannot be parsed; the root cannot be opened",
                path=names.BINDING,
                hint=RESTORE,
            ) from error
        except SchemaMismatch as error:
            if former is None:
                raise
            raise _former_code(url, mine.name, former) from error
        if change is not None:
            if former is not None and change.adds:
                # It would add a dropped column again, with nulls.
                raise _former_code(url, mine.name, former)
            yield change


def _former_code(url: str, store: str, batch: int) -> SchemaMismatch:
    back = f" To return to the former columns, stop the job and rewind it to batch {batch - 1}" if batch else ""
    return SchemaMismatch(
        f"store {store!r}: the job declares the columns that the root had before batch {batch}, which changed them; the "
        "job cannot start with this root, and the state is unchanged",
        path=url,
        hint=f"this is the code from before the change. Deploy the code with the new columns.{back}. To change the columns "
        "of the present state, run: statekeeper evolve ROOT --schema FILE",
    )


def _require_same_key(url: str, held: StoreSchema, declared: StoreSchema) -> None:
    """Raise `SchemaMismatch` with the first difference of the key columns."""
    mine, theirs = (parsed_json(store.key_json)["fields"] for store in (held, declared))
    for place, (has, declares) in enumerate(zip_longest(mine, theirs)):
        if has is None or declares is None or any(has[part] != declares[part] for part in ("name", "type", "nullable")):
            raise SchemaMismatch(
                f"store {held.name!r}, key column {place}: the root has {_column(has)}, but the job declares "
                f"{_column(declares)}; the job cannot start with this root",
                path=url,
                hint="declare the key columns of the root. For other keys, start with a new root and a new checkpoint",
            )


def _column(column: dict[str, Any] | None) -> str:
    return "none" if column is None else column_text(column)
