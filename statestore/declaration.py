"""Comparison of the declaration of a job with the binding of its root: the initial rows and the inputs."""

from __future__ import annotations

from statestore.errors import SchemaMismatch, WrongInitial
from statestore.format import names
from statestore.storage import Storage


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
