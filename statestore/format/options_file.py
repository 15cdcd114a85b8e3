"""RocksDB's options file. The file of a snapshot is parsed here and never passed to RocksDB.

    [Version]  [DBOptions]  [CFOptions "<family>"]  [TableOptions/BlockBasedTable "<family>"]      sections
      <name>=<value>                                                                              lines

Options such as `wal_dir` and `db_log_dir` let RocksDB delete and write files in any directory. Therefore only two facts
are read: the column families, and whether the merge operator is StringAppend. The delimiter comes from Spark's offset
log (`rocksdb.mergeOperatorVersion`); RocksDB before 9 does not write it.
"""

from __future__ import annotations

import re

from statekeeper.statestore.base.errors import UnknownFormatVersion

_FAMILY = "default"
"""RocksDB's only column family in Spark: Spark's own column families are prefixes of keys."""

_SECTION = re.compile(r'\[(?P<kind>[A-Za-z/]+)(?: "(?P<family>.*)")?\]')
_STRING_APPEND = re.compile(r"StringAppendOperator|\{id=StringAppendOperator;[^{}]*\}")
_HINT = "load an older version, or take a new snapshot with Spark"


def require_string_append(data: bytes, path: str) -> None:
    """Raise `UnknownFormatVersion` unless the file describes one column family with the merge operator StringAppend."""
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
            f"has the RocksDB column families {shown[:200]}; only `default` is supported",
            path=path,
            hint=_HINT,
        )
    if not operators or not all(map(_STRING_APPEND.fullmatch, operators)):
        # Another merge operator, or none, would read and write lists incorrectly.
        raise UnknownFormatVersion(
            "has a merge operator other than StringAppend, or none; lists cannot be read", path=path, hint=_HINT
        )


def string_append_options(delimiter: bytes) -> str:
    """Return an options file that sets only the merge operator. The delimiter is one of `_DELIMITERS`."""
    if delimiter not in _DELIMITERS:
        raise ValueError(f"{delimiter!r} is not a delimiter of Spark")
    return (
        "[Version]\n  rocksdb_version=9.8.4\n  options_file_version=1.1\n"
        "[DBOptions]\n"
        f'[CFOptions "{_FAMILY}"]\n'
        f"  merge_operator={{id=StringAppendOperator;delimiter={delimiter.decode()};}}\n"
        "  table_factory=BlockBasedTable\n"
        f'[TableOptions/BlockBasedTable "{_FAMILY}"]\n'
    )


_DELIMITERS = (b",", b"")
