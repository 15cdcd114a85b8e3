"""Completion of an attempt that a sink holds: whether this job may commit it, and what the other sinks get from it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from statekeeper.pipelines.batch.outputs import Computed, Outputs
from statekeeper.pipelines.sinks.data_files import DataFile
from statekeeper.pipelines.sinks.sink import Attempt
from statekeeper.pipelines.task.task_outputs import TaskOutputs
from statekeeper.statestore.base.errors import CorruptFile, SinkConflict
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.root.attempts import DEFAULT_OUTPUT
from statekeeper.statestore.root.state_root import Pending, StateRoot

Compute = Callable[[TaskOutputs], Computed]
"""Computes an attempt. The tasks put its outputs where `TaskOutputs` says."""


def complete(
    outputs: Outputs,
    root: StateRoot,
    attempt: Attempt,
    sources: tuple[str, ...],
    missing: Sequence[str],
    compute_again: Compute,
) -> tuple[Pending, tuple[str, ...]]:
    """Return the record of an attempt that a sink holds, when all sinks have it, and notes for the report.

    The sinks of `missing` get the data files of the attempt, or its rows if they are the same when computed again. The
    changelogs of this computation are dropped. Raises `SinkConflict`, `CorruptFile`.
    """
    pending = _record_of(root, attempt, sources, list(outputs.columns))
    if not missing:
        return pending, ()
    _require_columns(pending, outputs.columns, missing)
    recorded = {name: _recorded_files(pending, name) for name in missing}
    files = {name: of_output for name, of_output in recorded.items() if of_output is not None}
    again = [name for name in missing if name not in files]
    # All checks come before the first write.
    plans = {name: outputs.plan_recorded(name, of_output, attempt) for name, of_output in files.items()}
    with contextlib.ExitStack() as stack:
        if again:
            _require_repeatable(root, pending, again)
            computed = stack.enter_context(compute_again(outputs.plan_only(again)))
            _require_same_rows(pending, computed, again)
            # The first attempt checked these rows, but the job may now have another merge key.
            outputs.check_rows(again, computed, attempt.batch)
        for name, plan in plans.items():
            outputs.commit_recorded(name, plan, files[name], attempt)
        for name in again:
            outputs.write_one(name, computed, attempt)
    outputs.require_complete(attempt)
    names = ", ".join(missing)
    return pending, (
        f"batch {attempt.batch}: the sinks of {names} got attempt {attempt.attempt} of an interrupted run",
    )


def _record_of(root: StateRoot, attempt: Attempt, sources: tuple[str, ...], outputs: Sequence[str]) -> Pending:
    """Return the record of an attempt of this query, with these outputs. Raises `SinkConflict`."""
    batch, url = attempt.batch, root.storage.url
    pending = root.pending(batch, attempt.attempt)
    if pending is not None and pending.structure is not root.structure:
        # The root was switched between the sink's commit and its own. Or batch 0 ran with the other argument.
        held, mine = pending.structure, root.structure
        switch = "statekeeper switch ROOT --to {} --apply --confirm-stopped"
        first = "" if batch == 0 else f"stop the job and run: {switch.format(held.value)}. Then "
        raise SinkConflict(
            f"the sink contains batch {batch} from attempt {attempt.attempt}, which ran in structure {held.name}; the "
            "batch was not committed",
            path=url,
            hint=f"{first}start the job with structure {held.name} until it commits batch {batch}. To use structure "
            f"{mine.name}, then stop the job and run: {switch.format(mine.value)}",
        )
    expected = (root.binding.root_id, attempt.query_id, sources, root.schema())
    if pending is None or (pending.root_id, pending.query_id, pending.sources, pending.schema) != expected:
        problem = "the record of this attempt has another query id, other source offsets or another schema"
        problem = "this root has no record of this attempt" if pending is None else problem
        raise SinkConflict(
            f"the sink contains batch {batch} from attempt {attempt.attempt}, but {problem}; the batch was not committed",
            path=url,
            hint="restore table and state root to the same batch: the table with RESTORE in SQL, and the root with: "
            f"statekeeper rewind ROOT --to-batch {batch - 1} --apply --confirm-stopped"
            if batch > 0
            else "start over with a new checkpoint, a new root and an empty table",
        )
    recorded = sorted(pending.outputs) or [DEFAULT_OUTPUT]
    if recorded != sorted(outputs):
        raise SinkConflict(
            f"batch {batch} was interrupted in attempt {attempt.attempt}, whose outputs are {recorded}, but the job has "
            f"the outputs {sorted(outputs)}; the batch was not committed",
            path=url,
            hint=f"start the job with its former outputs until it commits batch {batch}",
        )
    return pending


def _require_columns(pending: Pending, columns: Mapping[str, pa.Schema], missing: Sequence[str]) -> None:
    """Raise `SinkConflict` if outputs that are to be completed have other columns than the attempt."""
    changed = [name for name in missing if pending.outputs[name].columns != spark_schema_json(columns[name])]
    if changed:
        raise SinkConflict(
            f"attempt {pending.attempt} of batch {pending.batch} has other columns in output {changed[0]!r}, whose sink "
            "does not contain the batch; the batch was not committed",
            hint=f"start the job with the former columns of this output until it commits batch {pending.batch}",
        )


def _recorded_files(pending: Pending, name: str) -> list[DataFile] | None:
    """Return the data files of an output of an attempt; None if its rows went through Spark. Raises `CorruptFile`."""
    files = pending.outputs[name].files
    try:
        return None if files is None else [DataFile.from_json(file) for file in files]
    except BAD_VALUES as error:
        raise CorruptFile(
            f"the record of attempt {pending.attempt} of batch {pending.batch} names invalid data files of output {name!r}",
            hint="restore the record from a backup",
        ) from error


def _require_repeatable(root: StateRoot, pending: Pending, names: Sequence[str]) -> None:
    """Raise `SinkConflict` in structure V1, where computing a batch again replaces the changelogs of its attempt."""
    if root.structure is Structure.V1:
        raise SinkConflict(
            f"a sink contains batch {pending.batch} from attempt {pending.attempt}, and the outputs {list(names)} must be "
            "computed again, which would replace its changelogs in structure V1; the batch was not committed",
            path=root.storage.url,
            hint=f"start the job once with NoSink for these outputs until it commits batch {pending.batch}",
        )


def _require_same_rows(pending: Pending, computed: Computed, names: Sequence[str]) -> None:
    """Raise `SinkConflict` if outputs that were computed again have other rows than the attempt."""
    for name in names:
        held, found = pending.outputs[name].rows, computed.digest(name)
        if held is None or held != found:
            raise SinkConflict(
                f"output {name!r} of batch {pending.batch} was computed again, and its rows are not those of attempt "
                f"{pending.attempt}, which another sink contains ({_rows(held)}, now {_rows(found)}); nothing was written",
                hint="the update function is not deterministic, or the job was changed. Start the job as it was. To "
                f"continue without the rows of this batch, start it once with NoSink for output {name!r} until it commits "
                f"batch {pending.batch}, then with DeltaSink(..., continue_at_batch={pending.batch + 1})",
            )


def _rows(digest: str | None) -> str:
    return (
        "unknown rows" if digest is None else f"{digest.partition(':')[0]} rows with digest {digest.partition(':')[2]}"
    )
