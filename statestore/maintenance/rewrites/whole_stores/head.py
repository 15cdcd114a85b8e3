"""The commit of a rewrite of an own root: the newest commit and the files that describe the partitions are rewritten.

The checkpoint of the job's streaming query numbers its batches like the root, so no batch can be appended. The order is

    offsets/N                           names the new number of partitions, besides the commit's own number; after a
                                        load, its watermark is at most that of the savepoint
    commits/N                           the point of no return: it names the new snapshots; after a load, it has the
                                        watermark of the savepoint
    state/<operator>/_metadata/metadata the new number
    _statekeeper/binding.json           the new number; the job reads it

Between any two requests, the commit gives the heads: its number of partitions is in the metadata or in the offset log. No
job starts, because the journal is open. The journal has the former contents; `restore` restores them in reverse order.
"""

from __future__ import annotations

from dataclasses import replace

from statekeeper.statestore.checkpoint.rewrite_journal import Begun
from statekeeper.statestore.format import names, operators
from statekeeper.statestore.format.logs import SHUFFLE_PARTITIONS, parse_offsets, with_confs
from statekeeper.statestore.maintenance.rewrites.engine.commit import is_rewritten, rewrite_commit
from statekeeper.statestore.root import binding
from statekeeper.statestore.storage import Storage, read_or_none


def rewrite(storage: Storage, begun: Begun) -> None:
    """Rewrite the files, or those that an interrupted run did not rewrite. Raises as `rewrite_commit`."""
    offsets = names.offsets(begun.batch)
    after = _after(begun)
    if not is_rewritten(storage, begun):
        storage.replace(offsets, after.pop(offsets))
        rewrite_commit(storage, begun, begun.batch)
    for path, body in after.items():
        if read_or_none(storage, path) != body:
            storage.replace(path, body)


def restore(storage: Storage, begun: Begun) -> None:
    """Restore the former contents of the files."""
    assert begun.replaced is not None
    offsets, *others = begun.replaced.items()
    for path, text in (*reversed(others), (names.commits(begun.batch), begun.commit), offsets):
        if read_or_none(storage, path) != text.encode():
            storage.replace(path, text.encode())


def _after(begun: Begun) -> dict[str, bytes]:
    """Return the new contents of the files besides the commit, in their order."""
    assert begun.replaced is not None
    assert begun.partitions is not None
    after = {}
    for path, text in begun.replaced.items():
        if path == names.offsets(begun.batch):
            after[path] = _offsets(text, path, begun)
        elif path == names.BINDING:
            bound = binding.parse_binding(text.encode())
            after[path] = binding.encode_binding(replace(bound, partitions=begun.partitions))
        else:
            after[path] = operators.with_partitions(text.encode(), path, begun.partitions)
    return after


def _offsets(text: str, path: str, begun: Begun) -> bytes:
    """Return the offsets of the newest batch. Their watermark decides which rows of the next batch are late.

    A load restores that of its savepoint. If the savepoint does not contain it, it is lowered to that of the commit.
    """
    confs = {SHUFFLE_PARTITIONS: str(begun.partitions)}
    if begun.watermark_ms is None:
        return with_confs(text, path, confs)
    late = begun.late_watermark_ms
    if late is None:
        late = min(begun.watermark_ms, parse_offsets(text.encode(), path).watermark_ms)
    return with_confs(text, path, confs, watermark_ms=late, lowers=True)
