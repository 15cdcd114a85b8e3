"""Compares the deep audit of damaged checkpoints with Spark's start and reader. `python -m tests.interop.oracle`

Each case copies a native checkpoint, damages one file, runs a deep audit, reads the state with Spark's reader, and runs the
query for one batch. The undamaged twin gives the correct rows.

If Spark fails or shows other rows, the case must be a finding or in a class that the audit lists as not proved. The command
prints a table, and its exit code is 1 if a case is neither. `var/oracle/` contains the results, one line per case, by seed.
An interrupted command continues from them.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import pyarrow.parquet as pq
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from statekeeper.pipelines.startup.session import spark_session
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import open_storage
from tests.fixtures.write_checkpoints import FOLDER as FIXTURES
from tests.fixtures.write_checkpoints import FORMS
from tests.interop import damages
from tests.interop.damages import Damage
from tests.support.native import FORMAT, OPERATORS, NativeQuery, rows, state
from tests.support.unpacked import unpacked

State = Mapping[str, Counter[str]]
RESULTS = Path("var/oracle")
SPARK_IS_GONE = (ConnectionError, Py4JNetworkError)
"""Its process died: nothing that it would say of a checkpoint."""
_BUSY = ("Python worker failed to connect back", "Timed out while waiting for the Python worker")
FINDING, UNPROVEN, CLEAN = "finding", "unproven", "clean"
SAME, OTHER, FAILS, BUSY = "same", "other rows", "fails", "busy"


@dataclass(frozen=True)
class Result:
    """One case. `told`: the codes of the audit's findings, or the class of its unproved property; `why`: Spark's error."""

    case: int
    form: str
    damage: str
    file_class: str
    file: str
    audit: str
    told: tuple[str, ...]
    spark: str
    why: str = ""

    @property
    def is_missed(self) -> bool:
        """Return whether Spark fails on a checkpoint that the audit accepts."""
        return self.audit == CLEAN and self.spark != SAME


class Twin:
    """A checkpoint of one form as Spark left it, in the place where all its copies are, and the rows that are right."""

    def __init__(self, spark: SparkSession | None, form: str, folder: Path) -> None:
        [archive] = FIXTURES.glob(f"spark-*-{form}.zip")
        self.form, self.spark, self.folder = form, spark, folder
        whole = unpacked(archive, folder).rename(folder / "whole")
        self.inputs = len(list((whole / "sources" / "0").glob("[0-9]*")))
        for side in ("left", "right"):
            (folder / side).mkdir()
            for batch in range(self.inputs):
                path = folder / side / f"{batch:05}.parquet"
                pq.write_table(rows(batch, side), path, coerce_timestamps="us")
                os.utime(path, (batch, batch))
        self._states: dict[int, State] = {}
        self.outputs: Mapping[int, Counter[str]] = {}
        self.end: State = {}

    def run(self) -> Twin:
        """Read the expected state with Spark."""
        query = self.copied()
        heads = catalog.heads(open_storage(query.root))
        assert heads is not None
        self._states = {heads.batch: state(query)}
        query.run(1)
        self.outputs, self.end = dict(query.outputs), _at_the_end(query)
        return self

    def copied(self) -> NativeQuery:
        """The query, on a fresh copy of the checkpoint."""
        form = FORMS[self.form]
        operator = OPERATORS[form.operator]
        # Of a join the view of a side is of both its stores.
        operator = replace(operator, views=[view for view in operator.views if "storeName" not in view])
        query = NativeQuery(
            cast(SparkSession, self.spark), self.folder, operator, {FORMAT: form.structure, **form.confs}
        )
        shutil.rmtree(query.checkpoint, ignore_errors=True)
        shutil.copytree(self.folder / "whole", query.checkpoint)
        query.batches = self.inputs
        return query

    def _state(self, batch: int) -> State:
        """The rows that are right at a batch. Of any but the newest a whole copy has to be asked."""
        if batch not in self._states:
            aside = self.folder / "aside"
            damaged = (self.folder / "checkpoint").rename(aside)
            self._states[batch] = state(self.copied(), batch=batch)
            shutil.rmtree(self.folder / "checkpoint")
            damaged.rename(self.folder / "checkpoint")
        return self._states[batch]

    def sparks_word(self, query: NativeQuery) -> tuple[str, str]:
        """Return Spark's result for a checkpoint: that of its reader, then that of a start with one more batch."""
        try:
            newest = catalog.newest_batch(open_storage(query.root))
            shown = state(query)
            if newest is None or shown != self._state(newest):
                return OTHER, f"the reader, at batch {newest}"
            query.run(1)
            if any(query.outputs.get(batch) != output for batch, output in self.outputs.items()):
                return OTHER, "the output"
            return (SAME, "") if _at_the_end(query) == self.end else (OTHER, "the reader, at the end")
        except Exception as error:
            if is_of_the_machine(error):
                return BUSY, ""
            if isinstance(error, SPARK_IS_GONE):
                raise
            return FAILS, f"{type(error).__name__}: {str(error)[:300]}"


def _at_the_end(query: NativeQuery) -> State:
    """One view is enough after the start has loaded all stores, and the output was right."""
    return state(_with_views(query, query.operator.views[:1]))


def _with_views(query: NativeQuery, views: Sequence[Mapping[str, str]]) -> NativeQuery:
    seen = copy.copy(query)
    seen.operator = replace(query.operator, views=views)
    return seen


def is_of_the_machine(error: Exception) -> bool:
    """Whether Spark failed since the machine was too busy for it."""
    return any(text in str(error) for text in _BUSY)


def audits_word(root: str, scratch: Path, damage: Damage) -> tuple[str, tuple[str, ...]]:
    """Return the result of the audit."""
    try:
        found = audit.judge(audit.gather(open_storage(root), scratch=scratch))
    except StatekeeperError as error:
        return FINDING, (error.code,)
    if found.findings:
        return FINDING, tuple(sorted({finding.kind.code for finding in found.findings}))
    unproven = damages.unproven(damage, found)
    return (UNPROVEN, (unproven,)) if unproven else (CLEAN, ())


class Oracle:
    """All twins of one session; without a session the audit alone can be asked."""

    def __init__(self, spark: SparkSession | None, folder: Path, forms: Sequence[str] = tuple(FORMS)) -> None:
        self._spark, self._folder, self._forms = spark, folder, forms
        self._twins: dict[str, Twin] = {}

    def ask(self, seed: int, case: int) -> Result:
        """One case: the same for the same seed and number."""
        chance = random.Random(f"{seed} {case}")
        form = self._forms[case % len(self._forms)]
        twin = self._twin(form)
        begun = chance.getstate()
        said = BUSY
        while said == BUSY:
            chance.setstate(begun)
            query = twin.copied()
            damage = damages.some_damage(query.checkpoint, chance)
            told, what = audits_word(query.root, self._folder / "scratch", damage)
            said, why = twin.sparks_word(query)
        return Result(case, form, damage.kind, damage.file_class, damage.file, told, what, said, why)

    def audited_again(self, seed: int, before: Result) -> Result:
        """Audit a case again whose result in Spark is known."""
        twin = self._twin(before.form)
        query = twin.copied()
        damage = damages.some_damage(query.checkpoint, random.Random(f"{seed} {before.case}"))
        assert (damage.kind, damage.file) == (before.damage, before.file), before
        told, what = audits_word(query.root, self._folder / "scratch", damage)
        return replace(before, audit=told, told=what)

    def _twin(self, form: str) -> Twin:
        while form not in self._twins:
            folder = self._folder / form
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                twin = Twin(self._spark, form, folder)
                self._twins[form] = twin if self._spark is None else twin.run()
            except Exception as error:
                if not is_of_the_machine(error):
                    raise
        return self._twins[form]


def table(results: Sequence[Result]) -> str:
    """Return a Markdown table of damages by the results of the audit and of Spark."""
    columns = [(told, said) for told in (FINDING, UNPROVEN, CLEAN) for said in (SAME, OTHER, FAILS)]
    counts = Counter((one.file_class, one.damage, one.audit, one.spark) for one in results)
    head = "| file | damage | " + " | ".join(f"{told}, Spark {said}" for told, said in columns) + " |"
    lines = [head, "|---|---|" + "---:|" * len(columns)]
    for file_class, kind in sorted({(one.file_class, one.damage) for one in results}):
        cells = [f"{counts[file_class, kind, told, said] or ''}" for told, said in columns]
        lines.append(f"| {file_class} | {kind} | " + " | ".join(cells) + " |")
    totals = Counter((one.audit, one.spark) for one in results)
    lines.append("| **all** | | " + " | ".join(f"**{totals[column]}**" for column in columns) + " |")
    classes = Counter(one.told[0] for one in results if one.audit == UNPROVEN and one.spark != SAME)
    lines += ["", *(f"not proved: {name}: {count}" for name, count in sorted(classes.items()))]
    return "\n".join(lines)


def _session() -> SparkSession:
    spark = spark_session("oracle", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("OFF")
    return spark


def asked(oracle: Oracle, seed: int, cases: Sequence[int], tell: Callable[[Result], None]) -> list[Result]:
    """The results of these cases."""
    found = []
    for case in cases:
        found.append(oracle.ask(seed, case))
        tell(found[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--audit-again", action="store_true", help="ask the audit alone about the cases that are known")
    parser.add_argument("--case", type=int, action="append", help="only this one, again")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{options.seed}.jsonl"
    lines = path.read_text().splitlines() if path.exists() and not options.case else []
    done = {line["case"]: Result(**{**line, "told": tuple(line["told"])}) for line in map(json.loads, lines)}
    todo = options.case or [case for case in range(options.cases) if case not in done]
    # The same folder each time: its name is in the files that are damaged.
    folder = Path(tempfile.gettempdir()) / f"oracle-{options.seed:08}"
    shutil.rmtree(folder, ignore_errors=True)
    if options.audit_again:
        alone = Oracle(None, folder)
        done = {case: alone.audited_again(options.seed, one) for case, one in sorted(done.items())}
        path.write_text("".join(f"{json.dumps(asdict(one))}\n" for one in done.values()))
    elif todo:
        oracle = Oracle(_session(), folder)

        def tell(result: Result) -> None:
            done[result.case] = result
            if not options.case:
                with path.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
            told = ", ".join(result.told)
            missed = "   MISSED" if result.is_missed else ""
            print(
                f"{result.case:4} {result.form}: {result.damage} {result.file}: audit {result.audit} {told}; "
                f"Spark {result.spark}{missed} {result.why[:160] if missed else ''}",
                flush=True,
            )

        try:
            asked(oracle, options.seed, todo, tell)
        except SPARK_IS_GONE:
            sys.exit(f"Spark's process died after {len(done)} cases: the same command continues from there")
    shutil.rmtree(folder, ignore_errors=True)
    shown = [done[case] for case in sorted(done) if case < options.cases or options.case]
    print(f"\n{len(shown)} cases, seed {options.seed}\n\n{table(shown)}")
    missed = [one for one in shown if one.is_missed]
    print(f"\nmissed: {len(missed)}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
