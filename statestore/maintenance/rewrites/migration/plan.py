"""Plans a migration, or states why it is blocked. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError, UnsupportedType
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format import file_source, names
from statekeeper.statestore.format.avro_rows import require_supported
from statekeeper.statestore.format.families import AvroIds, Family
from statekeeper.statestore.format.family_rows import FAMILY_BYTES
from statekeeper.statestore.format.logs import parse_commit
from statekeeper.statestore.format.names import MOST_PARTITIONS, StorePath
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.state_conf import AVRO, UNSAFE_ROW, StateConf
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine.plan import of_audit, of_disk, of_other, of_release, of_stores
from statekeeper.statestore.maintenance.rewrites.migration.files import files
from statekeeper.statestore.maintenance.rewrites.migration.match import Match, families_of
from statekeeper.statestore.maintenance.rewrites.migration.model import (
    DroppedOperator,
    Matched,
    Migrate,
    MigrationFacts,
    MigrationPlan,
    NewFile,
    Side,
    Taken,
)
from statekeeper.statestore.maintenance.rewrites.migration.rows import (
    MappedColumn,
    MigratedRows,
    is_timed,
    same_keys,
    value_columns,
)
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import ByFamily, Conversion, StoreGroup
from statekeeper.statestore.maintenance.rewrites.whole_stores.plan import local_bytes_of, of_logs
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.storage import Storage

_FORMATS = (
    "spark.sql.streaming.aggregation.stateFormatVersion",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
    "spark.sql.streaming.join.stateFormatVersion",
)
"""The settings that change the columns of an operator's state. The layouts of the joins show theirs, too."""


def plan(
    facts: MigrationFacts,
    goal: Migrate,
    match: Match,
    dropped: Sequence[DroppedOperator],
    source: Storage,
    spark: Spark | None = None,
) -> MigrationPlan:
    """Plan a migration. `source`: the old checkpoint, whose rows the execution reads; `spark`: the release that continues,
    if the blueprint does not show it. Pure."""
    old, new = facts.old.facts.stopped, facts.blueprint.facts.stopped
    half_done, digest = facts.half_done, facts.digest(goal)
    is_there = facts.completed is not None and facts.completed.begun.rows == digest and facts.newest is not None
    planned = MigrationPlan(
        rewrite=RewriteKind.MIGRATE,
        batch=old.batch if half_done is None else half_done.begun.batch,
        partitions=_partitions(facts, goal),
        provider=new.conf.provider,
        structure=new.structure or Structure.V1,
        header=_header(facts, spark),
        begun=old.begun,
        commit=old.commit,
        offsets=facts.blueprint.facts.offsets,
        is_there=is_there,
        half_done=half_done,
        conf=old.conf,
        conf_after=new.conf,
        origin=old.origin,
        source=source,
        goal=goal,
        digest=digest,
        operators=match.operators,
        dropped=tuple(dropped),
        source_map=match.sources,
        query_id=None if goal.new_query or facts.old.binding is not None else facts.query_id,
        binding=_binding(facts, goal),
        reads_files=facts.old.binding is not None
        and any(
            file_source.position(facts.old.offsets.by_source.get(old or "", "")) is not None
            for old in match.sources.sources.values()
        ),
        notes=match.notes,
    )
    if is_there:
        return planned
    refusals = list(_of_checkpoints(facts, goal, digest, spark))
    if not refusals:
        refusals += match.refusals
        if planned.reads_files and not match.sources.is_same:
            refusals.append(
                "a source of the job reads files, and the list of the files that it has read is in the checkpoint of its "
                "query, which has the old sources: keep the inputs and ticks of the job"
            )
    groups: tuple[StoreGroup, ...] = ()
    written: tuple[NewFile, ...] = ()
    if not refusals:
        groups = tuple(_groups(facts, match.operators, planned.partitions or 1))
        local_bytes = local_bytes_of(groups)
        refusals += _of_rules(facts, match.operators, planned.partitions or 1)
        refusals += of_disk(old, local_bytes, grows_with_workers=False)
        refusals += _of_space(facts, groups)
        try:
            written = tuple(files(facts, match.sources, planned.partitions or 1, goal.location, planned.binding))
        except RefusedAsUnsafe as error:
            refusals.append(f"{error.path} {error.what}: {error.hint}")
    return replace(
        planned,
        groups=groups,
        files=written,
        refusals=tuple(refusals),
        local_bytes=local_bytes_of(groups),
        seconds=sum(group.read_bytes for group in groups) / old.replay_bytes_per_second,
    )


def _binding(facts: MigrationFacts, goal: Migrate) -> Binding | None:
    """The binding of the new job root, without its id: the stores and inputs of the changed job, the owner and the key
    groups of the old root, which each key contains."""
    old, new = facts.old.binding, facts.blueprint.binding
    if old is None or new is None:
        return None
    return replace(
        new,
        root_id="",
        query_id=old.query_id,
        former_ids=old.former_ids,
        claim=None,
        partitions=_partitions(facts, goal),
        key_groups=old.key_groups,
        initial=old.initial or new.initial,
        evolution="",
    )


def _partitions(facts: MigrationFacts, goal: Migrate) -> int:
    if facts.old.binding is not None:
        return goal.partitions or facts.old.binding.partitions
    wanted = facts.blueprint.facts
    widest = max((one.partitions for one in wanted.operators), default=1)
    return goal.partitions or wanted.stopped.partitions or widest


def _header(facts: MigrationFacts, spark: Spark | None) -> str:
    if facts.half_done is not None:
        return facts.half_done.begun.header
    is_v2 = facts.blueprint.facts.stopped.structure is Structure.V2
    return spark.header if is_v2 and spark is not None else "v1"


def of_blueprint(facts: MigrationFacts) -> Iterator[str]:
    """Yield why the blueprint does not say what the changed query wants."""
    new = facts.blueprint.facts.stopped
    if new.batch is None:
        yield (
            f"the blueprint {facts.blueprint.url} has no committed batch: start the changed query once with this new "
            "checkpoint on a few rows, until it has committed a batch, and stop it"
        )


# -- refusals ----------------------------------------------------------------------------------------------------------


def _of_checkpoints(facts: MigrationFacts, goal: Migrate, digest: str, spark: Spark | None) -> Iterator[str]:
    """Yield the reasons in the state of the three locations."""
    old, new = facts.old.facts.stopped, facts.blueprint.facts.stopped
    yield from facts.overlaps
    yield from _of_destination(facts, digest)
    if None not in (old.batch, new.batch) and old.origin is not new.origin:
        job, native = (facts.old, facts.blueprint) if old.origin is Origin.OWN else (facts.blueprint, facts.old)
        yield (
            f"{job.url} is the state root of a job on `pipelines`, and {native.url} is the checkpoint of a native query: "
            "their rows differ. To keep the state, make a savepoint with rows (statekeeper savepoint --rows), and start "
            "the job with its table as `initial`, or load it into the query (statekeeper load)"
        )
    for side, stopped in ((facts.old, old), (facts.blueprint, new)):
        if stopped.half_done is not None:
            yield f"{side.url}: {of_other(stopped.half_done.begun).replace('ROOT', shlex.quote(side.url))}"
    if old.batch is None:
        yield f"no batch of {facts.old.url} is committed yet: there is no state to keep; start the changed query"
    yield from of_blueprint(facts)
    if None in (old.batch, new.batch) or old.origin is not new.origin:
        return
    for side, stopped in ((facts.old, old), (facts.blueprint, new)):
        if not side.facts.offsets:
            yield (
                f"{names.offsets(stopped.batch or 0)} of {side.url} is missing or empty, so the positions of the sources "
                "are unknown: restore it from a backup, or make the blueprint again"
            )
            return
    if facts.half_done is not None and facts.half_done.begun.rows != digest:
        return
    yield from of_logs(old)
    yield from facts.lost_logs
    yield from of_stores(old)
    yield from of_audit(old)
    yield from of_release(replace(new, half_done=facts.half_done), new.structure, spark)
    if goal.partitions is not None and not 0 < goal.partitions <= MOST_PARTITIONS:
        yield f"--partitions {goal.partitions} is not between 1 and {MOST_PARTITIONS:,}"
    if old.origin is Origin.OWN:
        yield from _of_job(facts, goal)
    else:
        yield from _of_confs(facts)


def _of_job(facts: MigrationFacts, goal: Migrate) -> Iterator[str]:
    """Yield the reasons that only a job root has."""
    old, new = facts.old.binding, facts.blueprint.binding
    assert old is not None
    assert new is not None
    if facts.blueprint.facts.stopped.structure is Structure.V1:
        yield (
            "the blueprint has structure V1, in which migrate writes no job root: make the blueprint with structure V2. To "
            f"continue in V1, run afterwards: statekeeper switch {shlex.quote(facts.destination)} --to v1"
        )
    if goal.new_query:
        yield (
            "--new-query is not for a job root, whose query has its id in another checkpoint: omit it. To give the new "
            f"root to another query, run afterwards: statekeeper claim {shlex.quote(facts.destination)} --checkpoint "
            "CHECKPOINT"
        )
    if goal.partitions is not None and goal.partitions > old.key_groups:
        yield (
            f"--partitions {goal.partitions} is more than the {old.key_groups} key groups of the root, and a partition has "
            f"at least one: choose at most {old.key_groups}"
        )


def _of_destination(facts: MigrationFacts, digest: str) -> Iterator[str]:
    if facts.half_done is not None:
        begun = facts.half_done.begun
        if begun.rewrite is not RewriteKind.MIGRATE or begun.rows != digest:
            yield (
                f"the destination {facts.destination} has an unfinished {begun.described} from other inputs: the old "
                f"checkpoint, the blueprint or the options have changed since. To remove what it wrote, run: "
                f"{begun.reversing.replace('ROOT', shlex.quote(facts.destination))}. Then run this command again"
            )
    elif facts.existing is not None:
        yield (
            f"the destination {facts.destination} is not empty: it contains {facts.existing}. Choose an empty destination"
        )


def _of_confs(facts: MigrationFacts) -> Iterator[str]:
    """Yield the settings with which the rows of one query are not those of the other."""
    old, new = facts.old.facts.stopped, facts.blueprint.facts.stopped
    for side, conf in ((facts.old, old.conf), (facts.blueprint, new.conf)):
        if conf.encoding != UNSAFE_ROW:
            yield from _of_avro(side, conf)
    if old.conf.is_strictly_distributed != new.conf.is_strictly_distributed:
        yield (
            "one of both queries was first started before Spark 3.3, which may partition rows by some columns of their "
            "key: keep the state with a savepoint and statekeeper load"
        )
    logs = [side.offsets for side in (facts.old, facts.blueprint)]
    if any(log.is_continuous for log in logs):
        yield "one of both queries uses continuous processing, which has no batches: use micro-batches"
    before, after = (log.conf for log in logs)
    for name in _FORMATS:
        if name in before and name in after and before[name] != after[name]:
            yield (
                f"{name} is {before[name]} in the old query and {after[name]} in the blueprint: make the blueprint again "
                f"with {name}={before[name]}"
            )
    has_sinks = [
        parse_commit(one.commit.encode(), names.commits(one.batch or 0)).sinks is not None for one in (old, new)
    ]
    if has_sinks[0] != has_sinks[1]:
        yield (
            "only one of both queries has sinks with names, which the commit log contains: make the blueprint again with "
            "the same setting of spark.sql.streaming.queryEvolution.enableSinkEvolution"
        )


def _of_avro(side: Side, conf: StateConf) -> Iterator[str]:
    """Yield why rows that are not encoded as UnsafeRow cannot be decoded or encoded."""
    families = [family for one in side.facts.operators for family in families_of(one).values()]
    is_known = conf.encoding == AVRO and not {Spark.V4_0, Spark.V4_1} & set(conf.written_by)
    if not is_known or any(family.avro is None for family in families):
        yield (
            f"the query of {side.url} encodes its rows as {conf.encoding}, which this release decodes only for "
            "transformWithState of Spark 4.2 and later: use "
            f"spark.sql.streaming.stateStore.encodingFormat={UNSAFE_ROW}"
        )
        return
    if any(family.avro != AvroIds(0, 0) for family in families):
        yield (
            f"the rows of {side.url} have had more than one schema, which this release does not decode in Avro: make a new "
            "blueprint, or keep the old query"
        )
    for family in families:
        for columns in (family.key, family.value):
            try:
                require_supported(columns)
            except UnsupportedType as error:
                yield f"{error.what}: {error.hint}"


def _of_rules(facts: MigrationFacts, operators: Sequence[Matched], partitions: int) -> Iterator[str]:
    """Yield why rows cannot be moved to another number of partitions."""
    for one in operators:
        if one.old is None or one.new.is_lone:
            continue
        if one.old.partitions != partitions:
            for rules in one.old.rules.values():
                if isinstance(rules, StatekeeperError):
                    yield f"{rules.what}: {rules.hint}" if rules.hint else rules.what


def _of_space(facts: MigrationFacts, groups: Sequence[StoreGroup]) -> Iterator[str]:
    needed = sum(group.read_bytes for group in groups)
    free = facts.free_at_destination
    if free is not None and needed > free:
        yield f"the new snapshots need about {needed:,} bytes, but {free:,} are free in {facts.destination}"


# -- groups of stores --------------------------------------------------------------------------------------------------


def _groups(facts: MigrationFacts, operators: Sequence[Matched], partitions: int) -> Iterator[StoreGroup]:
    old, new = facts.old.facts.stopped, facts.blueprint.facts.stopped
    for one in operators:
        count = one.new.partitions if one.new.is_lone else partitions
        for name in one.new.stores:
            place = (None if one.old is None else one.old.operator), name
            sources = tuple(s for s in old.stores if (s.store.operator, s.store.store) == place)
            rules = None if one.old is None else one.old.rules[name]
            moves = len(sources) != count and not one.new.is_lone
            yield StoreGroup(
                operator=one.new.operator,
                name=name,
                sources=sources,
                targets=tuple(StorePath(one.new.operator, number, name, new.conf.provider) for number in range(count)),
                rules=rules if moves and not isinstance(rules, StatekeeperError) else None,
                conversion=_conversion([taken for taken in one.stores if taken.store == name], one, old.conf, new.conf),
            )


def _conversion(
    stores: Sequence[Taken], operator: Matched, before: StateConf, after: StateConf
) -> Conversion | ByFamily | None:
    """Return the conversion of the rows of a store; None if they keep their bytes."""
    if operator.old is None:
        return None
    found = {one.family: _of_family(one, before, after) for one in stores if one.before is not None}
    if None in found:
        return found[None]
    before_families = {family for _, family in families_of(operator.old)}
    if before_families <= found.keys() and not any(found.values()):
        return None
    return ByFamily({name: one for name, one in found.items() if name is not None})


def _of_family(taken: Taken, before: StateConf, after: StateConf) -> MigratedRows | None:
    old, new = taken.before, taken.after
    assert old is not None
    has_lists = taken.family is not None
    is_same = (
        taken.columns is None
        and is_timed(old) == is_timed(new)
        and same_keys(old, new)
        and before.row_checksums == after.row_checksums
        and (not has_lists or before.merge_delimiter == after.merge_delimiter)
        and before.provider is after.provider
    )
    if is_same:
        return None
    return MigratedRows(
        before=old,
        after=new,
        conf_before=before,
        conf_after=after,
        columns=taken.columns or _unchanged(new),
        skip=0 if taken.family is None else FAMILY_BYTES,
    )


def _unchanged(layout: Family) -> tuple[MappedColumn, ...]:
    return tuple(MappedColumn(one, place) for place, one in enumerate(value_columns(layout)))


def names_provider(planned: MigrationPlan) -> str:
    """The provider and the structure afterwards, for display."""
    is_hdfs = planned.provider is Provider.HDFS_BACKED
    return f"{planned.provider.value}{'' if is_hdfs else f' in structure {planned.structure.value}'}"
