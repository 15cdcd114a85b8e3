"""The pictures in metadata: their contents, their format, and their size limit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from statekeeper.assets import metadata, pictures
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.contents.sizes import SnapshotSizes, sizes_of_snapshots
from statekeeper.statestore.maintenance.upkeep import audit, snapshot
from statekeeper.statestore.maintenance.upkeep.audit.facts import StoreAuditFacts
from statekeeper.statestore.maintenance.verbs import health
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.health import Health
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint

SHOWN_AT_ONCE = 1000
"""Characters of Markdown; of more Dagster shows a link."""

GREEN, BLUE, RED, GREY = "green", "royalblue", "crimson", "#999"
NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Seventy versions of two stores, with snapshots of each tenth and of the last but three."""
    folder = tmp_path_factory.mktemp("grown")
    made = Checkpoint(open_storage(str(folder / "root")), folder / "job")
    for batches in (10, 10, 10, 10, 10, 10, 7):
        made.grow(batches)
        for action in snapshot.plan(snapshot.gather(made.storage), snapshot.SnapshotPolicy(), take_all=True).take:
            snapshot.execute(made.storage, action, scratch=folder, clock=SystemClock(), ids=RandomIds())
    made.grow(3)
    return made


@pytest.fixture
def checkpoint(grown: Checkpoint, tmp_path: Path) -> Checkpoint:
    return grown.copied_to(open_storage(str(tmp_path / "root")), tmp_path / "job")


def drawn(checkpoint: Checkpoint) -> ElementTree.Element:
    """The picture of the lineage as it is shown."""
    facts = audit.gather(checkpoint.storage)
    return svg(pictures.of_lineage(facts, audit.judge(facts)).md_str or "")


def svg(markdown: str) -> ElementTree.Element:
    """Return the SVG in a Markdown image. No character of it may end the address or the line."""
    match = re.fullmatch(r"!\[(\w+)\]\(<data:image/svg\+xml,([^<>\n]*)>\)", markdown)
    assert match, markdown
    assert len(markdown) < SHOWN_AT_ONCE
    return ElementTree.fromstring(unquote(match[2]))


def marks(picture: ElementTree.Element, y: int) -> dict[str, int]:
    """How many marks of each colour are on a line of the picture."""
    found: dict[str, int] = {}
    for group in picture.iter(f"{NAMESPACE}g"):
        for path in group.iter(f"{NAMESPACE}path"):
            for _, at, long in re.findall(r"M(\d+) (\d+)h(\d+)", path.get("d", "")):
                if int(at) == y:
                    colour = path.get("stroke", "")
                    found[colour] = found.get(colour, 0) + (int(long) + 9) // 10
    return found


def texts(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{NAMESPACE}text")]


def test_a_picture_of_a_lineage_shows_snapshots_and_the_replayed_changelogs(checkpoint: Checkpoint) -> None:
    picture = drawn(checkpoint)
    assert marks(picture, 40) == {BLUE: 6}, "snapshots of versions 20 to 60, and 67"
    assert marks(picture, 60) == {GREEN: 3, GREY: 57}
    assert texts(picture)[0] == "state/0/0: head 70, loads from version 67 and 3 changelogs"
    assert texts(picture)[1:3] == ["11", "70"], "the newest sixty"


@pytest.mark.parametrize("batches", [1, 70])
def test_the_head_is_at_the_right_edge_of_a_picture_that_has_a_size_of_its_own(
    grown: Checkpoint, tmp_path: Path, batches: int
) -> None:
    checkpoint = grown
    if batches == 1:
        checkpoint = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job")
        checkpoint.grow(batches)
    picture = drawn(checkpoint)
    width, height = map(int, (picture.get("viewBox") or "").split()[2:])
    # A picture without a size of its own has no width in a cell of Dagster's tables.
    assert (picture.get("width"), picture.get("height")) == (str(width), str(height))
    (head,) = {int(text.get("x") or 0) for text in picture.iter(f"{NAMESPACE}text") if text.text == str(batches)}
    assert 0 < width - head < 40
    ends = [int(x) + int(long) for x, long in re.findall(r"M(\d+) 60h(\d+)", ElementTree.tostring(picture, "unicode"))]
    assert max(ends) == head + 1, "the mark of the head"


def test_files_that_do_not_load_are_red_and_uncommitted_files_are_below_the_line(checkpoint: Checkpoint) -> None:
    store = checkpoint.stores[1]
    checkpoint.storage.delete([store.changelog(checkpoint.versions[69][1])])
    lost = replace(checkpoint.versions[40][1], id=RandomIds().fresh())
    checkpoint.storage.create(store.changelog(lost), b"of an attempt that died")
    picture = drawn(checkpoint)
    assert texts(picture)[0] == f"{store}: head 70, cannot be loaded"
    assert marks(picture, 60) == {GREY: 58, RED: 2}
    assert marks(picture, 100) == {GREY: 1}
    zips = [store.snapshot(checkpoint.versions[number][1]) for number in (60, 67)]
    checkpoint.storage.delete(zips[:1])
    checkpoint.storage.replace(zips[1], b"no zip")
    assert marks(drawn(checkpoint), 40) == {BLUE: 4, RED: 1}


def test_the_largest_queries_of_a_fleet_are_drawn_with_reclaimable_bytes_and_escaped_names(
    checkpoint: Checkpoint,
) -> None:
    one = health.look(checkpoint.storage, Policies(), clock=SystemClock())
    rows: dict[str, Health] = {
        f"jobs.<a & b's {number} {'long ' * 20}>": replace(one, bytes=number << 20, reclaimable_bytes=number << 19)
        for number in range(1, 12)
    }
    picture = svg(pictures.of_fleet(rows).md_str or "")
    shown = texts(picture)
    assert shown[0] == "state by query, the largest 6 of 11; grey: reclaimable"
    assert [text.rpartition("~ ")[2] for text in shown[1:]] == [f"{number:.1f} MiB" for number in range(11, 5, -1)]
    bars = {path.get("stroke"): path.get("d", "").count("M") for path in picture.iter(f"{NAMESPACE}path")}
    assert bars == {BLUE: 6, GREY: 6}
    assert svg(pictures.of_fleet({}).md_str or "") is not None


def of_partitions(sizes: SnapshotSizes) -> ElementTree.Element:
    shown = pictures.of_partitions([sizes])
    assert shown is not None
    return svg(shown.md_str or "")


def test_sizes_skew_and_growth_come_from_the_snapshots_that_the_audit_has_read(checkpoint: Checkpoint) -> None:
    facts = audit.gather(checkpoint.storage)
    chains = [one.chain for one in facts.stores if isinstance(one, StoreAuditFacts)]
    [sizes] = sizes_of_snapshots(chains)
    assert (sizes.of, len(sizes.partitions)) == (2, 2)
    newest = {chain.store.partition: chain.snapshots[chain.bases[chain.head]].metadata for chain in chains}
    assert {one.partition: one.rows for one in sizes.partitions} == {
        number: metadata.key_count for number, metadata in newest.items() if metadata
    }
    assert sizes.keys > 0
    assert sizes.size_bytes > 0
    assert sizes.growth is None, "the snapshots are seconds apart"
    picture = of_partitions(sizes)
    assert texts(picture)[0] == "keys by partition, the largest 2 of 2; grey: the average"
    bars = {path.get("stroke"): path.get("d", "").count("M") for path in picture.iter(f"{NAMESPACE}path")}
    assert bars == {BLUE: 2, GREY: 2}
    [row] = metadata.of_sizes([sizes]).records
    assert (row.data["keys"], row.data["counted"]) == (sizes.keys, "2 of 2 partitions")


def test_growth_and_skew_are_per_day_and_relative_to_the_average(checkpoint: Checkpoint) -> None:
    chains = [one.chain for one in audit.gather(checkpoint.storage).stores if isinstance(one, StoreAuditFacts)]

    def at(chain: Chain, keys: int, seconds: float, number: int) -> Chain:
        held = {}
        files = dict(chain.files.snapshots)
        for version, count, moment in ((chain.versions[9], 100, 0.0), (chain.versions[-4], keys, seconds)):
            found = chain.snapshots[version]
            assert found.metadata is not None
            held[version] = replace(found, metadata=replace(found.metadata, key_count=count))
            files[version] = replace(files[version], modified_at_seconds=moment)
        store = replace(chain.store, partition=number)
        return replace(chain, store=store, snapshots=held, files=replace(chain.files, snapshots=files))

    many = [at(chains[0], 1_000 if number == 7 else 200, 43_200.0, number) for number in range(8)]
    [sizes] = sizes_of_snapshots(many)
    assert sizes.growth is not None
    assert sizes.growth.keys_per_day == 2 * (7 * 100 + 900)
    assert sizes.skew == pytest.approx(1_000 * 8 / 2_400)
    picture = of_partitions(sizes)
    assert texts(picture)[1] == "0/7: 1,000 keys"
    assert pictures.of_partitions(sizes_of_snapshots([])) is None


def test_without_an_examined_store_the_picture_says_so(checkpoint: Checkpoint) -> None:
    facts = audit.gather(checkpoint.storage)
    none = replace(facts, stores=())
    assert pictures.of_lineage(none, audit.judge(none)).md_str == "no store could be examined"
