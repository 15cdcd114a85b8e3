"""`statekeeper.toml`: its keys apply, and an error names a wrong key."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.durations import parse_duration
from statekeeper.statestore.base.errors import BadConfiguration
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy
from statekeeper.statestore.maintenance.verbs.config import (
    MOST_FILE_BYTES,
    Configuration,
    Mode,
    Outputs,
    Policies,
    Schedule,
    files_of,
    fleet_name,
    load,
    load_all,
    settings,
)
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


def test_the_roots_and_the_folders_of_a_file_have_its_places_of_history_and_reports(tmp_path: Path) -> None:
    found = load(
        written(
            tmp_path,
            """
            [history]
            url = "history"
            keep = "90d"
            storage = { endpoint_url = "http://127.0.0.1:9000" }
            [report]
            url = "s3://lake/reports"
            [roots.a]
            url = "a"
            [parents.jobs]
            url = "jobs/*"
            """,
        )
    )
    for outputs in (found.find("a").outputs, found.find("jobs.orders").outputs, found.find("s3://other/root").outputs):
        assert outputs.history == StorageSpec(str(tmp_path / "history"), (("endpoint_url", "http://127.0.0.1:9000"),))
        assert outputs.keep_seconds == 90 * 86_400
        assert outputs.report == StorageSpec("s3://lake/reports")
    assert load(written(tmp_path, "[roots.a]\nurl = 'a'")).find("a").outputs == Outputs()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[roots.a]\nurl = 3", "roots.a.url is missing or not a string"),
        (
            "[roots.a]\nurl = 'x'\nretension = {}",
            "roots.a.retension is unknown -> did you mean retention? Use one of snapshot, retention, mode",
        ),
        ("[roots.a]\nurl = 'x'\nretention = {versions = 0}", "roots.a.retention.versions is 0 -> write a whole number"),
        ("[defaults.retention]\ngrace = 3600", "defaults.retention.grace is 3600 -> write a number and a unit"),
        ("[defaults]\nmode = 'all'", "defaults.mode is 'all' -> write one of observe, snapshots, full"),
        ("[defaults]\nexecutor = 'yarn'", "defaults.executor is 'yarn' -> write one of local, spark"),
        ("[spark]\nmaster = 'yarn'", "spark.master is unknown -> use one of submit"),
        (
            "[spark]\nsubmit = 'spark-submit'",
            'spark.submit is not a list of strings -> write a list of words: submit = ["',
        ),
        ("[spark]\nsubmit = []", "spark.submit is empty -> write a list of words"),
        (
            "[spark]\nsubmit = ['spark-submit', '--conf', 'spark.executorEnv.AWS_SECRET_ACCESS_KEY=hunter2']",
            "spark.submit has a secret: 'spark.executorEnv.AWS_SECRET_ACCESS_KEY'; each user of the machine sees the words",
        ),
        (
            "[spark]\nsubmit = ['a', 'fs.s3a.secret.key=hunter2']",
            "spark.submit has a secret: 'fs.s3a.secret.key'; each",
        ),
        (
            "[spark]\nsubmit = ['a', 'https://me:hunter2@proxy']",
            "spark.submit has a secret: 'https://me:***@proxy'; each",
        ),
        ("[parents.a]\nurl = 'x'\nbelow = '../b'", "parents.a.below is '../b' -> write a relative folder: below = "),
        ("[parents.a]\nurl = 'x'\nforget_after = 3", "parents.a.forget_after is 3 -> write a number and a unit"),
        ("[roots.'a,b']\nurl = 'x'", "roots.'a,b' is not a valid name -> use letters"),
        ("roots = 1", "roots has type int, but must be a table -> write it as [roots]"),
        ("[prices]\nper_1000_writes = -1", "prices.per_1000_writes is -1 -> write the dollars of 1,000 requests"),
        ("[prices]\nper_1000_reads = '1'", "prices.per_1000_reads is '1' -> write the dollars of 1,000 requests"),
        ("[history]\nkeep = '1d'", "history.url is missing or not a string"),
        ("[history]\nurl = 'x'\nkeep = 400", "history.keep is 400 -> write a number and a unit"),
        ("[report]\nurl = 'x'\nkeep = '1d'", "report.keep is unknown -> use one of url, storage"),
        ("[prices]\nper_gb_month = -1", "prices.per_gb_month is -1 -> write the dollars of 10^9 bytes and a month"),
        ("[prices]\ncheap = 1", "prices.cheap is unknown -> use one of per_1000_writes, per_1000_reads"),
        (
            "[roots.a]\nurl = 'x'\nsnapshoot = 1\nb = 2",
            "roots.a.snapshoot is unknown (1 more unknown key) -> did you mean snap",
        ),
        ("[roots.a]\nurl = 'x/*/y'", "roots.a.url has a * -> write the table as [parents.a]"),
        ("[parents.a]\nurl = 's3://*/x'", "parents.a.url has a * in the name of the bucket"),
        ("[parents.a]\nurl = 'x/**/y'", "parents.a.url is 'x/**/y' -> write one * for each folder"),
        ("[parents.a]\nurl = 'x/*/../y'", "parents.a.url is 'x/*/../y' -> write one * for each folder"),
        ("[policies.'a*']\nmode = 'al'", "policies.\"a*\".mode is 'al' -> write one of observe"),
        ("[policies.'a*']\nurl = 'x'", 'policies."a*".url is unknown'),
        ("[defaults.schedule]\nwindow = '9-17'", "defaults.schedule.window is '9-17' -> write start and end in UTC"),
        (
            "[defaults.schedule]\nwindow = '09:00-09:00'",
            "defaults.schedule.window is '09:00-09:00' -> write start and end",
        ),
        ("[defaults.schedule]\nmin_interval = 5", "defaults.schedule.min_interval is 5 -> write a number and a unit"),
        ("[defaults.audit]\ndeep_every = '59m'", "defaults.audit.deep_every is '59m' -> write at least 1h"),
        ("[defaults.labels]\ntier = 1", "defaults.labels.tier is not a string"),
        ("[roots", "correct the TOML syntax"),
    ],
)
def test_an_error_names_the_wrong_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadConfiguration) as refused:
        load(written(tmp_path, text)).require_valid()
    assert said in str(refused.value)
    assert "statekeeper.toml" in str(refused.value)


def test_an_error_for_a_missing_file_names_it_and_the_option_for_another(tmp_path: Path) -> None:
    with pytest.raises(
        BadConfiguration, match=r"nowhere\.toml: No such file or directory -> set --config or STATEKEEPER_CONFIG"
    ):
        load(tmp_path / "nowhere.toml")


def test_the_executor_is_a_policy_and_the_command_that_starts_spark_is_of_the_file(tmp_path: Path) -> None:
    words = ("spark-submit", "--conf", "spark.kubernetes.driver.secretKeyRef.AWS_SECRET_ACCESS_KEY=aws:secret")
    words += ("--conf", "spark.kubernetes.driver.secrets.aws=/etc/secrets")
    found = load(
        written(
            tmp_path,
            f"""
            [policies."large*"]
            executor = "spark"
            [roots.large]
            url = "large"
            [roots.small]
            url = "small"
            [parents.largest]
            url = "jobs"
            [roots.large_but_here]
            url = "here"
            executor = "local"
            [spark]
            submit = {list(words)}
            """,
        )
    )
    roots = [found.find(name) for name in ("large", "small", "largest.orders", "large_but_here", "s3://bucket/other")]
    assert [one.policies.executor.value for one in roots] == ["spark", "local", "spark", "local", "local"]
    assert {one.submit for one in roots} == {words}
    assert "hunter2" not in str(found)


def test_prices_that_are_not_given_have_defaults(tmp_path: Path) -> None:
    found = load(written(tmp_path, "[prices]\nper_1000_writes = 1"))
    assert found.prices == Prices(per_1000_writes=1.0)


# -- policies by pattern ------------------------------------------------------------------------------------------------

PRECEDENCE = """
[defaults]
mode = "observe"
team = "default-of-file"
[defaults.retention]
versions = 1
grace = "1s"
[policies."*"]
retention = { versions = 2 }
labels = { tier = "3", area = "all" }
[policies."pay*"]
retention = { versions = 3, grace = "3s" }
labels = { tier = "1" }
[policies."jobs.pay*"]
mode = "snapshots"
[parents.jobs]
url = "jobs/*/state"
retention = { versions = 4 }
[roots.pay]
url = "pay"
retention = { versions = 5 }
[roots.payments]
url = "payments"
[roots.orders]
url = "orders"
"""


@pytest.mark.parametrize(
    ("query", "key", "value", "table"),
    [
        ("pay", "retention.versions", "5", "roots.pay"),
        ("pay", "retention.grace", "3s", 'policies."pay*"'),
        ("pay", "mode", "observe", "defaults"),
        ("pay", "labels.tier", "1", 'policies."pay*"'),
        ("pay", "labels.area", "all", 'policies."*"'),
        ("payments", "retention.versions", "3", 'policies."pay*"'),
        ("orders", "retention.versions", "2", 'policies."*"'),
        ("orders", "retention.grace", "1s", "defaults"),
        ("orders", "team", "default-of-file", "defaults"),
        ("orders", "snapshot.changelogs", "50", ""),
        ("orders", "snapshot.restore_target", "none", ""),
        ("orders", "schedule.window", "none", ""),
        ("orders", "limits.record_mib", "64", ""),
        ("jobs.pay-1", "retention.versions", "4", "parents.jobs"),
        ("jobs.pay-1", "mode", "snapshots", 'policies."jobs.pay*"'),
        ("jobs.clicks", "mode", "observe", "defaults"),
    ],
)
def test_a_root_precedes_its_parent_then_the_last_pattern_then_the_defaults(
    tmp_path: Path, query: str, key: str, value: str, table: str
) -> None:
    root = load(written(tmp_path, PRECEDENCE)).find(query)
    found = {one.key: one for one in settings(root.policies, root.layers)}[key]
    assert (found.value, found.table) == (value, table)
    assert found.file == (str(tmp_path / "statekeeper.toml") if table else "")


def test_limits_of_a_pattern_are_in_the_spec_of_its_roots(tmp_path: Path) -> None:
    text = "[policies.'a*']\nlimits = {record_mib = 128}\n[roots.a]\nurl = 'x'\n[parents.ab]\nurl = 'y'"
    found = load(written(tmp_path, text))
    for name in ("a", "ab.c"):
        assert found.find(name).spec.limits.record_bytes == 128 * 1024 * 1024


def test_a_schedule_is_a_window_of_each_day_and_a_least_interval(tmp_path: Path) -> None:
    text = "[roots.a]\nurl = 'x'\nschedule = {window = '22:00-06:30', min_interval = '15m'}\n"
    more = "[roots.b]\nurl = 'y'\nschedule.window = '00:00-24:00'"
    found = load(written(tmp_path, text + more)).require_valid()
    assert found.roots["a"].policies.schedule == Schedule((22 * 60, 6 * 60 + 30), 900.0)
    assert found.roots["b"].policies.schedule == Schedule((0, 24 * 60))


# -- patterns of URLs ---------------------------------------------------------------------------------------------------


def test_a_pattern_in_the_url_of_a_parent_names_its_roots(tmp_path: Path) -> None:
    found = load(
        written(
            tmp_path,
            """
            [parents.payments]
            url = "s3a://b/payments/*/checkpoint"
            [parents.all]
            url = "s3://b/teams/*/jobs/v2-*/state"
            mirror = { url = "s3://replica/all" }
            [parents.local]
            url = "*/checkpoint"
            """,
        )
    ).require_valid()
    assert found.find("payments.orders").spec.url == "s3://b/payments/orders/checkpoint"
    nested = found.find("all.crm.v2-orders")
    assert nested.spec.url == "s3://b/teams/crm/jobs/v2-orders/state"
    assert nested.mirror is not None
    assert nested.mirror.url == "s3://replica/all/crm/v2-orders"
    assert found.find(nested.spec.url).name == "all.crm.v2-orders"
    assert found.find("s3a://b/payments/orders/checkpoint/").name == "payments.orders"
    assert found.find("s3://b/teams/crm/jobs/v1-orders/state").name.startswith("s3://"), "the pattern does not match"
    assert found.find("local.orders").spec.url == str(tmp_path / "orders/checkpoint")
    for folder in ("crm", "crm.v1-orders", "crm.v2-a.b", "crm."):
        with pytest.raises(ValueError, match="is not a valid root name"):
            found.parents["all"].child(folder)


def test_a_root_has_tables_of_its_state_and_a_parent_gives_each_checkpoint_a_folder(tmp_path: Path) -> None:
    found = load(
        written(
            tmp_path,
            """
            [roots.orders]
            url = "orders"
            [roots.orders.tables.open]
            url = "s3://lake/open"
            operator = 1
            columns = ["key.k", "total"]
            rename = { total = "sum" }
            where = ["sum > 3"]
            partition_by = ["k"]
            before_images = true
            [parents.jobs]
            url = "jobs/*"
            tables.all = { url = "lake" }
            """,
        )
    ).require_valid()
    [table] = found.roots["orders"].state_tables
    assert (table.name, table.url) == ("open", "s3://lake/open")
    assert table.options == {
        "operator": 1,
        "store": None,
        "family": None,
        "columns": ("key.k", "total"),
        "rename": {"total": "sum"},
        "partition_by": ("k",),
        "where": ("sum > 3",),
        "before_images": True,
        "plain_files": False,
    }
    [of_child] = found.find("jobs.crm").state_tables
    assert of_child.url == str(tmp_path / "lake" / "crm")


@pytest.mark.parametrize(
    "table",
    [
        "a = 1",
        "a = {}",
        'a = { url = "x", operator = "one" }',
        'a = { url = "x", where = "k = 1" }',
        'a = { url = "x", plain_files = "yes" }',
        'a = { url = "x", rename = { k = 1 } }',
        'a = { url = "x", unknown = 1 }',
        '"a b" = { url = "x" }',
    ],
)
def test_a_wrong_table_of_state_stops_its_root(tmp_path: Path, table: str) -> None:
    found = load(written(tmp_path, f'[roots.orders]\nurl = "orders"\n[roots.orders.tables]\n{table}\n'))
    with pytest.raises(BadConfiguration, match=r"roots\.orders\.tables"):
        found.find("orders")


def test_a_root_has_the_tables_that_its_query_writes(tmp_path: Path) -> None:
    found = load(
        written(
            tmp_path,
            """
            [roots.orders]
            url = "orders"
            sinks.delays = { url = "s3://lake/delays", keep_readers = "3d", file_mib = 64, compact = false }
            sinks.other = { url = "other", vacuum = false, retired_queries = ["a"] }
            [parents.jobs]
            url = "jobs/*"
            sinks.all = { url = "lake" }
            """,
        )
    ).require_valid()
    delays, other = found.roots["orders"].sinks
    assert (delays.name, delays.url) == ("delays", "s3://lake/delays")
    assert delays.options == {
        "keep_readers_seconds": 3 * 86_400.0,
        "file_mib": 64,
        "no_compact": True,
        "no_vacuum": False,
        "retired_queries": (),
    }
    assert (other.no_compact, other.no_vacuum, other.retired_queries) == (False, True, ("a",))
    [of_child] = found.find("jobs.crm").sinks
    assert of_child.url == str(tmp_path / "lake" / "crm")


@pytest.mark.parametrize(
    "sink",
    [
        "a = 1",
        "a = {}",
        'a = { url = "x", keep_readers = 7 }',
        'a = { url = "x", file_mib = 0 }',
        'a = { url = "x", file_mib = true }',
        'a = { url = "x", compact = "no" }',
        'a = { url = "x", unknown = 1 }',
    ],
)
def test_a_wrong_sink_stops_its_root(tmp_path: Path, sink: str) -> None:
    found = load(written(tmp_path, f'[roots.orders]\nurl = "orders"\n[roots.orders.sinks]\n{sink}\n'))
    with pytest.raises(BadConfiguration, match=r"roots\.orders\.sinks"):
        found.find("orders")


# -- several files ------------------------------------------------------------------------------------------------------


def test_each_team_can_have_a_file_of_its_own(tmp_path: Path) -> None:
    teams = tmp_path / "teams"
    teams.mkdir()
    (teams / "crm.toml").write_text(
        "[defaults]\nteam = 'crm'\n[roots.leads]\nurl = 'leads'\n[prices]\nper_1000_reads = 9"
    )
    (teams / "pay.toml").write_text("[roots.orders]\nurl = 's3://b/orders'\n[teams.pay]\nslack = 'env:PAY'")
    (teams / ".crm.toml.swp.toml").write_text("[")
    (teams / "README.md").write_text("no configuration")
    for path in (teams, teams / "*.toml", tmp_path / "t*" / "*.toml"):
        found = load(path).require_valid()
        assert set(found.roots) == {"leads", "orders"}
        assert (found.roots["leads"].policies.team, found.roots["orders"].policies.team) == ("crm", "")
        assert found.roots["leads"].spec.url == str(teams / "leads")
        assert (found.roots["leads"].prices.per_1000_reads, found.roots["orders"].prices) == (9, Prices())
        assert found.channels_of("pay").slack == "env:PAY"
        assert found.find("elsewhere").policies == Policies(), "no file is that of an unconfigured root"
    assert [fleet_name(one) for one in (teams, teams / "*.toml", teams / "crm.toml")] == ["teams", "teams", "crm"]
    for path, said in ((tmp_path, "without a file"), (tmp_path / "x*.toml", "matches no file")):
        with pytest.raises(BadConfiguration, match=said):
            files_of(path)


def two_files(folder: Path, one: str, other: str) -> Configuration:
    (folder / "one.toml").write_text(one)
    (folder / "other.toml").write_text(other)
    return load(folder)


def test_a_broken_file_stops_only_itself(tmp_path: Path) -> None:
    found = two_files(tmp_path, "[roots.a", "[roots.b]\nurl = 'b'")
    assert list(found.roots) == ["b"]
    (broken,) = found.broken.values()
    assert broken.subject == f"file {tmp_path / 'one.toml'}"
    assert found.find("b").name == "b"
    assert found.may_name("anything")
    assert not found.may_name("b")
    with pytest.raises(BadConfiguration, match=r"one\.toml"):
        found.find("s3://may/be/in/the/broken/file")
    (tmp_path / "other.toml").write_text("[")
    with pytest.raises(BadConfiguration, match=r"one\.toml"):
        load(tmp_path)
    assert len(load_all(tmp_path).broken) == 2


@pytest.mark.parametrize("mistake", ["[roots.a\n", "[roots.a]\nurl = 'a\n", "[roots.a]\nurl = [\n", "[wrong]\n"])
def test_the_people_of_a_broken_file_are_known_from_the_tables_before_the_error(mistake: str, tmp_path: Path) -> None:
    people = '[defaults]\nteam = "a"\nowner = "ann"\n[teams.a]\nwebhook = "http://a"\n[teams.b]\nwebhook = "http://x"\n'
    found = two_files(tmp_path, f"{people}{mistake}", '[teams.b]\nwebhook = "http://b"\n')
    (broken,) = found.broken.values()
    assert (broken.owned.team, broken.owned.owner) == ("a", "ann")
    assert found.channels_of("a").webhook == "http://a"
    assert found.channels_of("b").webhook == "http://b", "a valid file counts more"
    assert list(found.roots) == []


def test_a_broken_root_or_parent_stops_only_itself_and_names_its_team(tmp_path: Path) -> None:
    text = """
    [policies."p*"]
    team = "payments"
    [roots.pay]
    url = "pay"
    modes = "full"
    owner = "ann"
    [parents.pets]
    url = 7
    [roots.orders]
    url = "orders"
    """
    found = load(written(tmp_path, text))
    assert (list(found.roots), list(found.parents)) == (["orders"], [])
    by_name = {one.name: one for one in found.broken.values()}
    assert (by_name["pay"].owned.team, by_name["pay"].owned.owner) == ("payments", "ann")
    assert by_name["pets"].owned.team == "payments"
    for name in ("pay", "pets.orders", str(tmp_path / "pay")):
        with pytest.raises(BadConfiguration):
            found.find(name)
    assert [found.may_name(one) for one in ("pay", "pets.orders", "orders", "other")] == [True, True, False, False]


def test_a_query_in_two_files_stops_only_the_two(tmp_path: Path) -> None:
    one = "[defaults]\nteam='one'\n[roots.a]\nurl='a'\n[roots.b]\nurl='b'\n[parents.p]\nurl='p'\n"
    other = "[defaults]\nteam='other'\n[roots.a]\nurl='x'\nmode='bad'\n[roots.c]\nurl='c'\n[parents.p]\nurl='q'\n"
    found = two_files(tmp_path, one, other)
    assert (sorted(found.roots), list(found.parents)) == (["b", "c"], [])
    assert sorted((one.name, one.owned.team) for one in found.broken.values()) == [
        ("a", "one"),
        ("a", "other"),
        ("p", "one"),
        ("p", "other"),
    ]
    with pytest.raises(BadConfiguration, match=r"roots\.a is also in .*other\.toml; neither is maintained"):
        found.find("a")


def test_two_names_of_one_url_stop_both(tmp_path: Path) -> None:
    one = "[roots.a]\nurl='s3://b/x'\n[roots.b]\nurl='s3a://b/x/'\nstorage={endpoint_url='http://other'}\n"
    other = "[roots.c]\nurl='s3a://b/x/'\n[roots.d]\nurl='s3://b/y'\n"
    local = f"[roots.e]\nurl='x/../y'\n[roots.f]\nurl='y'\n[roots.g]\nurl='file://{tmp_path}/y/'\n"
    found = two_files(tmp_path, one, other + local)
    assert sorted(found.roots) == ["b", "d"], "another endpoint is another place"
    assert sorted(one.name for one in found.broken.values()) == ["a", "c", "e", "f", "g"]


def test_a_team_with_two_channels_keeps_the_first(tmp_path: Path) -> None:
    found = two_files(
        tmp_path,
        "[teams.x]\nslack='env:A'\n[teams.y]\nslack='env:Y'",
        "[teams.x]\nslack='env:B'\n[teams.y]\nslack='env:Y'",
    )
    assert found.channels_of("x").slack == "env:A"
    assert [one.name for one in found.broken.values()] == ["x"]
    assert found.find("any").policies == Policies(), "a team stops no query"


def test_what_is_broken_now_stays_as_it_was(tmp_path: Path) -> None:
    one = "[defaults]\nteam='one'\n[roots.a]\nurl='a'\n[parents.p]\nurl='p'\n"
    valid = two_files(tmp_path, one, "[roots.b]\nurl='b'\n[roots.c]\nurl='c'\n")
    now = two_files(tmp_path, one + "[", "[roots.b]\nurl=1\n[roots.d]\nurl='d'\n").keeping(valid)
    assert sorted(now.roots) == ["a", "b", "d"], "c was removed, and not broken"
    assert list(now.parents) == ["p"]
    assert {one.owned.team for one in now.broken.values()} == {"one", ""}, "the team of the broken file is known"
    twice = two_files(tmp_path, one, "[roots.a]\nurl='b'\n").keeping(valid)
    assert list(twice.roots) == [], "it is unknown which of both is meant"


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b"a = " + b"[" * 100_000,
        b"a" + b".a" * 100_000 + b" = 1",
        b"[prices]\nper_1000_reads = " + b"9" * 10_000,
        b"[prices]\nper_1000_reads = " + b"9" * 400,
        b"[defaults.retention]\nversions = " + b"9" * 400,
        b"[defaults.retention]\ngrace = '" + b"9" * 400 + b"d'",
        b"[defaults.labels]\n" + b"\n".join(b"a%d = 'x'" % number for number in range(100)),
        b"[defaults]\nteam = '" + b"x" * 1_000 + b"'",
        b"\xff\xfe",
        b"# " + b"x" * MOST_FILE_BYTES,
        b"[policies]\n'" + b"*a" * 5_000 + b"' = 1",
        b"[policies]\n'" + b"*a" * 90 + b"b' = {}\n[roots.b]\nurl = 1\n[roots." + b"a" * 200 + b"]\nurl = 'x'\n",
    ],
)
def test_a_file_of_any_bytes_is_an_error_of_a_bounded_length(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "one.toml").write_bytes(data)
    (tmp_path / "other.toml").write_text("[roots.a]\nurl = 'a'")
    found = load(tmp_path)
    assert "a" in found.roots
    (broken,) = found.broken.values()
    assert len(str(broken.error)) < 1_000


def test_an_error_shows_no_value_that_may_be_confidential(tmp_path: Path) -> None:
    secrets = """
    [teams.a]
    slak = "https://hooks.example.com/secret"
    [roots.b]
    url = "x"
    mode = "https://user:secret@example.com"
    storage = "secret=secret"
    """
    for text in (secrets, secrets.replace("[teams.a]", "[roots.a]")):
        found = load_all(written(tmp_path, text))
        assert found.broken
        assert not any("secret" in str(one.error) for one in found.broken.values())


def test_durations_are_written_with_their_unit() -> None:
    assert [parse_duration(text) for text in ("90s", "10m", "1h", "7d", "1.5h")] == [90, 600, 3600, 604_800, 5400]
    for text in ("", "90", "1 hour", "-1h", "h"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text)
