"""Discovery of the checkpoints of a fleet: configured ones, and those below a parent."""

from __future__ import annotations

from pathlib import Path

from statekeeper.statestore.maintenance.verbs.config import Configuration, Parent, Policies, Root, load
from statekeeper.statestore.maintenance.verbs.fleet import discover, forget_seconds
from statekeeper.statestore.storage import StorageSpec, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.s3_server import S3Server


def checkpoint(url: str, scratch: Path, batches: int) -> None:
    Checkpoint(open_storage(url), scratch, partitions=1).grow(batches)


def below(folder: Path) -> Parent:
    return Parent(name="jobs", spec=StorageSpec(str(folder)), policies=Policies(), below="state")


def test_the_folders_of_a_parent_are_found_with_their_newest_batch(tmp_path: Path) -> None:
    checkpoint(str(tmp_path / "jobs/orders/state"), tmp_path / "host", 3)
    (tmp_path / "jobs/just made").mkdir()
    (tmp_path / "jobs/empty").mkdir()
    found = discover(Configuration(parents={"jobs": below(tmp_path / "jobs")}))
    assert {name: query.version for name, query in found.queries.items()} == {"jobs.orders": 3}
    assert found.waiting == ("jobs.empty",)
    assert list(found.problems) == ["jobs.just made"], "a name that no partition could have is a problem, not a crash"


def test_the_folders_of_a_parent_in_a_bucket_are_found_by_either_spelling(s3_server: S3Server, tmp_path: Path) -> None:
    bucket, options = s3_server.make_bucket(), tuple(s3_server.options.items())
    Checkpoint(open_storage(StorageSpec(f"s3://{bucket}/jobs/orders/state", options)), tmp_path).grow(2)
    s3_server.put(bucket, "jobs/", b"")
    s3_server.put(bucket, "jobs/orders/", b"")
    for scheme in ("s3", "s3a"):
        parent = Parent(
            name="jobs", spec=StorageSpec(f"{scheme}://{bucket}/jobs", options), policies=Policies(), below="state"
        )
        found = discover(Configuration(parents={"jobs": parent}))
        assert {name: query.version for name, query in found.queries.items()} == {"jobs.orders": 2}
        assert (found.waiting, found.problems) == ((), {})


def test_a_pattern_finds_its_checkpoints_on_disk(tmp_path: Path) -> None:
    for place in ("crm/v2-leads", "crm/v1-leads", "pay/v2-orders", "pay/v2-or.ders"):
        checkpoint(str(tmp_path / f"teams/{place}/state"), tmp_path / f"host {place}", 1)
    (tmp_path / "teams/pay/v2-new").mkdir()
    file = tmp_path / "fleet.toml"
    file.write_text("[parents.all]\nurl = 'teams/*/v2-*/state'\n")
    found = discover(load(file))
    assert list(found.queries) == ["all.crm.v2-leads", "all.pay.v2-orders"]
    assert found.waiting == ("all.pay.v2-new",)
    assert list(found.problems) == ["all.pay.v2-or.ders"]


def test_a_pattern_finds_its_checkpoints_in_a_bucket(s3_server: S3Server, tmp_path: Path) -> None:
    bucket, options = s3_server.make_bucket(), tuple(s3_server.options.items())
    for place in ("payments/orders", "payments/refunds", "crm/leads"):
        Checkpoint(open_storage(StorageSpec(f"s3://{bucket}/{place}/checkpoint", options)), tmp_path / place).grow(1)
    stated = ", ".join(f'{key} = "{value}"' for key, value in options)
    file = tmp_path / "fleet.toml"
    for url, names in (
        ("payments/*/checkpoint", ["p.orders", "p.refunds"]),
        ("*/*/checkpoint", ["p.crm.leads", "p.payments.orders", "p.payments.refunds"]),
        ("payments/*s/checkpoint", ["p.orders", "p.refunds"]),
        ("payments/o*/checkpoint", ["p.orders"]),
    ):
        file.write_text(f'[parents.p]\nurl = "s3a://{bucket}/{url}"\nstorage = {{ {stated} }}\n')
        found = discover(load(file))
        assert (list(found.queries), found.waiting, found.problems) == (names, (), {})
        assert all(load(file).find(query.root.spec.url) == query.root for query in found.queries.values())


def test_a_root_replaces_the_folder_of_a_parent_and_two_parents_of_one_checkpoint_stop_it(tmp_path: Path) -> None:
    for name in ("orders", "clicks", "views"):
        checkpoint(str(tmp_path / f"jobs/{name}"), tmp_path / f"host {name}", 1)
    file = tmp_path / "fleet.toml"
    root = "[roots.orders]\nurl = 'jobs/orders'\n"
    file.write_text(f"{root}[parents.all]\nurl = 'jobs/*'\n[parents.c]\nurl = 'jobs/c*'\n")
    found = discover(load(file))
    assert list(found.queries) == ["all.views", "orders"]
    assert set(found.problems) == {"all.clicks", "c.clicks"}
    assert "all.clicks is also c.clicks; neither is maintained" in found.problems["all.clicks"]


def test_a_root_of_another_file_does_not_replace_the_policies_of_a_parent(tmp_path: Path) -> None:
    for name in ("orders", "clicks"):
        checkpoint(str(tmp_path / f"jobs/{name}"), tmp_path / f"host {name}", 1)
    (tmp_path / "one.toml").write_text("[parents.jobs]\nurl = 'jobs'\nmode = 'observe'\n")
    (tmp_path / "other.toml").write_text("[roots.mine]\nurl = 'jobs/orders'\nmode = 'full'\n")
    found = discover(load(tmp_path))
    assert list(found.queries) == ["jobs.clicks"]
    assert set(found.problems) == {"jobs.orders", "mine"} == found.ambiguous
    assert found.problems["mine"].startswith(f"{tmp_path / 'other.toml'}: mine is also jobs.orders")
    assert found.problems["jobs.orders"].startswith(f"{tmp_path / 'one.toml'}: jobs.orders is also mine")


def test_a_broken_part_of_the_configuration_is_a_problem_and_its_queries_count_as_present(tmp_path: Path) -> None:
    checkpoint(str(tmp_path / "good"), tmp_path / "host", 1)
    (tmp_path / "one.toml").write_text("[roots.good]\nurl = 'good'\n[roots.bad]\nurl = 1\n")
    found = discover(load(tmp_path))
    assert list(found.queries) == ["good"]
    assert list(found.problems) == [f"roots.bad in {tmp_path / 'one.toml'}"]
    assert [found.is_unseen(name) for name in ("bad", "other")] == [True, False]
    (tmp_path / "other.toml").write_text("[")
    found = discover(load(tmp_path))
    assert len(found.problems) == 2
    assert found.is_unseen("other"), "the broken file may name it"


def test_an_unreadable_folder_does_not_hide_the_others_and_counts_as_present(tmp_path: Path) -> None:
    checkpoint(str(tmp_path / "good"), tmp_path / "host", 1)
    roots = {
        "good": Root("good", StorageSpec(str(tmp_path / "good")), Policies()),
        "bad": Root("bad", StorageSpec("ftp://nowhere/x"), Policies()),
        "later": Root("later", StorageSpec(str(tmp_path / "later")), Policies()),
    }
    parents = {"jobs": Parent(name="jobs", spec=StorageSpec("ftp://nowhere/y"), policies=Policies())}
    found = discover(Configuration(roots, parents=parents))
    assert list(found.queries) == ["good"]
    assert found.waiting == ("later",)
    assert set(found.problems) == {"bad", "jobs"}
    assert found.is_unseen("bad")
    assert found.is_unseen("jobs.orders"), "nothing can be said of the folders of a parent that cannot be listed"
    assert not found.is_unseen("gone")


def test_the_requests_of_discovery_do_not_grow_with_the_files_of_a_checkpoint(tmp_path: Path) -> None:
    requests = []
    for batches in (1, 6):
        root = tmp_path / f"of {batches}"
        checkpoint(str(root), tmp_path / f"host {batches}", batches)
        storage = open_storage(str(root))
        found = discover(Configuration({"one": Root("one", StorageSpec(""), Policies())}), lambda _, s=storage: s)
        assert found.queries["one"].version == batches
        requests.append(storage.requests.snapshot().total)
    assert requests == [1, 1]


def test_the_parent_configures_how_long_a_checkpoint_may_be_missing(tmp_path: Path) -> None:
    configuration = Configuration(parents={"jobs": below(tmp_path)})
    assert forget_seconds(configuration, "jobs.orders") == 86_400
    assert forget_seconds(configuration, "removed.orders") == 0, "its parent is configured no more"
