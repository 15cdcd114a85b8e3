"""Verify that the rows in the files of a store decode with its schema; those of another operator do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.checkpoint.file_problem import FileProblem
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format.changelog import Changes, Kind
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.family_rows import FAMILY_BYTES, decode_keys, decode_rows_of, family_id
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.state_conf import UNSAFE_ROW, StateConf
from statekeeper.statestore.maintenance.upkeep.audit.facts import Layout

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class RowCheck:
    """Decodes rows and discards the values. `ids`: the column family names by number, from the newest snapshot up to a
    version, because a repartitioning renumbers them; empty for a store without families."""

    layout: Layout
    ids: Mapping[int, str]
    conf: StateConf

    @classmethod
    def of(
        cls, layout: Layout | FileProblem | None, chain: Chain, version: VersionId, conf: StateConf
    ) -> RowCheck | None:
        """Return None if rows cannot be decoded: the schema is unusable, or the column family names are unknown."""
        if not isinstance(layout, Layout) or conf.encoding != UNSAFE_ROW:
            return None
        if None in layout.families:
            return cls(layout, {}, conf)
        up_to = [v for v, facts in chain.snapshots.items() if v.version <= version.version and facts.metadata]
        newest = max(up_to, default=None)
        metadata = None if newest is None else chain.snapshots[newest].metadata
        return cls(layout, {n: name for name, n in metadata.column_families.items()}, conf) if metadata else None

    def changes(self, piece: Changes) -> None:
        """Decode records. Raises `CorruptFile`."""
        kinds = [Kind.PUT] * len(piece) if piece.kinds is None else piece.kinds.tolist()
        keys: list[bytes] = []
        values: list[bytes] = []
        deleted: list[bytes] = []
        for (key, value), kind in zip(piece.pairs(), kinds, strict=True):
            if value is None:
                deleted.append(key)
            elif kind != Kind.DELETE_RANGE:
                keys.append(key)
                values.append(value)
        self.rows(keys, values)
        self._each(deleted, lambda family, skip, at: decode_keys([deleted[i] for i in at], family, skip=skip))

    def rows(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Decode rows. Raises `CorruptFile`."""

        def decode(family: Family, skip: int, at: Sequence[int]) -> object:
            return decode_rows_of([keys[i] for i in at], [values[i] for i in at], family, self.conf, skip=skip)

        self._each(keys, decode)

    def _each(self, keys: Sequence[bytes], decode: Callable[[Family, int, Sequence[int]], object]) -> None:
        try:
            for name, places in self._by_family(keys).items():
                skip = 0 if name is None else FAMILY_BYTES
                for some in _pieces(places):
                    decode(self.layout.families[name], skip, some)
        except CorruptFile as error:
            raise CorruptFile(f"has rows that do not match the schema in {self.layout.path}: {error.what}") from error

    def _by_family(self, keys: Sequence[bytes]) -> Mapping[str | None, Sequence[int]]:
        if not keys:
            return {}
        if None in self.layout.families:
            return {None: range(len(keys))}
        found: dict[str | None, list[int]] = {}
        for place, key in enumerate(keys):
            name = self.ids.get(family_id(key))
            if name not in self.layout.families:
                raise CorruptFile(f"a row of {name or 'an unknown column family'}")
            found.setdefault(name, []).append(place)
        return found


def _pieces(places: Sequence[int]) -> Iterator[Sequence[int]]:
    return (places[start : start + _ROWS_AT_ONCE] for start in range(0, len(places), _ROWS_AT_ONCE))
