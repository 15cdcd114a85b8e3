"""RocksDB's options file, of which a snapshot's is read and never handed to RocksDB.

    [Version]  [DBOptions]  [CFOptions "<family>"]  [TableOptions/BlockBasedTable "<family>"]      sections
      <name>=<value>                                                                              lines

Options such as `wal_dir` and `db_log_dir` let RocksDB delete and write files in any directory. Therefore only two facts
are taken: which column families there are, and whether the merge operator is StringAppend. The delimiter is in Spark's
offset log (`rocksdb.mergeOperatorVersion`); RocksDB before 9 does not write it.
"""

from __future__ import annotations

import re

from statestore.errors import UnknownFormatVersion

_FAMILY = "default"
"""RocksDB's only column family in Spark: Spark's own column families are prefixes of keys."""

_SECTION = re.compile(r'\[(?P<kind>[A-Za-z/]+)(?: "(?P<family>.*)")?\]')
_STRING_APPEND = re.compile(r"StringAppendOperator|\{id=StringAppendOperator;[^{}]*\}")
_HINT = "load an older version, or take a new snapshot with Spark"


def require_string_append(data: bytes, path: str) -> None:
    """Raises `UnknownFormatVersion` unless the file describes one column family that merges with StringAppend."""
    section = family = ""
    families: set[str] = set()
    operators: set[str] = set()
    for line in data.decode("utf-8", "replace").splitlines():
        if heading := _SECTION.fullmatch(line.strip()):
            section, family = heading["kind"], heading["family"] or ""
            if section == "CFOptions":
                families.add(family)
            continue
        name, assigns, value = line.strip().partition("=")
        if section == "CFOptions" and assigns and name.strip() == "merge_operator":
            operators.add(value.strip())
    if families != {_FAMILY}:
        shown = ", ".join(sorted(families)) or "none"
        raise UnknownFormatVersion(
            f"column families of RocksDB: {shown[:200]}; known is default", path=path, hint=_HINT
        )
    if not operators or not all(map(_STRING_APPEND.fullmatch, operators)):
        # With another operator, or none, lists are read and written wrongly.
        raise UnknownFormatVersion("names no StringAppend as its merge operator", path=path, hint=_HINT)


def string_append_options(delimiter: bytes) -> str:
    """An options file that sets the merge operator and nothing else. A delimiter is empty or one of `_DELIMITERS`."""
    if delimiter not in _DELIMITERS:
        raise ValueError(f"{delimiter!r} is no delimiter of Spark's")
    return (
        "[Version]\n  rocksdb_version=9.8.4\n  options_file_version=1.1\n"
        "[DBOptions]\n"
        f'[CFOptions "{_FAMILY}"]\n'
        f"  merge_operator={{id=StringAppendOperator;delimiter={delimiter.decode()};}}\n"
        "  table_factory=BlockBasedTable\n"
        f'[TableOptions/BlockBasedTable "{_FAMILY}"]\n'
    )


_DELIMITERS = (b",", b"")
