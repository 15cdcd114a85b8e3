"""Discover checkpoints: configured roots and the folders of configured parents. Read-only.

    discover(configuration)  ->  Fleet

The number of requests depends on the number of checkpoints and not on their content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeVar

from statekeeper.statestore.base.errors import BadConfiguration, StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.maintenance.verbs.config import Configuration, Parent, Root, matching, place_of
from statekeeper.statestore.storage import Storage, at_once, open_storage

A = TypeVar("A")
T = TypeVar("T")

MOST_FOLDERS = 10_000
"""Largest number of folders of a parent, as a bound of the requests of a pattern that is too wide."""


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

    waiting        roots and folders of parents without a committed batch
    problems       errors by name of a root, a parent, a folder of a parent, or a broken part of the configuration
    configuration  that names the checkpoints
    ambiguous      the names in `problems` of checkpoints that two parents name
    empty          parents without a folder: their url may be misspelt
    """

    queries: Mapping[str, Query]
    waiting: tuple[str, ...]
    problems: Mapping[str, str]
    _: KW_ONLY
    configuration: Configuration = field(default_factory=Configuration)
    ambiguous: frozenset[str] = frozenset()
    empty: tuple[str, ...] = ()

    def is_unseen(self, name: str) -> bool:
        """Return whether an undiscovered checkpoint may exist, because it, its parent, or the table or file that names it
        could not be read."""
        is_problem = name in self.problems or name.partition(".")[0] in self.problems
        return is_problem or self.configuration.may_name(name)


def discover(
    configuration: Configuration,
    open_root: Callable[[Root], Storage] | None = None,
    *,
    committed: Mapping[str, int] | None = None,
) -> Fleet:
    """Discover the checkpoints. An error of one does not affect the others.

    Requests: one listing for each parent, or for each folder that a further `*` of its pattern is in; and one of the commit
    log of each root and folder. `committed`: known committed batches by name; the listing starts after them.

    A checkpoint that is also a root of the same file has only the name and the policies of the root. A checkpoint of two
    parents, or of a parent and of a root of another file, is a problem: it is unknown which policies apply.
    """
    opened = open_root or (lambda root: open_storage(root.spec, is_hurried=False))
    problems = {subject: broken.problem for subject, broken in configuration.broken.items()}
    roots = dict(configuration.roots)
    places = {place_of(root.spec): root for root in roots.values()}
    twice: dict[str, tuple[Root, Root]] = {}
    empty: list[str] = []
    for parent in configuration.parents.values():
        found = _attempt(_children, parent)
        if isinstance(found, str):
            problems[parent.name] = found
            continue
        if not found:
            empty.append(parent.name)
        for folder in found:
            try:
                root = parent.child(folder)
            except ValueError as error:
                file = parent.file or "the configuration"
                problems[f"{parent.name}.{folder}"] = (
                    f"the folder {folder!r} at {parent.url} is not maintained, because {error}. Rename the folder, or add "
                    f"a table [roots.NAME] with its url to {file}"
                )
                continue
            other = places.setdefault(place_of(root.spec), root)
            if other is root:
                roots[root.name] = root
            elif other.name not in configuration.roots or other.file != root.file:
                twice |= {root.name: (root, other), other.name: (other, root)}
    for name, (one, other) in twice.items():
        roots.pop(name, None)
        what = f"{name} is also {other.name}; neither is maintained, because it is unknown which policies apply"
        hint = "change the URL of a parent, or define this checkpoint as a root in the file of its parent"
        problems[name] = str(BadConfiguration(what, path=one.file or None, hint=hint))
    newest: dict[str, int | str | None] = {}

    def newest_batch(root: Root) -> int | None:
        return catalog.newest_batch(opened(root), since=(committed or {}).get(root.name))

    def look(root: Root) -> None:
        newest[root.name] = _attempt(newest_batch, root)

    at_once(look, list(roots.values()))
    problems |= {name: seen for name, seen in newest.items() if isinstance(seen, str)}
    queries = {name: Query(roots[name], seen) for name, seen in sorted(newest.items()) if isinstance(seen, int)}
    waiting = tuple(sorted(name for name, seen in newest.items() if seen is None))
    return Fleet(
        queries, waiting, problems, configuration=configuration, ambiguous=frozenset(twice), empty=tuple(sorted(empty))
    )


def forget_seconds(configuration: Configuration, name: str) -> float:
    """Return how long a missing checkpoint of a parent is remembered, in seconds; 0 without such a parent."""
    parent = configuration.parents.get(name.partition(".")[0])
    return parent.forget_seconds if parent is not None else 0.0


def _children(parent: Parent) -> list[str]:
    """Return the folders of a parent: the names that match the `*` of its pattern, with dots between several."""
    storage = open_storage(parent.spec, is_hurried=False)
    found: dict[str, tuple[str, ...]] = {"": ()}
    for segment in parent.pattern.split("/"):
        if "*" not in segment:
            found = {f"{path}{segment}/": names for path, names in found.items()}
            continue
        below, like = _folders(storage, list(found)), matching(segment)
        found = {
            f"{path}{one}/": (*names, one)
            for path, names in found.items()
            for one in below[path]
            if like.fullmatch(one)
        }
        if len(found) > MOST_FOLDERS:
            what = f"{parent.url} matches {len(found):,} folders; the limit is {MOST_FOLDERS:,}"
            raise BadConfiguration(what, path=parent.file or None, hint="use a narrower pattern")
    return [".".join(names) for names in found.values()]


def _folders(storage: Storage, paths: list[str]) -> dict[str, list[str]]:
    """Return the folders below each path."""
    found: dict[str, list[str]] = {}

    def look(path: str) -> None:
        found[path] = list(storage.folders(path.rstrip("/")))

    at_once(look, paths)
    return found


def _attempt(look: Callable[[A], T], at: A) -> T | str:
    try:
        return look(at)
    except (StatekeeperError, ValueError) as error:
        return str(error)
