"""The file names of a savepoint. Those of a checkpoint are in `names`.

savepoint.json                             the manifest of a savepoint with rows
rows/<operator>/<store>[.<family>]/        a table of it
    part-<partition>-<number>.parquet
    _delta_log/
_statekeeper/
    rows/begun.json                        the source of a savepoint with rows
    rows/<operator>-<partition>-<store>.json    the files and counts of a finished store
    savepoint.json                         the label of the savepoint

In the source:

_statekeeper/
    savepoints/<label>.json                the record of a labeled savepoint
    holds/<run>.json                       a batch that retention must keep, because a verb reads it
"""

from __future__ import annotations

import re
from urllib.parse import quote

from statekeeper.statestore.format.names import CONTROL, StorePath

MANIFEST = "savepoint.json"
ROWS = "rows"
BEGUN = f"{CONTROL}/rows/begun.json"
LABEL = f"{CONTROL}/savepoint.json"
LABELS = f"{CONTROL}/savepoints"
HOLDS = f"{CONTROL}/holds"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def table(operator: int, store: str, family: str | None) -> str:
    """Return the folder of a table. Characters of a family other than letters, digits, "-" and "_" are "~" and their
    bytes."""
    return f"{ROWS}/{operator}/{store}{'' if family is None else '.' + _plain(family)}"


def part(folder: str, partition: int, number: int) -> str:
    """Return the path of a file of a table."""
    return f"{folder}/part-{partition:05d}-{number:03d}.parquet"


def empty_part(folder: str) -> str:
    """Return the path of the only file of a table without rows."""
    return f"{folder}/part-empty.parquet"


def delta_commit(folder: str) -> str:
    """Return the path of the first commit of a Delta table."""
    return f"{folder}/_delta_log/{0:020d}.json"


def is_part(path: str) -> bool:
    """Return whether the path is a file of a table."""
    return path.startswith(f"{ROWS}/") and path.endswith(".parquet")


def finished(store: StorePath) -> str:
    """Return the path of the record of a finished store."""
    return f"{CONTROL}/rows/{store.operator}-{store.partition}-{store.store}.json"


def label(name: str) -> str:
    """Return the path of a label's record in the source."""
    return f"{LABELS}/{name}.json"


def hold(run: str) -> str:
    """Return the path of the hold of a run that reads a batch for a long time."""
    return f"{HOLDS}/{run}.json"


def is_label(text: str) -> bool:
    """Return whether the text can be a label: up to 100 letters, digits, ".", "_" and "-", a letter or digit first."""
    return _LABEL.fullmatch(text) is not None


def _plain(family: str) -> str:
    # `quote` keeps "." and "~" in any case.
    return quote(family, safe="").replace("~", "%7E").replace(".", "%2E").replace("%", "~")
