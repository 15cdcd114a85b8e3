"""The pages have one structure: a reader finds in each of them when to use it, the command, the check and the way back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from statekeeper.statestore.cli import main
from tests.docs.followed import HOW_TOS
from tests.support.running import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
]
HEADINGS = ("When to use it", "Do it", "Check the result", "Go back")
OTHER_HEADINGS = {
    "index.md": "it lists the pages",
    "which-verb.md": "it leads to the pages",
    "where-checkpoints-lie.md": "a reference of the storages: nothing is done there",
}
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_MOST_COLUMNS = 5


def how_tos() -> list[Path]:
    return [page for page in sorted(HOW_TOS.glob("*.md")) if page.name not in OTHER_HEADINGS]


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return _FENCED.sub("", page.read_text())


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", how_tos(), ids=lambda page: page.stem)
def test_a_how_to_begins_with_when_to_use_it_and_ends_with_the_way_back(page: Path) -> None:
    found = re.findall(r"^## ([^{\n]*[^{\n ])", prose(page), re.MULTILINE)
    assert [one for one in found if one in HEADINGS] == list(HEADINGS)
    assert found[:2] == list(HEADINGS[:2])
    assert found[-2:] == list(HEADINGS[2:])


@pytest.mark.parametrize("page", how_tos(), ids=lambda page: page.stem)
def test_a_how_to_says_when_not_to_use_it(page: Path) -> None:
    when = prose(page).partition("## When to use it")[2].partition("\n## ")[0]
    assert "**Do not use it" in when


def test_each_exception_from_the_headings_is_a_page() -> None:
    assert {name for name in OTHER_HEADINGS if not (HOW_TOS / name).exists()} == set()


def _rows(page: Path) -> Iterator[list[str]]:
    for line in prose(page).splitlines():
        if line.lstrip().startswith("|"):
            yield [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def test_the_page_of_verbs_names_each_verb_of_the_command_with_a_page() -> None:
    rows = [row for row in _rows(HOW_TOS / "which-verb.md") if len(row) == 4]
    linked = {verb for row in rows for verb in re.findall(r"^`([a-z]+)`", row[1]) if "](" in row[3]}
    assert set(main.commands) - linked == set()
    assert linked - set(main.commands) == set(), "a verb that the command does not have"


def test_the_home_page_and_the_list_of_how_tos_lead_to_the_page_of_verbs() -> None:
    assert "(how-to/which-verb.md)" in (DOCS / "index.md").read_text()
    assert "(which-verb.md)" in (HOW_TOS / "index.md").read_text()


def test_the_list_of_how_tos_has_each_page() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)[)#]", (HOW_TOS / "index.md").read_text()))
    assert {page.name for page in HOW_TOS.glob("*.md")} - {"index.md"} == listed


@pytest.mark.parametrize("folder", ["how-to", "platforms"])
def test_no_table_of_a_page_has_more_columns_than_a_reader_can_compare(folder: str) -> None:
    wide = {
        name_of(page) for page in (DOCS / folder).glob("*.md") if any(len(row) > _MOST_COLUMNS for row in _rows(page))
    }
    assert wide == set()


def _targets(page: Path) -> Iterator[Path]:
    """The files to which a page links, with relative addresses."""
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", prose(page)):
        if "://" not in target and not target.startswith(("mailto:", "<")):
            yield (page.parent / target).resolve()


def test_no_page_links_to_nothing() -> None:
    missing = {(name_of(page), str(target)) for page in PAGES for target in _targets(page) if not target.exists()}
    assert missing == set()


def test_no_page_draws_with_characters() -> None:
    assert {name_of(page) for page in PAGES if re.search("[▶◀]", page.read_text())} == set()


def test_each_drawing_takes_its_color_from_the_page() -> None:
    drawn = {
        (page.parent / file).resolve()
        for page in PAGES
        for file in re.findall(r"\]\(([^)]+\.svg)\)\{ \.diagram \}", page.read_text())
    }
    assert drawn
    for drawing in drawn:
        outside = re.sub(r"<style>.*?</style>", "", drawing.read_text(), flags=re.DOTALL)
        assert re.findall(r"(?:fill|stroke)=\"(?!none|currentColor)[^\"]*\"", outside) == [], drawing
        assert "prefers-color-scheme: dark" in drawing.read_text(), drawing
