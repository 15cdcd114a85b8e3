"""States why a file cannot be a base, and why the retention floor is lower than the policy asks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from statekeeper.statestore.chain import Chain
from statekeeper.statestore.file_problem import FileProblem
from statekeeper.statestore.format import names, names_in_spark
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.maintenance.retention.facts import RetentionFacts, loadable
from statekeeper.statestore.origin import Origin

_NO_FAMILIES = "the names of the column families are only in snapshots, and the store has no intact snapshot"


def findings_of(gathered: RetentionFacts, floor: int | None) -> Iterator[str]:
    """Yield the findings about the files. `floor`: the retained one."""
    for chain in gathered.chains:
        for version, facts in chain.snapshots.items():
            if facts.fault is not None:
                yield (
                    f"{facts.faulty_file}: a full read found damage: {facts.fault.text}; {chain.store.snapshot(version)} "
                    f"cannot be a base. Stop the query and run: statekeeper repair ROOT --apply --confirm-stopped"
                )
            elif facts.sidecar is not None:
                beside = names.sidecar(chain.store.snapshot(version))
                yield (
                    f"{beside}: {facts.sidecar}; Spark rejects the snapshot, and it cannot be a base. Run: "
                    f"statekeeper repair ROOT --apply --confirm-stopped"
                )
        for entry in chain.files.others:
            name = entry.path.rpartition("/")[2]
            stops = names_in_spark.stops_loads(name) or names_in_spark.stops_cleanup(name)
            if gathered.origin is Origin.NATIVE and stops:
                yield f"{entry.path}: Spark reads the name as a version and fails; move the file out of the folder"
    if floor is not None and floor >= gathered.wanted_floor:
        return
    for chain in gathered.chains:
        loads = [number for number in loadable(chain) if number <= gathered.wanted_floor]
        if max(loads, default=0) < gathered.wanted_floor:
            holes = (_broken(chain, v) for v in reversed(chain.versions) if v in chain.broken and v not in chain.bases)
            broken = chain.conflicts or next(holes, chain.end or _NO_FAMILIES)
            yield f"{chain.store}: version {gathered.wanted_floor} does not load: {broken}"


def _broken(chain: Chain, version: VersionId) -> FileProblem:
    """Return why a version does not load: the damage of its snapshot if it has one, because repair can fix that."""
    damage = chain.snapshots[version].damage if version in chain.snapshots else None
    return damage or chain.broken[version]
