"""Discover checkpoints: configured roots and the folders of configured parents. Read-only.

    discover(configuration)  ->  Fleet

The number of requests depends on the number of checkpoints and not on their content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.maintenance.verbs.config import Configuration, Parent, Root
from statekeeper.statestore.storage import Storage, at_once, open_storage

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True)
class Query:
    """A checkpoint, and the newest batch in its commit log."""

    root: Root
    batch: int

    @property
    def version(self) -> int:
        """The newest committed version: batch N creates version N+1."""
        return self.batch + 1


@dataclass(frozen=True)
class Fleet:
    """The discovered checkpoints, by name.

    waiting     roots and folders of parents without a committed batch
    problems    errors by name of a root, a parent or a folder of a parent
    """

    queries: Mapping[str, Query]
    waiting: tuple[str, ...]
    problems: Mapping[str, str]

    def is_unseen(self, name: str) -> bool:
        """Return whether an undiscovered checkpoint may exist, because it or its parent could not be read."""
        return name in self.problems or name.partition(".")[0] in self.problems


def discover(
    configuration: Configuration,
    open_root: Callable[[Root], Storage] | None = None,
    *,
    committed: Mapping[str, int] | None = None,
) -> Fleet:
    """Discover the checkpoints. An error of one does not affect the others.

    Requests: one listing for each parent, and one of the commit log of each root and folder. `committed`: known committed
    batches by name; the listing starts after them.
    """
    opened = open_root or (lambda root: open_storage(root.spec))
    problems: dict[str, str] = {}
    roots = dict(configuration.roots)
    for parent in configuration.parents.values():
        found = _attempt(_children, parent)
        if isinstance(found, str):
            problems[parent.name] = found
            continue
        for folder in found:
            try:
                root = parent.child(folder)
            except ValueError as error:
                problems[f"{parent.name}.{folder}"] = str(error)
            else:
                roots[root.name] = root
    newest: dict[str, int | str | None] = {}

    def newest_batch(root: Root) -> int | None:
        return catalog.newest_batch(opened(root), since=(committed or {}).get(root.name))

    def look(root: Root) -> None:
        newest[root.name] = _attempt(newest_batch, root)

    at_once(look, list(roots.values()))
    problems |= {name: seen for name, seen in newest.items() if isinstance(seen, str)}
    queries = {name: Query(roots[name], seen) for name, seen in sorted(newest.items()) if isinstance(seen, int)}
    return Fleet(queries, tuple(sorted(name for name, seen in newest.items() if seen is None)), problems)


def forget_seconds(configuration: Configuration, name: str) -> float:
    """Return how long a missing checkpoint of a parent is remembered, in seconds; 0 without such a parent."""
    parent = configuration.parents.get(name.partition(".")[0])
    return parent.forget_seconds if parent is not None else 0.0


def _children(parent: Parent) -> Iterable[str]:
    return open_storage(parent.spec).folders("")


def _attempt(look: Callable[[A], T], at: A) -> T | str:
    try:
        return look(at)
    except (StatekeeperError, ValueError) as error:
        return str(error)
