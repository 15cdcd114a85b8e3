"""Discovery of the checkpoints of a fleet: configured ones, and those below a parent."""

from __future__ import annotations

from pathlib import Path

from statekeeper.statestore.maintenance.verbs.config import Configuration, Parent, Policies, Root
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
