"""The docs site builds without a warning, and documents everything in the code."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import util
from pathlib import Path
from types import ModuleType

import click
import dagster as dg
import pytest

import statekeeper.pipelines
import statekeeper.statestore
from statekeeper.assets.checks import check_of
from statekeeper.assets.definitions import build
from statekeeper.statestore.base.durations import parse_duration
from statekeeper.statestore.base.errors import action_of, drawn_tree, error_classes
from statekeeper.statestore.base.messages import CONFIGURATION_FILE
from statekeeper.statestore.cli import main
from statekeeper.statestore.cli.common import RenamedOption
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind
from statekeeper.statestore.maintenance.upkeep.audit.explanations import EXPLANATIONS
from statekeeper.statestore.maintenance.verbs import config

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]

# The site is built once, so by one process.
pytestmark = pytest.mark.xdist_group("docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning ends the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """Return the module that generates parts of pages."""
    spec = util.spec_from_file_location("generate", DOCS / "site" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Page(HTMLParser):
    """The anchors of a page, the addresses that it loads, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag in ("script", "img", "iframe", "source"):
            self.loaded.append(given.get("src", ""))
        if tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given.get("href", ""))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        assert [url for url in _Page(page).loaded if "//" in url] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text()), style


def test_the_search_works_in_pages_that_are_opened_from_the_file_system(site: Path) -> None:
    """A browser reads the index as a script, and runs the search in a frame, because a worker is not allowed there."""
    index = (site / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = ")
    assert "Rescale a query to another number of partitions" in index
    for page in site.rglob("*.html"):
        if page.name != "404.html":
            assert any(url.endswith("site/iframe-worker.js") for url in _Page(page).loaded), page
    assert "window.IFrameWorker" in (site / "site" / "iframe-worker.js").read_text()


def test_a_drawing_is_a_part_of_its_page_so_that_it_follows_the_theme(site: Path) -> None:
    for page, drawings in (("index.html", 1), ("how-a-batch-runs.html", 3)):
        text = (site / page).read_text()
        assert text.count('<figure class="diagram">') == drawings
        assert "prefers-color-scheme: dark) { svg" not in text, "the style would apply to all icons of the page"


# -- checks ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checks() -> dict[str, dg.AssetCheckSpec]:
    """The checks that Dagster loads, by name."""
    graph = build({}).resolve_asset_graph()
    return {key.name: graph.get_check_spec(key) for key in graph.asset_check_keys}


def test_each_page_contains_the_code_that_it_includes(site: Path) -> None:
    """The formatter changes the line of a snippet in a block of Python. Such a block is marked as `{.python}`."""
    texts = {path.relative_to(site): re.sub("<[^>]*>", "", path.read_text()) for path in site.rglob("*.html")}
    assert [str(path) for path, text in texts.items() if "--8" in text] == []
    assert "def update" in texts[Path("how-to/several-inputs.html")]


def test_each_check_has_a_page_and_each_page_a_check(checks: dict[str, dg.AssetCheckSpec], site: Path) -> None:
    assert {page.stem for page in (DOCS / "checks").glob("*.md")} == set(checks)
    assert {page.stem for page in (site / "checks").glob("*.html")} == set(checks)


def test_the_page_of_a_check_names_its_asset_and_whether_it_blocks(
    checks: dict[str, dg.AssetCheckSpec],
) -> None:
    index = (DOCS / "checks.md").read_text()
    for name, spec in checks.items():
        page = (DOCS / "checks" / f"{name}.md").read_text()
        asset, blocks = spec.asset_key.to_user_string(), "yes" if spec.blocking else "no"
        assert re.search(rf"^\| `{asset}` \| [^|]+ \| {blocks} \|$", page, re.MULTILINE), name
        row = rf"^\| \[{name}\]\(checks/{name}.md\) \| [^|]*`{asset}`[^|]* \| [^|]+ \| {blocks} \|"
        assert re.search(row, index, re.MULTILINE), name
        assert "## Meaning of a failed check" in page
        assert "## Next steps" in page


@pytest.mark.parametrize("what", FindingKind, ids=lambda what: what.code)
def test_each_kind_of_finding_is_explained_on_the_page_of_its_check(what: FindingKind, site: Path) -> None:
    pages = {page.stem: _Page(page) for page in (site / "checks").glob("*.html")}
    assert [name for name, page in pages.items() if what.code in page.anchors] == [check_of(what)]
    assert EXPLANATIONS[what].meaning.replace("`", "") in pages[check_of(what)].text


# -- Spark's releases ---------------------------------------------------------------------------------------------------


def test_the_page_shows_the_last_run_of_the_interop_matrix_with_its_failures(site: Path) -> None:
    page = _Page(site / "reference" / "sparks.html")
    cases = json.loads((DOCS / "reference" / "interop-results.json").read_text())
    results = [case for case in cases if case["passed"] is not None]
    passed = [result for result in results if result["passed"]]
    assert f"{len(passed):,} of {len(results):,} cases passed" in page.text
    assert page.text.count(" fails") == len(results) - len(passed)
    assert {result["to"].rpartition(".")[0] for result in results} == {spark.value for spark in Spark}
    assert all(result["operator"] in page.text for result in results)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_each_error_is_listed_with_its_code_and_exit_code(site: Path) -> None:
    page = _Page(site / "reference" / "errors.html")
    kinds = list(error_classes())
    assert len(kinds) > 30
    for kind in kinds:
        assert f"statekeeper.statestore.base.errors.{kind.__name__}" in page.anchors
        assert f"{kind.code}, exit code {kind.exit_code}" in page.text


def test_the_documented_tree_of_errors_matches_the_classes() -> None:
    raised = {kind.__name__: (kind.exit_code, kind.code) for kind in error_classes()}
    assert {name: (exit_code, code) for name, (exit_code, code, _) in drawn_tree().items()} == raised
    assert [kind for kind in error_classes() if not action_of(kind)] == []


def test_each_exit_code_of_an_error_is_explained(site: Path) -> None:
    explained = {int(found) for found in re.findall(r"(\d+) [a-z]", (main.help or "").partition("Exit codes:")[2])}
    assert {kind.exit_code for kind in error_classes()} <= explained


# -- command line, configuration, Python -------------------------------------------------------------------------------


def test_each_verb_and_each_option_is_in_the_reference(site: Path) -> None:
    page = _Page(site / "reference" / "command-line.html")
    for name, verb in main.commands.items():
        assert f"statekeeper-{name}" in page.anchors
        for parameter in verb.params:
            # The second name of a renamed option is its former one, which help and reference leave out.
            names = parameter.opts[:1] if isinstance(parameter, RenamedOption) else parameter.opts
            assert all(option in page.text for option in names if option.startswith("--")), parameter


def test_each_documented_configuration_key_exists(tmp_path: Path, generate: ModuleType) -> None:
    file = tmp_path / CONFIGURATION_FILE
    values = {
        "duration": '"1h"',
        "whole number": "7",
        "text": '"state"',
        "part of a day": '"22:00-06:00"',
        "table of texts": "{}",
        "table of tables": "{}",
        "table of whole numbers": "{ record_mib = 8, object_mib = 64 }",
    }
    choices = {"mode": '"observe"', "executor": '"spark"'}
    lines = [f"{key} = {values.get(kind) or choices[key]}" for key, kind, _, _ in generate.configuration_keys()]
    file.write_text("\n".join(["[roots.flights]", *lines]))
    policies = config.load(file).require_valid().roots["flights"].policies
    assert (policies.mode, policies.executor) == (config.Mode.OBSERVE, config.RunsOn.SPARK)
    assert policies.schedule == config.Schedule((22 * 60, 6 * 60), 3600.0)
    assert set(vars(policies.snapshot).values()) | set(vars(policies.retention).values()) == {7, 3600.0}
    assert policies.audit == config.AuditSchedule(3600.0)


@pytest.mark.parametrize(("seconds", "text"), [(20.0, "20s"), (600.0, "10m"), (5400.0, "90m"), (2_592_000.0, "30d")])
def test_a_default_is_shown_as_in_the_file(generate: ModuleType, seconds: float, text: str) -> None:
    assert generate.duration_text(seconds) == text
    assert parse_duration(text) == seconds


def test_each_public_name_of_pipelines_is_documented(site: Path) -> None:
    page = _Page(site / "reference" / "pipelines.html")
    assert {f"statekeeper.pipelines.{name}" for name in statekeeper.pipelines.__all__} <= page.anchors


def test_each_public_name_of_statestore_is_documented(site: Path) -> None:
    pages = [_Page(site / "reference" / name) for name in ("statestore.html", "errors.html")]
    explained = {anchor for page in pages for anchor in page.anchors if anchor.startswith("statekeeper.statestore.")}
    homes = [value for value in explained if value.rpartition(".")[2] in statekeeper.statestore.__all__]
    assert {value.rpartition(".")[2] for value in homes} == set(statekeeper.statestore.__all__)
    for home in homes:
        module, _, name = home.rpartition(".")
        assert getattr(importlib.import_module(module), name) is getattr(statekeeper.statestore, name)


# -- commands in the text ----------------------------------------------------------------------------------------------


def _code(page: Path) -> Iterator[str]:
    """Yield each line of the blocks without a language, and each text in backticks."""
    language: str | None = None
    for line in page.read_text().splitlines():
        fence = re.match(r"^ *```(\w*)", line)
        if fence is not None:
            language = fence[1] if language is None else None
        elif language == "":
            yield line
        elif language is None:
            yield from re.findall(r"`([^`]+)`", line)


def _calls(program: str) -> Iterator[tuple[Path, list[str]]]:
    """The calls of a program: page, and arguments."""
    for page in PAGES:
        for line in _code(page):
            found = re.search(rf"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?{program} ([^$]*)$", line)
            if found is not None:
                yield page, shlex.split(found[1], comments=True)


def test_each_call_of_the_command_in_the_docs_uses_verbs_and_options_that_exist() -> None:
    calls = list(_calls("statekeeper"))
    assert len(calls) > 40
    for page, arguments in calls:
        _, rest, _ = main.make_parser(click.Context(main)).parse_args(arguments)
        assert rest[0] in main.commands, (page, arguments)
        verb = main.commands[rest[0]]
        verb.make_parser(click.Context(verb)).parse_args(rest[1:])


def test_each_make_target_in_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    called = [(page, arguments[0]) for page, arguments in _calls("make")]
    assert len(called) > 5
    assert [one for one in called if one[1] not in targets] == []


def test_each_promise_names_an_existing_test_and_whether_it_is_slow() -> None:
    page = (DOCS / "reliability.md").read_text()
    rows = re.findall(r"^\| `([\w/]+\.py)::(test_\w+)`( \(slow\))? \|", page, re.MULTILINE)
    assert len(rows) > 40
    assert len(rows) == page.count(".py::test_"), "each stands in a table"
    for file, name, slow in rows:
        module = ast.parse((REPOSITORY / "tests" / file).read_text())
        found = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name]
        assert len(found) == 1, f"{file}::{name}"
        marks = [ast.unparse(mark) for mark in found[0].decorator_list]
        of_module = [ast.unparse(node) for node in module.body if ast.unparse(node).startswith("pytestmark")]
        is_slow = "pytest.mark.slow" in marks or any("pytest.mark.slow" in line for line in of_module)
        assert is_slow == bool(slow), f"{file}::{name}"
