"""The steps of a migration. All of them write into the destination, which has the journal; the old checkpoint is only read.

the journal of the destination
metadata                         no JSON: no release of Spark starts before the end
state/<operator>/<partition>/    the new snapshots, read back and compared
schemas and metadata of the operators, sources/, the binding of a job root, offsets/N-1, offsets/N
commits/N                        names the new snapshots
                                 (the audit)
metadata                         the query id: a query can start
"""

from __future__ import annotations

from dataclasses import replace

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.base.errors import AlreadyExists, RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.rewrite_journal import Begun
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.maintenance.rewrites.engine.commit import new_commit, require_snapshots
from statekeeper.statestore.maintenance.rewrites.engine.model import Machine, RewritePhase
from statekeeper.statestore.maintenance.rewrites.engine.steps import RewriteSteps, Rewriting
from statekeeper.statestore.maintenance.rewrites.migration.model import MigrationPlan, NewFile
from statekeeper.statestore.maintenance.rewrites.whole_stores.load import RowProgress
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import new_versions
from statekeeper.statestore.maintenance.rewrites.whole_stores.rebuild import rebuild
from statekeeper.statestore.root.binding import encode_binding
from statekeeper.statestore.storage import Storage, at_once, read_or_none
from statekeeper.statestore.store.engine.scratch import work_folder

_WRITTEN = (names.COMMITS, names.OFFSETS, names.SOURCES, names.BINDING, names.STATE)
"""What a migration writes into its destination besides `metadata`, in the order in which its rollback deletes it."""


class MigrationSteps(RewriteSteps[MigrationPlan]):
    """The steps of a migration.

    *Guarantee*: writes and deletes only in the destination, which was empty before. No query starts there before its audit
    was clean. A job does not start either, because the journal is open.
    """

    def is_as_planned(self, storage: Storage, planned: MigrationPlan) -> bool:
        return catalog.newest_batch(storage) is None and _is_unchanged(planned)

    def begin(self, storage: Storage, planned: MigrationPlan, *, number: int, run: str, ids: Ids) -> Begun:
        assert planned.batch is not None
        return Begun(
            number=number,
            run=run,
            to=planned.structure,
            batch=planned.batch,
            header=planned.header,
            commit=planned.commit,
            stores=new_versions(planned, ids.fresh),
            rewrite=planned.rewrite,
            partitions=planned.partitions,
            provider=planned.provider,
            options=planned.goal.options,
            rows=planned.digest,
        )

    def prepare(self, work: Rewriting, planned: MigrationPlan) -> None:
        storage, begun = work.storage, work.begun
        if self.is_committed(storage, begun):
            return  # the query may run already
        require_ours(storage, begun)
        storage.create(names.QUERY_METADATA, logs.UNFINISHED)

    def make_snapshots(self, work: Rewriting, planned: MigrationPlan, machine: Machine) -> None:
        if self.is_committed(work.storage, work.begun):
            return
        for group in planned.groups:
            if not work.made.keys() >= set(group.targets):
                work.still_held()
                rebuild(work, planned, group, machine, RowProgress(work.progress, RewritePhase.READ, 0))

    def commit(self, work: Rewriting, planned: MigrationPlan, machine: Machine) -> RewritePhase:
        storage, begun = work.storage, work.begun
        if self.is_committed(storage, begun):
            return RewritePhase.MIGRATED
        if not _is_unchanged(planned):
            raise RefusedAsUnsafe(
                "the query of the old checkpoint has run since the plan was made, so the migrated state is old; the "
                "destination is not a checkpoint",
                path=planned.goal.old,
                hint=f"stop the query. To remove what was written, run: {begun.reversing}; then run this command again",
            )
        require_ours(storage, begun)
        require_snapshots(storage, begun)
        files = [*planned.files]
        if planned.binding is not None:
            bound = replace(planned.binding, root_id=begun.run)
            files.insert(0, NewFile(path=names.BINDING, body=encode_binding(bound)))
        before_logs = [one for one in files if not one.path.startswith(f"{names.OFFSETS}/")]
        at_once(lambda one: _write(storage, planned, one, machine), before_logs)
        for one in files:
            if one not in before_logs:
                _write(storage, planned, one, machine)
        work.still_held()
        storage.create(names.commits(begun.batch), new_commit(begun))
        return RewritePhase.MIGRATED

    def clean_up(self, work: Rewriting, planned: MigrationPlan) -> None:
        """Do nothing: `release` allows the start of the query, after the audit."""

    def release(self, work: Rewriting, planned: MigrationPlan) -> None:
        storage = work.storage
        if read_or_none(storage, names.QUERY_METADATA) in (None, logs.UNFINISHED):
            storage.replace(names.QUERY_METADATA, logs.encode_metadata(planned.query_id or work.begun.run))

    def is_committed(self, storage: Storage, begun: Begun) -> bool:
        return read_or_none(storage, names.commits(begun.batch)) == new_commit(begun)

    def continued_to(self, work: Rewriting) -> int | None:
        newest = catalog.newest_batch(work.storage)
        return newest if newest is not None and newest > work.begun.batch else None

    def restore(self, work: Rewriting) -> None:
        storage = work.storage
        require_ours(storage, work.begun)
        if read_or_none(storage, names.QUERY_METADATA) not in (None, logs.UNFINISHED):
            storage.replace(names.QUERY_METADATA, logs.UNFINISHED)
        for first in _WRITTEN:
            work.still_held()
            storage.delete([first] if first == names.BINDING else [entry.path for entry in storage.list(first)])

    def clean_up_restored(self, work: Rewriting) -> None:
        work.storage.delete([names.QUERY_METADATA])


def require_ours(storage: Storage, begun: Begun) -> None:
    """Require that no query has started on the unfinished destination. Raises `RefusedAsUnsafe`.

    Failure sequence otherwise: a migration is interrupted; a person deletes its `metadata`, with which no query starts; a
    query starts with batch 0; the next run completes the migration between the files of this query, or its rollback
    deletes them.
    """
    ours = {names.commits(begun.batch), names.offsets(begun.batch), names.offsets(begun.batch - 1)}
    found = [entry.path for folder in (names.COMMITS, names.OFFSETS) for entry in storage.list(folder)]
    foreign = [path for path in found if path not in ours]
    commit = read_or_none(storage, names.commits(begun.batch))
    if commit is not None and commit != new_commit(begun):
        foreign.append(names.commits(begun.batch))
    if commit is None and read_or_none(storage, names.QUERY_METADATA) not in (None, logs.UNFINISHED):
        foreign.append(names.QUERY_METADATA)
    if foreign:
        raise RefusedAsUnsafe(
            "was written by a query that started on the unfinished destination; nothing was changed",
            path=f"{storage.url}/{foreign[0]}",
            hint="stop this query, move its checkpoint away or delete the destination, and migrate to an empty location",
        )


def _is_unchanged(planned: MigrationPlan) -> bool:
    """Return whether the query of the old checkpoint has not run since the plan."""
    assert planned.source is not None
    assert planned.batch is not None
    source = planned.source
    if catalog.newest_batch(source) != planned.batch or catalog.newest_begun(source) > planned.begun:
        return False
    return read_or_none(source, names.commits(planned.batch)) == planned.commit.encode()


def _write(storage: Storage, planned: MigrationPlan, one: NewFile, machine: Machine) -> None:
    """Write a file, unless an interrupted run has written it. Raises `RefusedAsUnsafe` if another process wrote another."""
    try:
        if one.body is not None:
            storage.create(one.path, one.body)
            return
        assert one.copied is not None
        assert planned.source is not None
        with work_folder(machine.scratch, "migrate") as folder:
            planned.source.download(one.copied.path, folder / "file", expected_bytes=one.copied.size_bytes)
            storage.create(one.path, folder / "file")
    except AlreadyExists as error:
        raise RefusedAsUnsafe(
            "was written by another process; the destination is not complete",
            path=f"{storage.url}/{one.path}",
            hint="remove what the migration wrote with --abort, or choose another destination",
        ) from error
