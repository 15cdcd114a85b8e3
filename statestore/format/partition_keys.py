"""The partition of each row of a store: the columns of its key that Spark's shuffle hashes.

    operator                              store or family                        hashed columns of the key
    stateStoreSave, dedupe,               default                                all
      dedupeWithinWatermark,
      flatMapGroupsWithState,
      applyInPandasWithState
    sessionWindowStateStoreSaveExec       default                                all but the last, the start of the session
    symmetricHashJoin                     <side>-keyToNumValues                  all
                                          <side>-keyWithIndexToValue             all but the last, the index
                                          <side>-keyWithTsToValues, -tsWithKey   all but the last, the event time
    transformWithStateExec, ...InPandas,  a value or list, and its $min_,        all
      ...InPySpark                        $count_, $rowCounter_
                                          a map; $<time>Timers_keyToTimestamp    the fields of the first, the grouping key
                                          $<time>Timers_timestampToKey;          the fields of the second
                                            $ttl_ of a value or list
                                          $ttl_ of a map                         the fields of the first field of the second
    globalLimit; stateStoreSave           default                                none: all rows are in partition 0
      without key columns

The columns are hashed in the order of the key (`murmur3`). Spark partitions the input of an operator by its grouping or
join expressions, and the state's key contains their values. The names of stores and families are those of a join of
formats 1 and 2, and of formats 3 and 4.

Source: StatePartitionKeyExtractorFactory and `requiredChildDistribution` of each operator in Spark 4.2. Spark's extractor
lacks the families of join format 4; tests compare them with the folders in which Spark itself put the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa

from statekeeper.statestore.base.errors import UnknownPartitioning, UnsupportedType
from statekeeper.statestore.format.families import Family, KeyEncoder
from statekeeper.statestore.format.family_rows import FAMILY_BYTES, decode_keys
from statekeeper.statestore.format.murmur3 import Hashes, partitions_of, require_hashes, row_hashes
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.operators import AGGREGATION, LIMIT, takes_all_rows
from statekeeper.statestore.format.state_conf import UNSAFE_ROW, StateConf

_BY_WHOLE_KEY = (
    AGGREGATION,
    "dedupe",
    "dedupeWithinWatermark",
    "flatMapGroupsWithState",
    "applyInPandasWithState",
)
SESSIONS = "sessionWindowStateStoreSaveExec"
JOIN = "symmetricHashJoin"
TRANSFORM = ("transformWithStateExec", "transformWithStateInPandasExec", "transformWithStateInPySparkExec")
_SIDES = ("left-", "right-")
_TIMERS = ("$procTimers_", "$eventTimers_")
_TTL = "$ttl_"
_OF_ONE_KEY = ("$min_", "$count_", "$rowCounter_")
_INTERNAL = "$"
_HINT = "keep the number of partitions, or start a new query with a new checkpoint"


class PartitionColumns(Enum):
    """The columns of a key that Spark hashes."""

    NONE = "none"
    ALL = "all"
    ALL_BUT_LAST = "all but the last"
    FIRST = "the fields of the first"
    SECOND = "the fields of the second"
    FIRST_OF_SECOND = "the fields of the first field of the second"


@dataclass(frozen=True, kw_only=True)
class PartitionRule:
    """How the rows of one family of a store are partitioned. `family` None: a store without column families."""

    operator: str
    store: StorePath
    family: str | None
    layout: Family
    columns: PartitionColumns


def partition_rules(
    operator: str, store: StorePath, families: Mapping[str | None, Family], conf: StateConf
) -> Mapping[str | None, PartitionRule]:
    """Return the rule of each family of a store. It is the same for all partitions.

    `operator`: the name in the operator's metadata; empty for Spark 3.5, which writes none. `families`: by name;
    a store without column families has one, named None. Raises `UnknownPartitioning` if Spark's partitions cannot be
    computed.
    """
    reason = _unknown_for_all(operator, families, conf)
    if reason is not None:
        raise _unknown(operator, store, None, reason)
    found = {}
    for name, layout in families.items():
        columns = _columns(operator, store, name, families)
        rule = PartitionRule(operator=operator, store=store, family=name, layout=layout, columns=columns)
        _require_columns(rule)
        found[name] = rule
    return found


def key_hashes(keys: Sequence[bytes], rule: PartitionRule) -> Hashes:
    """Return the hash by which each key is partitioned: `murmur3.partitions_of` gives its partition for any number.

    `keys`: as in the store, with the id of the family. Raises `CorruptFile`.
    """
    if rule.columns is PartitionColumns.NONE:
        return np.zeros(len(keys), np.int32)
    skip = 0 if rule.family is None else FAMILY_BYTES
    return row_hashes(_hashed(decode_keys(keys, rule.layout, skip=skip), rule.columns))


def partition_columns(keys: pa.Table, rule: PartitionRule) -> pa.Table:
    """Return the columns of decoded keys by which Spark partitions; each field of a grouping key is a column."""
    hashed = _hashed(keys, rule.columns)
    match rule.columns:
        case PartitionColumns.NONE:
            return hashed.select([])
        case PartitionColumns.ALL | PartitionColumns.ALL_BUT_LAST:
            return hashed
    key = hashed.column(0).combine_chunks()
    return pa.Table.from_arrays(key.flatten(), schema=pa.schema(list(key.type)))


def require_partition(hashes: Hashes, rule: PartitionRule, partitions: int) -> None:
    """Check rows against the partition that they are in, `rule.store.partition` of `partitions`.

    It detects partitions that neither metadata nor schemas show. Raises `UnknownPartitioning` for the first row that the
    rule places elsewhere.
    """
    placed = partitions_of(hashes, partitions)
    elsewhere = placed != rule.store.partition
    if elsewhere.any():
        row = int(elsewhere.argmax())
        raise _unknown(
            rule.operator,
            rule.store,
            rule.family,
            f"row {row} is in partition {rule.store.partition}, but by the known rule, its key belongs to partition "
            f"{placed[row]} of {partitions}",
        )


def _unknown_for_all(operator: str, families: Mapping[str | None, Family], conf: StateConf) -> str | None:
    """Return the reason why no row of the store can be placed, if there is one."""
    if conf.encoding != UNSAFE_ROW:
        return f"the query encodes its rows as {conf.encoding}, which this release does not decode"
    if not families:
        return "the schema of its keys is unknown"
    # Joins, whose stores have to match, are always strict.
    if not conf.is_strictly_distributed and operator != JOIN:
        return "the query was first started before Spark 3.3, which may partition by some of the key's columns"
    return None


def _columns(
    operator: str, store: StorePath, name: str | None, families: Mapping[str | None, Family]
) -> PartitionColumns:
    family = families[name]
    if operator in TRANSFORM and name is not None:
        found = _columns_of_variable(name, families)
    elif operator == JOIN or (not operator and _of_join(store.store) is not None):
        found = _of_join(name or store.store)
    elif name is not None:
        found = None
    elif takes_all_rows(operator, has_key_columns=len(family.key) > 0):
        found = PartitionColumns.NONE
    elif operator == SESSIONS:
        found = PartitionColumns.ALL_BUT_LAST
    elif not operator:
        found = _of_undescribed(family)
    else:
        found = PartitionColumns.ALL if operator in _BY_WHOLE_KEY else None
    if found is None:
        raise _unknown(operator, store, name, "this release does not know the columns by which Spark partitions it")
    return found


def _of_join(name: str) -> PartitionColumns | None:
    side = next((side for side in _SIDES if name.startswith(side)), None)
    match None if side is None else name.removeprefix(side):
        case "keyToNumValues":
            return PartitionColumns.ALL
        case "keyWithIndexToValue" | "keyWithTsToValues" | "tsWithKey":
            return PartitionColumns.ALL_BUT_LAST
    return None


def _columns_of_variable(name: str, families: Mapping[str | None, Family]) -> PartitionColumns | None:
    """Return the columns of a state variable, its index, or a timer of transformWithState."""
    for timers in _TIMERS:
        if name == f"{timers}keyToTimestamp":
            return PartitionColumns.FIRST
        if name == f"{timers}timestampToKey":
            return PartitionColumns.SECOND
    if name.startswith(_TTL):
        variable = families.get(name.removeprefix(_TTL))
        if variable is None:
            return None
        return PartitionColumns.FIRST_OF_SECOND if _is_map(variable) else PartitionColumns.SECOND
    if name.startswith(_OF_ONE_KEY):
        return PartitionColumns.ALL
    if name.startswith(_INTERNAL):
        return None
    return PartitionColumns.FIRST if _is_map(families[name]) else PartitionColumns.ALL


def _is_map(variable: Family) -> bool:
    """Whether a variable is a map: only its key has a prefix, the grouping key."""
    return variable.encoder is KeyEncoder.PREFIX


def _of_undescribed(family: Family) -> PartitionColumns:
    """Return the columns of an operator without metadata (Spark 3.5) that is not a join.

    Only sessions have a prefix. A limit is recognized by its key of one void column, an aggregation over all rows by the
    absence of columns; all other operators partition by the whole key.
    """
    if family.encoder is KeyEncoder.PREFIX:
        return PartitionColumns.ALL_BUT_LAST
    name = LIMIT if [field.type for field in family.key] == [pa.null()] else AGGREGATION
    is_single = takes_all_rows(name, has_key_columns=len(family.key) > 0)
    return PartitionColumns.NONE if is_single else PartitionColumns.ALL


def _require_columns(rule: PartitionRule) -> None:
    """Raise `UnknownPartitioning` if the key does not have the columns, or Spark does not hash them."""
    try:
        fields = _hashed_fields(list(rule.layout.key), rule.columns)
    except (IndexError, TypeError) as error:
        raise _unknown(
            rule.operator,
            rule.store,
            rule.family,
            f"its key {rule.layout.key.names} lacks the columns that Spark hashes",
        ) from error
    if not fields and rule.columns is not PartitionColumns.NONE:
        raise _unknown(rule.operator, rule.store, rule.family, "its key has no column that Spark hashes")
    try:
        require_hashes(fields)
    except UnsupportedType as error:
        raise _unknown(rule.operator, rule.store, rule.family, error.what) from error


def _hashed_fields(key: list[pa.Field], columns: PartitionColumns) -> list[pa.Field]:
    match columns:
        case PartitionColumns.NONE:
            return []
        case PartitionColumns.ALL:
            return key
        case PartitionColumns.ALL_BUT_LAST:
            return key[:-1]
        case PartitionColumns.FIRST:
            return _fields_of(key[0])
        case PartitionColumns.SECOND:
            return _fields_of(key[1])
        case PartitionColumns.FIRST_OF_SECOND:
            return _fields_of(_fields_of(key[1])[0])


def _fields_of(column: pa.Field) -> list[pa.Field]:
    if not pa.types.is_struct(column.type):
        raise TypeError(f"{column.name} is not a struct")
    return list(column.type)


def _hashed(keys: pa.Table, columns: PartitionColumns) -> pa.Table:
    """Return the hashed columns. A struct has the hash of its fields, and a grouping key is never null."""
    match columns:
        case PartitionColumns.ALL_BUT_LAST:
            return keys.select(range(keys.num_columns - 1))
        case PartitionColumns.FIRST:
            return keys.select([0])
        case PartitionColumns.SECOND:
            return keys.select([1])
        case PartitionColumns.FIRST_OF_SECOND:
            return pa.table({"key": keys.column(1).combine_chunks().field(0)})
    return keys


def _unknown(operator: str, store: StorePath, family: str | None, reason: str) -> UnknownPartitioning:
    of_family = "" if family is None else f", family {family}"
    return UnknownPartitioning(
        f"operator {store.operator} ({operator or 'without metadata'}), store {store.store}{of_family}: {reason}; its "
        "rows cannot be moved to other partitions",
        path=str(store),
        hint=_HINT,
    )
