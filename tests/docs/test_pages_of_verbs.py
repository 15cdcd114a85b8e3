"""The pages of verbs, followed literally on a bucket with checkpoints of Spark: each command runs, and its output is shown.

If the command prints something else on purpose: `python -m tests.docs.followed`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.followed import blocks, bucket_of_the_pages, followed_pages, names_shown_ids
from tests.support.s3_server import S3Server

# They use the same buckets, so by one process.
pytestmark = pytest.mark.xdist_group("pages of verbs")


@pytest.mark.parametrize("page", followed_pages(), ids=lambda page: page.stem)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, s3_server: S3Server, tmp_path: Path) -> None:
    with bucket_of_the_pages(s3_server, tmp_path, page) as follower:
        outputs = list(follower.follow(page))
    assert outputs
    for output in outputs:
        assert output.is_true, f"{output.command} prints:\n{output.printed}\nthe page shows:\n{output.block.text}"


@pytest.mark.parametrize("page", followed_pages(), ids=lambda page: page.stem)
def test_a_command_of_a_page_names_an_id_that_the_page_shows(page: Path) -> None:
    assert names_shown_ids(page)


def test_pages_of_most_verbs_are_followed() -> None:
    """An output that no longer follows its command directly would not be compared."""
    commands = [
        command for page in followed_pages() for block in blocks(page.read_text()) for command in block.commands
    ]
    verbs = {command.split()[1] for command in commands}
    assert verbs >= {
        *("audit", "claim", "clone", "convert", "diff", "dump", "edit", "evolve", "gc", "inspect", "lease", "load"),
        *("mirror", "rescale", "rewind", "savepoint", "snapshot", "switch"),
    }
