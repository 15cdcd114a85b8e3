"""Plans and makes savepoints of checkpoints, and deletes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.errors import (
    AlreadyExists,
    DestinationNotEmpty,
    LocalDiskFull,
    RefusedAsUnsafe,
    StatekeeperError,
    VersionNotLoadable,
)
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
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
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.clone import Clone, Copy, PlannedClone, is_settled, report_of_clone
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Unleased, Work
from statekeeper.statestore.maintenance.verbs.guards import Refusals
from statekeeper.statestore.maintenance.verbs.options import BATCH_DEFAULT, LOCATION, option
from statekeeper.statestore.maintenance.verbs.report import Figure, Report, Table, as_objects, decimal, when
from statekeeper.statestore.storage import Storage, open_storage
from statekeeper.statestore.store.engine.scratch import free_bytes

DESTINATION = "The empty location to write to: a URL, a path, or a name in statekeeper.toml."
LABEL = "Name of the savepoint in the list of ROOT. Required without --rows; optional with --rows."
NOTE = "A note for the list. Requires --label."
BATCH = (
    f"The batch whose state to keep. {BATCH_DEFAULT} If a run with --rows into DESTINATION was interrupted, the default is "
    "the batch of that run."
)


@dataclass(frozen=True, kw_only=True)
class PlannedRows:
    """A plan of a savepoint with rows, its facts, and its label. `refusals`: the reasons of the plan itself."""

    mode: Mode
    destination: Storage
    gathered: RowsFacts
    plan: RowsPlan
    label: Label | None
    refusals: Refusals

    @property
    def oldest(self) -> int:
        return self.plan.begun.batch

    @property
    def is_complete(self) -> bool:
        return self.plan.is_complete


Wrote: TypeAlias = int | StoreRows
"""A step of a savepoint with rows: the number of rows of a piece, or a finished store."""


@dataclass(frozen=True, kw_only=True)
class SaveRows(Copy[PlannedRows, Wrote, Summary]):
    """Save all rows of the root at a batch, with or without a label. A complete savepoint stays as it is.

    The default batch is that of an unfinished savepoint in the destination, else as for a clone. Nothing but the hold and
    the label is written into the source.
    """

    name = "savepoint"
    destination: str = option(DESTINATION, flag="")
    batch: int | None = option(BATCH, default=None, least=0)
    tables: Tables = option(
        "Format of the tables. Used only with --rows. Delta tables are Parquet files with a Delta transaction log.",
        default=Tables.PARQUET,
        flag="--format",
        choices={one.value: one for one in Tables},
    )
    label: str | None = option(LABEL, default=None, metavar="LABEL")
    note: str = option(NOTE, default="", metavar="TEXT")

    def plan(self, run: Run) -> PlannedRows:
        """Raises as `savepoints.gather`; `RefusedAsUnsafe` if the query is not stopped, and for a text that cannot be a
        label."""
        source, clock = run.storage, run.clock
        _require_label(source, self.label, self.note)
        if run.stopped:
            run.require_stopped(confirmed=True)
        destination = run.open_other(self.destination)
        gathered = savepoints.gather(source, destination, batch=self.batch, stopped=run.stopped)
        now_ms = int(clock.now_seconds() * 1000)
        planned = savepoints.plan(gathered, self.tables, run=run.by.ids.fresh(), now_ms=now_ms)
        wanted: Label | None = None
        unusable: Refusals = ()
        if self.label is not None:
            wanted = Label(
                label=self.label,
                note=self.note,
                content=Content.ROWS,
                source=source.url,
                destination=destination.url,
                batch=planned.begun.batch,
                size_bytes=0,
                created_at_ms=now_ms,
            )
            unusable = tuple(_unusable(source, wanted, labels.read(destination)))
        return PlannedRows(
            mode=run.policies.mode_for(gathered.contents.origin),
            destination=destination,
            gathered=gathered,
            plan=planned,
            label=wanted,
            refusals=guards.refusals(is_settled(source, gathered.copied), *planned.refusals, *unusable),
        )

    def refusals(self, run: Run, plan: PlannedRows) -> Iterable[StatekeeperError]:
        return plan.refusals

    def begin(self, run: Run, plan: PlannedRows) -> None:
        begin(plan.destination, plan.plan)

    @contextmanager
    def work(self, run: Run, plan: PlannedRows, told: Callable[[Wrote], None]) -> Iterator[Work[Wrote]]:
        if not plan.is_complete:
            _require_scratch(run, plan)
        try:
            with super().work(run, plan, told) as work:
                yield work
        except VersionNotLoadable as error:
            unheld = "Spark deletes old state files itself" if plan.gathered.contents.origin is Origin.NATIVE else ""
            if plan.mode is Mode.OBSERVE:
                unheld = "mode observe allows no hold in the source"
            if not unheld:
                raise
            raise VersionNotLoadable(
                f"{error.what}; this run could not prevent the deletion of files in the source, because {unheld}",
                path=error.path,
                hint=f"first save the files: statekeeper savepoint {run.storage.url} FILES --label LABEL. Then save the "
                "rows of this copy: statekeeper savepoint FILES ROWS --rows. FILES and ROWS are two empty locations",
            ) from error

    def execute(self, run: Run, plan: PlannedRows, work: Work[Wrote]) -> Summary:
        """Write the tables, then the label.

        The plan is made again with the hold and the lease: another run may have completed the savepoint meanwhile. Raises
        as `savepoints.execute`; `LocalDiskFull` if the disk of `run.scratch` or of the destination is too small.
        """
        begun = plan.plan.begun
        planned = plan.plan
        if not planned.is_complete:
            gathered = savepoints.gather(run.storage, work.storage, batch=begun.batch, stopped=True)
            planned = savepoints.plan(gathered, Tables(begun.tables), run=begun.run, now_ms=begun.begun_at_ms)
            guards.require_none(planned.refusals)
        if planned.is_complete:
            made = summary_of(work.storage.read(savepoint_names.MANIFEST))
        else:
            made = savepoints.execute(
                gathered,
                work.storage,
                planned,
                executor=run.executor,
                scratch=run.scratch,
                wrote=work.tell,
                finished=work.tell,
            )
        if plan.label is not None:
            record_label(run.storage, plan.destination, replace(plan.label, size_bytes=made.bytes), plan.mode)
        return made

    def report(self, prepared: Prepared[PlannedRows, Wrote, Summary]) -> Report:
        """Report the tables of a plan, or the rows that were written."""
        plan, made, run = prepared.plan.plan, prepared.made, prepared.run
        kinds = [(one.folder, one.operator_name, "bytes" if one.rows is None else "typed") for one in plan.all_tables()]
        record: Json = {
            "batch": plan.begun.batch,
            "newest_batch": plan.newest,
            "structure": plan.structure.value,
            "format": plan.begun.tables,
            "complete": plan.is_complete,
            "stores": len(plan.stores),
            "finished_stores": len(plan.finished),
            "bytes_read": plan.read_bytes,
            "refusals": as_objects(prepared.refusals),
            "tables": [{"path": folder, "operator": name, "typed": kind == "typed"} for folder, name, kind in kinds],
        }
        figures: dict[str, Figure] = {
            "batch": plan.begun.batch,
            "newest_batch": plan.newest,
            "stores": len(plan.stores),
            "finished_stores": len(plan.finished),
            "bytes_read": plan.read_bytes,
        }
        facts: dict[str, Figure] = {"destination": prepared.plan.destination.url, "format": plan.begun.tables}
        lines: list[str] = []
        done: list[str] = []
        if made is None:
            needed, free = plan.scratch_bytes(run.workers_here), free_bytes(run.scratch)
            record |= {"table_bytes": plan.table_bytes, "scratch_bytes": needed, "scratch_free_bytes": free}
            of_scratch = f"needs up to {decimal(needed)} of local disk in {run.scratch}, which has {decimal(free)} free"
            if run.cluster is not None:
                of_scratch = f"each task on the cluster needs up to {decimal(plan.scratch_bytes(1))} of local disk"
            lines = [
                of_scratch,
                f"needs about {decimal(plan.table_bytes)} in the destination, usually less",
            ]
            if plan.is_complete:
                lines.append("the savepoint is complete: nothing to do")
        else:
            figures |= {"rows": made.rows, "bytes": made.bytes}
            untyped = ", ".join(f"{path}: {problem}" for path, problem in made.untyped.items())
            facts |= {"digest": made.digest, "untyped": untyped or "none"}
            record |= {
                "rows": made.rows,
                "bytes": made.bytes,
                "digest": made.digest,
                "untyped": [{"path": path, "problem": problem} for path, problem in made.untyped.items()],
                "saved": True,
                "seconds": round(prepared.seconds, 3),
            }
            done = [f"{path} has bytes instead of typed columns: {problem}" for path, problem in made.untyped.items()]
            done.append(
                f"saved {when(plan.begun.batch)} to {prepared.plan.destination.url}: {made.rows:,} rows in "
                f"{made.tables:,} tables, {decimal(made.bytes)} in {prepared.seconds:,.1f} s"
            )
        stores = f"{len(plan.stores):,} stores, {decimal(plan.read_bytes)} to read"
        title = f"{when(plan.begun.batch)} of {plan.newest:,}: {stores}"
        return Report(
            record=record,
            phase="refused"
            if prepared.refusals
            else "saved"
            if prepared.is_done
            else "complete"
            if plan.is_complete
            else "planned",
            facts=facts,
            figures=figures,
            tables=(Table("tables", title, ("table", "operator", "rows"), kinds),),
            lines=tuple(lines),
            done=tuple(done),
        )


def _require_scratch(run: Run, plan: PlannedRows) -> None:
    needed, free = plan.plan.scratch_bytes(run.workers_here), free_bytes(run.scratch)
    tables = ""
    if plan.destination.location.service == open_storage(str(run.scratch)).location.service:
        needed += plan.plan.table_bytes
        tables = " and the tables on the same disk"
    if needed > free:
        raise LocalDiskFull(
            f"has {free:,} bytes of free space, but {run.workers:,} workers{tables} need {needed:,}; nothing was written",
            path=str(run.scratch),
            hint="choose another folder with --scratch, or fewer --workers",
        )


# -- savepoints with files ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlannedFiles(PlannedClone):
    """A plan of a savepoint with the files of the checkpoint: a clone with a label."""

    label: Label
    unusable: Refusals


@dataclass(frozen=True, kw_only=True)
class SaveFiles(Copy[PlannedFiles, CopyFile, bool]):
    """Save the files of the root at a batch: a clone with a label. The options are those of a clone.

    The default batch is that of an unfinished savepoint in the destination, else as for a clone. The result is whether the
    source lists the savepoint: in mode `observe`, only the destination has the label.
    """

    name = "clone"
    destination: str = option(DESTINATION, flag="")
    label: str = option(LABEL, metavar="LABEL")
    note: str = option(NOTE, default="", metavar="TEXT")
    batch: int | None = option(BATCH, default=None, least=0)
    location: str | None = option(**LOCATION)

    @property
    def _clone(self) -> Clone:
        return Clone(
            destination=self.destination,
            batch=self.batch,
            location=self.location,
            command=f"savepoint --label {self.label}",
        )

    def plan(self, run: Run) -> PlannedFiles:
        """Raises as `Clone.plan` and `labels.read`; `RefusedAsUnsafe` for a text that cannot be a label."""
        source = run.storage
        _require_label(source, self.label, self.note)
        destination = run.open_other(self.destination)
        earlier = labels.read(destination)
        batch = _begun_batch(source, destination, earlier) if self.batch is None else self.batch
        planned = replace(self._clone, batch=batch).plan(run)
        wanted = Label(
            label=self.label,
            note=self.note,
            content=Content.FILES,
            source=source.url,
            destination=destination.url,
            batch=planned.plan.record.batch,
            size_bytes=planned.plan.size_bytes(),
            created_at_ms=int(run.clock.now_seconds() * 1000),
        )
        return PlannedFiles(**vars(planned), label=wanted, unusable=tuple(_unusable(source, wanted, earlier)))

    def refusals(self, run: Run, plan: PlannedFiles) -> Iterable[StatekeeperError]:
        return (*plan.unusable, *self._clone.refusals(run, plan))

    def begin(self, run: Run, plan: PlannedFiles) -> None:
        self._clone.begin(run, plan)

    def execute(self, run: Run, plan: PlannedFiles, work: Work[CopyFile]) -> bool:
        """Make the clone, then write its label. Raises as `Clone.execute`."""
        self._clone.execute(run, plan, work)
        return record_label(run.storage, plan.destination, plan.label, plan.mode)

    def report(self, prepared: Prepared[PlannedFiles, CopyFile, bool]) -> Report:
        found, plan, label = report_of_clone(prepared), prepared.plan.plan, prepared.plan.label
        where = "" if prepared.made else "; the source does not list it, because its mode is observe"
        done = (
            f"saved {when(plan.record.batch)} as {label.label} to {label.destination}: {decimal(plan.size_bytes())} in "
            f"{prepared.seconds:,.1f} s{where}"
        )
        named: Json = {"label": label.label, "note": label.note}
        made = {"saved": True, "listed": prepared.made, "seconds": round(prepared.seconds, 3)}
        if not prepared.is_done:
            return replace(found, record={**found.record, **named}, facts={**found.facts, **named})
        return replace(
            found,
            record={**found.record, **named, **made},
            phase="saved",
            facts={**found.facts, **named, "listed": bool(prepared.made)},
            done=(done,),
        )


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


@dataclass(frozen=True)
class PlannedRemoval:
    """The plan to delete the savepoint at `destination`, which may be the location itself."""

    destination: Storage
    plan: Removal


@dataclass(frozen=True, kw_only=True)
class Remove(Unleased[PlannedRemoval, None, None]):
    """Delete the savepoint with this label, or only remove it from the list of its source.

    It depends on no other maintainer: no other verb changes a complete savepoint, and the list has one file for each.
    """

    name = "savepoint"
    savepoint: str = option(
        "Show the files of this savepoint; with --apply, delete them.", flag="--delete", metavar="LABEL"
    )
    forget: bool = option(
        "With --delete: only remove the savepoint from the list of ROOT. Use it if its files no longer exist.",
        default=False,
    )

    def plan(self, run: Run) -> PlannedRemoval:
        """Raises as `find` and `removal.plan`."""
        label = find(run.storage, self.savepoint)
        destination = run.storage if is_itself(run.storage, label.label) else run.open_other(label.destination)
        return PlannedRemoval(destination, removal.plan(label, destination, clock=run.clock, forget=self.forget))

    def refusals(self, run: Run, plan: PlannedRemoval) -> Iterable[StatekeeperError]:
        return plan.plan.refusals

    def allowed(self, run: Run, plan: PlannedRemoval) -> StatekeeperError | None:
        is_listed = labels.read_in_source(run.storage, plan.plan.label.label) is not None
        if not is_listed or run.policies.mode_for(origin_of(run.storage)) is not Mode.OBSERVE:
            return None
        return RefusedAsUnsafe(
            "the mode of this root is observe, which allows no change of its list of savepoints; nothing was deleted",
            path=run.storage.url,
            hint="to allow the change, add --mode snapshots",
        )

    def no_rewrite_begun(self, run: Run) -> StatekeeperError | None:
        return None

    def execute(self, run: Run, plan: PlannedRemoval, work: Work[None]) -> None:
        """Raises as `removal.execute`."""
        removal.execute(work.storage, plan.destination, plan.plan)

    def report(self, prepared: Prepared[PlannedRemoval, None, None]) -> Report:
        """Report the files of the savepoint, and the number of other files in its location."""
        plan, url = prepared.plan.plan, prepared.plan.destination.url
        files = f"{counted(len(plan.files), 'file')} of {plan.label.label} at {url}, {decimal(plan.size_bytes)}"
        others = (f"{plan.others:,} other files stay",) if plan.others else ()
        return Report(
            record={
                **of_label(plan.label),
                "files": len(plan.files),
                "bytes": plan.size_bytes,
                "other_files": plan.others,
                "refusals": as_objects(prepared.refusals),
                "deleted": prepared.is_done,
            },
            phase=prepared.phase("deleted"),
            facts={"label": plan.label.label, "destination": url},
            figures={"files": len(plan.files), "bytes": plan.size_bytes, "other_files": plan.others},
            lines=(*others, f"due for deletion: {files}"),
            done=(*others, f"deleted {files}"),
        )


def of_label(label: Label) -> Json:
    """Encode a label for a JSON object."""
    return {
        "label": label.label,
        "note": label.note,
        "content": label.content.value,
        "source": label.source,
        "destination": label.destination,
        "batch": label.batch,
        "size_bytes": label.size_bytes,
        "created_at": utc(label.created_at_ms / 1000),
        "deleting": label.deleting,
    }
