"""Spark starts exactly if the audit says so, also with lost or edited logs; the command in the finding leads to a start."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.maintenance.upkeep.audit import Severity, gather, judge
from statekeeper.statestore.storage import open_storage
from tests.interop.oracle import FAILS, OTHER, Twin
from tests.support.damage import LOST_LOGS, REPAIRED, deleted
from tests.support.twins import statekeeper

pytestmark = pytest.mark.spark

FORMS = ("v1-aggregation", "v2-aggregation")


@pytest.fixture(scope="module")
def twins(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Twin]:
    return {form: Twin(spark, form, tmp_path_factory.mktemp(form)).run() for form in FORMS}


IN_V1 = ("offsets before the newest", "more partitions", "fewer partitions", "newest commit torn")


@pytest.mark.parametrize(
    ("form", "case"), [(form, case) for form in FORMS for case in LOST_LOGS if form.startswith("v2") or case in IN_V1]
)
def test_spark_does_not_start_with_lost_logs_and_starts_after_the_command_of_the_audit(
    twins: dict[str, Twin], form: str, case: str
) -> None:
    damage, _, verb = LOST_LOGS[case]
    twin = twins[form]
    query = twin.copied()
    damage(query.checkpoint)
    assert not judge(gather(open_storage(query.root))).restart.as_is
    assert twin.sparks_word(query)[0] in (FAILS, OTHER)
    query = twin.copied()
    damage(query.checkpoint)
    arguments = ("repair", query.root) if verb == REPAIRED else ("rewind", query.root, "--to-batch", "1")
    statekeeper(*arguments, "--apply", "--confirm-stopped")
    assert judge(gather(open_storage(query.root))).restart.as_is
    # After a rewind, Spark first runs batch 2 again, from the same file.
    query.run(1)
    assert any(twin.outputs.values())
    assert {batch: query.outputs[batch] for batch in twin.outputs} == twin.outputs


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("lost", ["commits/1", "commits/0", "offsets/0"])
def test_spark_starts_without_the_older_logs_about_which_the_audit_only_warns(
    twins: dict[str, Twin], form: str, lost: str
) -> None:
    query = twins[form].copied()
    deleted(lost)(query.checkpoint)
    found = judge(gather(open_storage(query.root)))
    assert found.restart.as_is
    assert {one.severity for one in found.findings} <= {Severity.WARNING}
    query.run(1)
    assert {batch: query.outputs[batch] for batch in twins[form].outputs} == twins[form].outputs
