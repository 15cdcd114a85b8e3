"""`statekeeper.toml`: its keys apply, and an error names a wrong key."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.durations import parse_duration
from statekeeper.statestore.base.errors import BadConfiguration
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy
from statekeeper.statestore.maintenance.verbs.config import Configuration, Mode, Policies, load
from statekeeper.statestore.storage import StorageSpec
from statekeeper.statestore.storage.query_metrics import Prices


def written(folder: Path, text: str) -> Path:
    path = folder / "statekeeper.toml"
    path.write_text(text)
    return path


def test_keys_of_a_root_override_the_defaults(tmp_path: Path) -> None:
    found = load(
        written(
            tmp_path,
            """
            [defaults.snapshot]
            changelogs = 20
            [defaults.retention]
            grace = "90s"
            [roots.flights]
            url = "state/flights"
            mode = "snapshots"
            retention = { versions = 7 }
            [roots.orders]
            url = "s3://bucket/orders"
            storage = { endpoint_url = "http://127.0.0.1:9000" }
            """,
        )
    )
    flights = found.find("flights")
    assert flights.spec == StorageSpec(str(tmp_path / "state/flights")), "from the file's own folder"
    assert flights.policies.mode is Mode.SNAPSHOTS
    assert flights.policies.snapshot == SnapshotPolicy(changelogs=20)
    assert flights.policies.retention == RetentionPolicy(versions=7, grace_seconds=90.0)
    orders = found.find("s3://bucket/orders")
    assert orders.name == "orders", "a configured root is found by its URL, too"
    assert orders.spec.options == (("endpoint_url", "http://127.0.0.1:9000"),)
    assert found.find("elsewhere").policies == found.defaults


def test_each_folder_of_a_parent_is_a_root_with_the_keys_of_the_parent(tmp_path: Path) -> None:
    found = load(
        written(
            tmp_path,
            """
            [parents.jobs]
            url = "s3://bucket/jobs"
            below = "checkpoints/state"
            forget_after = "10m"
            mode = "observe"
            storage = { region = "eu-1" }
            """,
        )
    )
    orders = found.find("jobs.orders")
    assert orders == found.parents["jobs"].child("orders")
    assert orders.name == "jobs.orders"
    assert orders.spec == StorageSpec("s3://bucket/jobs/orders/checkpoints/state", (("region", "eu-1"),))
    assert orders.policies.mode is Mode.OBSERVE
    assert found.parents["jobs"].forget_seconds == 600
    assert found.find("jobs.a/../b").spec.url == "jobs.a/../b", "what cannot be a folder's name is taken as a URL"
    with pytest.raises(ValueError, match="is not a valid root name"):
        found.parents["jobs"].child("a b")


def test_a_root_is_found_by_any_spelling_of_its_url(tmp_path: Path) -> None:
    found = load(
        written(
            tmp_path,
            """
            [roots.clicks]
            url = "s3a://bucket/clicks/"
            mode = "observe"

            [parents.jobs]
            url = "s3a://bucket/jobs/"
            below = "state"
            mode = "observe"
            """,
        )
    )
    for url in ("s3://bucket/clicks", "s3a://bucket/clicks", "s3a://bucket/clicks/"):
        assert found.find(url) == found.roots["clicks"]
    for url in ("s3://bucket/jobs/orders/state", "s3a://bucket/jobs/orders/state/"):
        assert found.find(url) == found.parents["jobs"].child("orders")
        assert found.find(url).policies.mode is Mode.OBSERVE
    for url in (
        "s3://bucket/jobs/orders",
        "s3://bucket/jobs/orders/state/0",
        "s3://bucket/jobs/a b/state",
        "s3://jobs",
    ):
        assert found.find(url).policies.mode is None, "a place of its own"


def test_the_default_mode_is_full_for_own_roots_and_observe_for_native_checkpoints() -> None:
    policies = Configuration().find("anything").policies
    assert policies.mode_for(Origin.OWN) is Mode.FULL
    assert policies.mode_for(Origin.NATIVE) is Mode.OBSERVE
    assert Policies(mode=Mode.FULL).mode_for(Origin.NATIVE) is Mode.FULL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[roots.a]\nurl = 3", "roots.a.url is missing or not a string"),
        (
            "[roots.a]\nurl = 'x'\nretension = {}",
            "roots.a.retension is unknown -> use one of snapshot, retention, mode",
        ),
        ("[roots.a]\nurl = 'x'\nretention = {versions = 0}", "roots.a.retention.versions is 0 -> write a whole number"),
        ("[defaults.retention]\ngrace = 3600", "defaults.retention.grace is 3600 -> write a number and a unit"),
        ("[defaults]\nmode = 'all'", "defaults.mode is 'all' -> write one of observe, snapshots, full"),
        ("[parents.a]\nurl = 'x'\nbelow = '../b'", "parents.a.below is '../b' -> write a relative folder: below = "),
        ("[parents.a]\nurl = 'x'\nforget_after = 3", "parents.a.forget_after is 3 -> write a number and a unit"),
        ("[roots.'a,b']\nurl = 'x'", "roots.'a,b' is not a valid name -> use letters"),
        ("roots = 1", "roots has type int, but must be a table -> write it as [roots]"),
        ("[prices]\nper_1000_writes = -1", "prices.per_1000_writes is -1 -> write the dollars of 1,000 requests"),
        ("[prices]\nper_1000_reads = '1'", "prices.per_1000_reads is '1' -> write the dollars of 1,000 requests"),
        ("[prices]\nper_read = 1", "prices.per_read is unknown -> use one of per_1000_writes, per_1000_reads"),
        ("[roots", "correct the TOML syntax"),
    ],
)
def test_an_error_names_the_wrong_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadConfiguration) as refused:
        load(written(tmp_path, text))
    assert said in str(refused.value)
    assert "statekeeper.toml" in str(refused.value)


def test_an_error_for_a_missing_file_names_it_and_the_option_for_another(tmp_path: Path) -> None:
    with pytest.raises(
        BadConfiguration, match=r"nowhere\.toml: No such file or directory -> set --config or STATEKEEPER_CONFIG"
    ):
        load(tmp_path / "nowhere.toml")


def test_prices_that_are_not_given_have_defaults(tmp_path: Path) -> None:
    found = load(written(tmp_path, "[prices]\nper_1000_writes = 1"))
    assert found.prices == Prices(per_1000_writes=1.0)


def test_durations_are_written_with_their_unit() -> None:
    assert [parse_duration(text) for text in ("90s", "10m", "1h", "7d", "1.5h")] == [90, 600, 3600, 604_800, 5400]
    for text in ("", "90", "1 hour", "-1h", "h"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text)
