"""Plans and makes savepoints of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from statekeeper.statestore.base.errors import (
    AlreadyExists,
    DestinationNotEmpty,
    LocalDiskFull,
    RefusedAsUnsafe,
    StatekeeperError,
    VersionNotLoadable,
)
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.contents.quiet import require_stopped
from statekeeper.statestore.format import savepoint_names
from statekeeper.statestore.format.savepoint_names import is_label
from statekeeper.statestore.maintenance.copies import labels, savepoints
from statekeeper.statestore.maintenance.copies.clones import CopyFile
from statekeeper.statestore.maintenance.copies.clones import model as clone_record
from statekeeper.statestore.maintenance.copies.labels import Content, Label, Labels
from statekeeper.statestore.maintenance.copies.savepoints import RowsFacts, RowsPlan, Tables, removal
from statekeeper.statestore.maintenance.copies.savepoints.execute import begin
from statekeeper.statestore.maintenance.copies.savepoints.manifest import Summary, summary_of
from statekeeper.statestore.maintenance.copies.savepoints.record import StoreRows
from statekeeper.statestore.maintenance.copies.savepoints.removal import Removal
from statekeeper.statestore.maintenance.records import holds, lease
from statekeeper.statestore.maintenance.records.holds import Hold
from statekeeper.statestore.maintenance.verbs import clone, guards
from statekeeper.statestore.maintenance.verbs.clone import PreparedClone, is_settled
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.storage import Storage, open_storage
from statekeeper.statestore.store.engine.scratch import free_bytes


@dataclass(frozen=True)
class PreparedRows:
    """A plan of a savepoint with rows, its facts, and the reasons that block it."""

    gathered: RowsFacts
    plan: RowsPlan
    refusals: Refusals
    label: Label | None = None


def plan_rows(
    source: Storage,
    destination: Storage,
    by: Maintainer,
    *,
    policies: Policies | None = None,
    batch: int | None = None,
    tables: Tables = Tables.PARQUET,
    stopped: bool = False,
    label: str | None = None,
    note: str = "",
) -> PreparedRows:
    """Plan a savepoint of all rows of the source at a batch, with or without a label. Reads only.

    `policies`: of the source; None for the default ones. The default batch is that of an unfinished savepoint in the
    destination, else as for a clone: see `clone.plan`. Raises as `savepoints.gather`, and `RefusedAsUnsafe` if the query is
    not stopped.
    """
    _require_label(source, label, note)
    if stopped:
        require_stopped(source, confirmed=True, clock=by.clock, seconds=by.quiet_seconds)
    gathered = savepoints.gather(source, destination, batch=batch, stopped=stopped)
    planned = savepoints.plan(gathered, tables, run=by.ids.fresh(), now_ms=int(by.clock.now_seconds() * 1000))
    settled = is_settled(source, gathered.copied)
    mode = (policies or Policies()).mode_for(gathered.contents.origin)
    found = guards.refusals(
        settled,
        guards.half_switched(source),
        *planned.refusals,
        *(() if planned.is_complete else guards.copies(source, destination, mode, by.clock)),
    )
    if label is None:
        return PreparedRows(gathered, planned, found)
    wanted = Label(
        label=label,
        note=note,
        content=Content.ROWS,
        source=source.url,
        destination=destination.url,
        batch=planned.begun.batch,
        size_bytes=0,
        created_at_ms=int(by.clock.now_seconds() * 1000),
    )
    return PreparedRows(gathered, planned, (*found, *_unusable(source, wanted, labels.read(destination))), wanted)


def execute_rows(
    source: Storage,
    destination: Storage,
    prepared: PreparedRows,
    by: Maintainer,
    policies: Policies,
    *,
    scratch: Path,
    workers: int = WORKERS,
    wrote: Callable[[int], None] = lambda rows: None,
    finished: Callable[[StoreRows], None] = lambda store: None,
) -> Summary:
    """Make the savepoint. Call `wrote` with the number of rows of each piece, and `finished` after each store. A complete
    savepoint stays as it is.

    It has the lease of the destination and, unless the mode is `observe`, a hold of the batch in the source, so that
    retention keeps its files. Both are renewed by a timer. Nothing else is written into the source but the label. The plan
    is made again with the hold and the lease: another run may have completed the savepoint meanwhile. Raises the first
    refusal; `LocalDiskFull` if the disk of `scratch` or of the destination is too small; `RootHeld`, `HalfSwitched`; as
    `savepoints.execute`.
    """
    guards.require_none(prepared.refusals)
    mode = policies.mode_for(prepared.gathered.contents.origin)
    if prepared.plan.is_complete:
        made = summary_of(destination.read(savepoint_names.MANIFEST))
    else:
        rewrite_journal.require_none(source)
        _require_scratch(prepared.plan, destination, scratch, workers)
        begin(destination, prepared.plan)
        with _kept(source, destination, prepared, by, mode) as leased:
            made = _saved(source, leased, prepared.plan, by, scratch, workers, wrote, finished)
    if prepared.label is not None:
        record_label(source, destination, replace(prepared.label, size_bytes=made.bytes), mode)
    return made


def _saved(
    source: Storage,
    destination: Storage,
    confirmed: RowsPlan,
    by: Maintainer,
    scratch: Path,
    workers: int,
    wrote: Callable[[int], None],
    finished: Callable[[StoreRows], None],
) -> Summary:
    begun = confirmed.begun
    gathered = savepoints.gather(source, destination, batch=begun.batch, stopped=True)
    planned = savepoints.plan(gathered, Tables(begun.tables), run=begun.run, now_ms=begun.begun_at_ms)
    guards.require_none(planned.refusals)
    if planned.is_complete:
        return summary_of(destination.read(savepoint_names.MANIFEST))
    return savepoints.execute(
        gathered,
        destination,
        planned,
        scratch=scratch,
        clock=by.clock,
        ids=by.ids,
        workers=workers,
        wrote=wrote,
        finished=finished,
    )


@contextmanager
def _kept(
    source: Storage, destination: Storage, prepared: PreparedRows, by: Maintainer, mode: Mode
) -> Iterator[Storage]:
    """Have the lease of the destination, and hold the batch in the source unless its mode is `observe`. Yields the
    destination for the work under the lease."""
    run, batch = by.ids.fresh(), prepared.plan.begun.batch
    unheld = "Spark deletes old state files itself" if prepared.gathered.contents.origin is Origin.NATIVE else ""
    if mode is Mode.OBSERVE:
        unheld = "mode observe allows no hold in the source"
    with ExitStack() as stack:
        held = stack.enter_context(
            lease.held(
                destination, "savepoint", run=run, holder=by.holder, clock=by.clock, beat_seconds=by.beat_seconds
            )
        )
        if mode is not Mode.OBSERVE:
            hold = Hold(batch=batch, holder=by.holder, verb="savepoint")
            stack.enter_context(holds.held(source, hold, run=run, clock=by.clock, renew_seconds=by.beat_seconds))
        try:
            yield held.storage
        except VersionNotLoadable as error:
            if not unheld:
                raise
            raise VersionNotLoadable(
                f"{error.what}; this run could not prevent the deletion of files in the source, because {unheld}",
                path=error.path,
                hint=f"first save the files: statekeeper savepoint {source.url} FILES --label LABEL. Then save the rows of "
                "this copy: statekeeper savepoint FILES ROWS --rows. FILES and ROWS are two empty locations",
            ) from error


def _require_scratch(planned: RowsPlan, destination: Storage, scratch: Path, workers: int) -> None:
    needed, free = planned.scratch_bytes(workers), free_bytes(scratch)
    tables = ""
    if destination.location.service == open_storage(str(scratch)).location.service:
        needed += planned.table_bytes
        tables = " and the tables on the same disk"
    if needed > free:
        raise LocalDiskFull(
            f"has {free:,} bytes of free space, but {workers:,} workers{tables} need {needed:,}; nothing was written",
            path=str(scratch),
            hint="choose another folder with --scratch, or fewer --workers",
        )


# -- savepoints with files ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreparedFiles:
    """A plan of a savepoint with the files of the checkpoint: a clone with a label."""

    clone: PreparedClone
    label: Label
    refusals: Refusals


def plan_files(
    source: Storage,
    destination: Storage,
    policies: Policies,
    by: Maintainer,
    *,
    label: str,
    note: str = "",
    batch: int | None = None,
    stopped: bool = False,
    location: str | None = None,
) -> PreparedFiles:
    """Plan a savepoint with the files of the source at a batch. Reads only. The options are those of `clone.plan`.

    The default batch is that of an unfinished savepoint in the destination, else as for a clone. Raises as `clone.plan`
    and `labels.read`; `RefusedAsUnsafe` for a text that cannot be a label.
    """
    _require_label(source, label, note)
    earlier = labels.read(destination)
    if batch is None:
        batch = _begun_batch(source, destination, earlier)
    command = f"savepoint --label {label}"
    prepared = clone.plan(
        source, destination, policies, by, batch=batch, stopped=stopped, location=location, command=command
    )
    wanted = Label(
        label=label,
        note=note,
        content=Content.FILES,
        source=source.url,
        destination=destination.url,
        batch=prepared.plan.record.batch,
        size_bytes=prepared.plan.size_bytes(),
        created_at_ms=int(by.clock.now_seconds() * 1000),
    )
    return PreparedFiles(prepared, wanted, (*_unusable(source, wanted, earlier), *prepared.refusals))


def execute_files(
    source: Storage,
    destination: Storage,
    prepared: PreparedFiles,
    by: Maintainer,
    *,
    scratch: Path,
    copied: Callable[[CopyFile], None] = lambda file: None,
) -> bool:
    """Make the clone, then write its label; call `copied` after each file. Return whether the source lists the savepoint.

    In mode `observe`, nothing is written into the source, so that only the destination has the label. Raises the first
    refusal; as `clone.execute`.
    """
    guards.require_none(prepared.refusals)
    clone.execute(source, destination, prepared.clone, by, scratch=scratch, copied=copied)
    return record_label(source, destination, prepared.label, prepared.clone.mode)


# -- labels ------------------------------------------------------------------------------------------------------------


def record_label(source: Storage, destination: Storage, label: Label, mode: Mode) -> bool:
    """Write the label of a complete savepoint into it and, unless the mode is `observe`, into its source.

    Return whether the source has it. Raises `RefusedAsUnsafe` if another process has used the label meanwhile,
    `DestinationNotEmpty` if the savepoint has another label.
    """
    found = labels.read(destination)
    if found is None:
        found = label
        try:
            destination.create(savepoint_names.LABEL, label.encoded())
        except AlreadyExists as error:
            raise _is_another(label, labels.read(destination) or label) from error
    elif not found.is_same(label):
        raise _is_another(label, found)
    if mode is Mode.OBSERVE:
        return False
    try:
        source.create(savepoint_names.label(found.label), found.encoded())
    except AlreadyExists as error:
        recorded = labels.read_in_source(source, found.label)
        if recorded is None or not recorded.is_same(found):
            raise _taken(source, found) from error
    return True


def _require_label(source: Storage, label: str | None, note: str) -> None:
    """Require the form of a label, and no note without one. The label becomes part of a path. Raises `RefusedAsUnsafe`."""
    problem = None
    if label is None and note:
        problem = "a note needs a label"
    elif label is not None and not is_label(label):
        problem = f"{label[:100]!r} is not a label"
    if problem is not None:
        raise RefusedAsUnsafe(
            f"{problem}; nothing was written",
            path=source.url,
            hint='give a label of up to 100 letters, digits, ".", "_" and "-", a letter or digit first',
        )


def _begun_batch(source: Storage, destination: Storage, earlier: Label | None) -> int | None:
    """Return the batch of an earlier run in the destination. An interrupted one has only the record of its clone."""
    cloned = clone_record.read(destination)
    return next((made.batch for made in (earlier, cloned) if made is not None and made.source == source.url), None)


def _unusable(source: Storage, wanted: Label, in_destination: Label | None) -> Iterator[StatekeeperError]:
    if in_destination is not None and not in_destination.is_same(wanted):
        yield _is_another(wanted, in_destination)
    recorded = labels.read_in_source(source, wanted.label)
    if recorded is not None and (recorded.deleting or not recorded.is_same(wanted)):
        yield _taken(source, recorded)


def _is_another(wanted: Label, found: Label) -> DestinationNotEmpty:
    return DestinationNotEmpty(
        f"is the savepoint {found.label} of {found.source} at batch {found.batch}; the label {wanted.label} was not "
        "written",
        path=wanted.destination,
        hint="choose an empty destination",
    )


def _taken(source: Storage, label: Label) -> RefusedAsUnsafe:
    return RefusedAsUnsafe(
        f"the label {label.label!r} is already used by the savepoint of batch {label.batch} at {label.destination}; "
        "nothing was written",
        path=source.url,
        hint=f"choose another label, or delete that savepoint: statekeeper savepoint {source.url} --delete {label.label} "
        "--apply",
    )


def listed(storage: Storage) -> Labels:
    """List the savepoints that the source records, and the location itself if it is one. Raises as `labels.listed`."""
    return labels.listed(storage)


def find(storage: Storage, label: str) -> Label:
    """Find a savepoint by its label, recorded in the source or in the savepoint. Raises `RefusedAsUnsafe` if there is none;
    `CorruptFile`, `StorageError`."""
    found = _recorded(storage, label) or _own(storage, label)
    if found is None:
        raise RefusedAsUnsafe(
            f"no savepoint has the label {label}",
            path=storage.url,
            hint="to list the savepoints, run: statekeeper savepoint ROOT --list",
        )
    return found


def is_itself(storage: Storage, label: str) -> bool:
    """Return whether `find` finds the location itself. Raises `CorruptFile`, `StorageError`."""
    return _recorded(storage, label) is None and _own(storage, label) is not None


def _recorded(storage: Storage, label: str) -> Label | None:
    return labels.read_in_source(storage, label) if is_label(label) else None


def _own(storage: Storage, label: str) -> Label | None:
    own = labels.read(storage)
    return own if own is not None and own.label == label else None


def plan_removal(
    source: Storage, destination: Storage, label: Label, policies: Policies, by: Maintainer, *, forget: bool = False
) -> Removal:
    """Plan the deletion of a savepoint at its destination. Reads only. `forget` and errors: as `removal.plan`."""
    planned = removal.plan(label, destination, clock=by.clock, forget=forget)
    if labels.read_in_source(source, label.label) is None or policies.mode_for(origin_of(source)) is not Mode.OBSERVE:
        return planned
    blocked = RefusedAsUnsafe(
        "the mode of this root is observe, which allows no change of its list of savepoints; nothing was deleted",
        path=source.url,
        hint="to allow the change, add --mode snapshots",
    )
    return replace(planned, refusals=(blocked, *planned.refusals))


def execute_removal(source: Storage, destination: Storage, planned: Removal) -> None:
    """Delete a savepoint. Raises as `removal.execute`."""
    removal.execute(source, destination, planned)
