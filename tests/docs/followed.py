"""Pages of verbs, followed literally: their commands run on a bucket, and their outputs are those that the commands print.

`python -m tests.docs.followed [PAGE ...]` writes the outputs into the pages again, after a change of the command. In an
output, the line `...` stands for lines that the page leaves out.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import boto3
import pytest
from click.testing import CliRunner

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.cli import main as command_line
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from statekeeper.statestore.storage.parallel import at_once
from tests.support.maintainers import QUIET_SECONDS
from tests.support.running import REPOSITORY
from tests.support.s3_server import S3Server

ARCHIVE = Path(__file__).parent / "checkpoints.zip"
"""The bucket `prod`, which `tests.docs.write_checkpoints` writes."""
HOW_TOS = REPOSITORY / "docs" / "how-to"
SECTIONS = (
    "Do it",
    "Decide about the output",
    "Sinks",
    "Rewind a job on `pipelines`",
    "Check the result",
    "Go back",
)
"""The sections of a page whose commands are run, in the order of the page."""
_LOST = "orders/checkpoint/state/0/1/9.changelog"
_DAMAGED = {"audit-finding.md": _LOST, "bad-night.md": _LOST}
"""The pages about a damaged checkpoint, and the file that is lost."""
_BUCKETS = ("prod", "test", "replica", "archive")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)\n(?P=indent)```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (?P<title>[^{\n]*[^{\n ])", re.MULTILINE)
_MAINTAINER = Maintainer("vm-1:4711", SystemClock(), RandomIds(), quiet_seconds=QUIET_SECONDS)
_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_UNDO = re.compile(rf"statekeeper [a-z]+ (?P<root>\S+) --undo (?P<id>{_ID})")
_QUERY_ID = re.compile(rf"(?:--query-id |query id[^:\n]*: (?:{_ID} -> )?|owner: query )(?P<id>{_ID})")
_VARIES = [
    (re.compile(_ID), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?Z?"), "<time>"),
    (re.compile(r"\d+\.\d+"), "<number>"),
    (re.compile(r"\d+(?=( read| write)? (requests|bytes))|\d{1,3}(,\d{3})+"), "<number>"),
    (re.compile(r"[\s━┃┏┓┗┛┡┩╇┳─│┌┐└┘┬┴]+"), " "),
]
"""What differs between two runs of a command: ids, times, seconds, sizes, and the widths of columns."""


@dataclass(frozen=True)
class Block:
    """A block of code in a section of a page."""

    section: str
    language: str
    text: str
    span: tuple[int, int]
    """Of the text with its indentation, in the page."""
    indent: str
    follows_directly: bool
    """Nothing is between it and the block before."""

    @property
    def commands(self) -> Sequence[str]:
        """The lines of a block of commands; no lines for any other block."""
        lines = self.text.replace("\\\n", " ").splitlines()
        is_shell = self.language == "" and all(line.startswith("statekeeper ") for line in lines)
        return lines if is_shell else ()

    @property
    def file(self) -> str | None:
        """The name of the file that the block shows."""
        found = re.match(r"# ([\w./-]+\.\w+)$", self.text.partition("\n")[0])
        return None if found is None else found[1]


@dataclass
class Output:
    """The output of a command, as the page shows it and as the command printed it."""

    command: str
    block: Block
    printed: str

    @property
    def shown_lines(self) -> list[str]:
        return self.block.text.splitlines()

    @property
    def is_true(self) -> bool:
        """Whether the command printed what the page shows."""
        pattern = "\n".join(
            r"[\s\S]*" if line.strip() == "..." else re.escape(_plain(line)) for line in self.shown_lines
        ).replace("[\\s\\S]*\n", "(?:[\\s\\S]*\n)?")
        return re.fullmatch(pattern, "\n".join(_plain(line) for line in self.printed.splitlines())) is not None

    @property
    def as_printed(self) -> str:
        """What the page should show: as many lines before and after `...` as now."""
        lines, shown = self.printed.splitlines(), [line.strip() for line in self.shown_lines]
        if "..." not in shown:
            return "\n".join(lines)
        before, after = shown.index("..."), len(shown) - 1 - shown[::-1].index("...")
        return "\n".join([*lines[:before], "...", *lines[len(lines) - (len(shown) - 1 - after) :]])


@dataclass
class Follower:
    """A reader of a page, who runs its commands in a folder of its own."""

    folder: Path
    ids: dict[str, str] = field(default_factory=dict)
    """The newest query id that a command printed, and by root the newest id of a run to undo."""

    def follow(self, page: Path) -> Iterator[Output]:
        """Run the commands of a page, write its files, and yield the outputs that it shows."""
        newest: tuple[str, str] | None = None
        for block in blocks(page.read_text()):
            if block.commands:
                for command in block.commands:
                    newest = command, self.run(command)
                continue
            if block.file is not None:
                (self.folder / block.file).write_text(block.text + "\n")
            elif block.language == "python":
                exec(compile(block.text, str(page), "exec"), {})
            elif block.language == "" and newest is not None and block.follows_directly:
                yield Output(newest[0], block, newest[1])
            newest = None

    def run(self, command: str) -> str:
        """Run a command with the ids that earlier commands printed, and return all it prints."""
        line, _, file = command.partition(" > ")
        line = _with_ids(line, self.ids)
        done = CliRunner().invoke(command_line, shlex.split(line, comments=True)[1:], obj=_MAINTAINER)
        self.ids |= _ids_in(done.output)
        if file:
            (self.folder / file.strip()).write_text(done.stdout)
        assert done.exit_code in (0, 3), f"{command}: exit code {done.exit_code}\n{done.output}{done.exception}"
        return done.output


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of the followed sections, in order."""
    fences = list(_FENCE.finditer(text))
    headings = [
        found for found in _HEADING.finditer(text) if not any(one.start() < found.start() < one.end() for one in fences)
    ]
    end = 0
    for fence in fences:
        title = next((one["title"] for one in reversed(headings) if one.start() < fence.start()), "")
        if title in SECTIONS:
            plain = re.sub(f"^{fence['indent']}", "", fence["text"], flags=re.MULTILINE)
            directly = not text[end : fence.start()].strip()
            yield Block(title, fence["language"], plain, fence.span("text"), fence["indent"], directly)
        end = fence.end()


def _plain(line: str) -> str:
    for pattern, put in _VARIES:
        line = pattern.sub(put, line)
    return line.strip()


@contextlib.contextmanager
def bucket_of_the_pages(server: S3Server, folder: Path, page: Path) -> Iterator[Follower]:
    """The buckets of a page, with the checkpoints in `prod`, for commands in this process."""
    options = server.options
    client = boto3.client(
        "s3",
        endpoint_url=options["endpoint_url"],
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
        region_name=options["region"],
    )
    variables: Mapping[str, str] = {
        "AWS_ENDPOINT_URL": options["endpoint_url"],
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
        "AWS_REGION": options["region"],
        "COLUMNS": "100",
    }
    for name in _BUCKETS:
        client.create_bucket(Bucket=name)
    with zipfile.ZipFile(ARCHIVE) as archive:
        used = tuple(set(re.findall(r"s3://prod/([\w-]+/)", page.read_text())))
        names = [name for name in archive.namelist() if name.startswith(used) and name != _DAMAGED.get(page.name)]
        files = {name: archive.read(name) for name in names}
    at_once(lambda name: client.put_object(Bucket="prod", Key=name, Body=files[name]) and None, list(files))
    try:
        with pytest.MonkeyPatch.context() as environment, contextlib.chdir(folder):
            for name, value in variables.items():
                environment.setenv(name, value)
            for option in (option for verb in command_line.commands.values() for option in verb.params):
                if "--workers" in option.opts:
                    environment.setattr(option, "default", 1)  # the same output, without the start of processes
            yield Follower(folder)
    finally:
        for name in _BUCKETS:
            for found in client.get_paginator("list_objects_v2").paginate(Bucket=name):
                if entries := [{"Key": entry["Key"]} for entry in found.get("Contents", [])]:
                    client.delete_objects(Bucket=name, Delete={"Objects": entries})
            client.delete_bucket(Bucket=name)


def followed_pages() -> list[Path]:
    """The pages with a command and its output in a followed section."""
    return [
        page
        for page in sorted(HOW_TOS.glob("*.md"))
        if any(before.commands and after.follows_directly for before, after in _pairs(page))
    ]


def _pairs(page: Path) -> Iterator[tuple[Block, Block]]:
    found = list(blocks(page.read_text()))
    return itertools.pairwise(found)


def rewrite(page: Path, server: S3Server) -> bool:
    """Write the outputs of the commands into a page. Return whether it changed."""
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder, bucket_of_the_pages(server, Path(folder), page) as follower:
        outputs = [one for one in follower.follow(page) if not one.is_true]
    put = text
    for output in reversed(outputs):
        block = output.block
        lines = "\n".join(block.indent + line if line else line for line in output.as_printed.splitlines())
        put = put[: block.span[0]] + lines + put[block.span[1] :]
    page.write_text(_with_shown_ids(put))
    return put != text


def _ids_in(output: str) -> dict[str, str]:
    ids = {found["root"]: found["id"] for found in _UNDO.finditer(output)}
    for found in _QUERY_ID.finditer(output):
        ids["query"] = found["id"]
    return ids


def _with_ids(command: str, ids: Mapping[str, str]) -> str:
    """Put the ids of earlier outputs into a command."""
    for found in _UNDO.finditer(command):
        command = command.replace(found["id"], ids.get(found["root"], found["id"]))
    return re.sub(rf"--query-id ({_ID})", lambda one: f"--query-id {ids.get('query', one[1])}", command)


def _with_shown_ids(text: str) -> str:
    """Let each command of a page name the id that the last output before it shows."""
    shown: dict[str, str] = {}
    put = []
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("statekeeper "):
            put.append(_with_ids(line, shown))
            continue
        shown |= _ids_in(line)
        put.append(line)
    return "".join(put)


def names_shown_ids(page: Path) -> bool:
    """Whether each id in a command is one that an output before it shows."""
    text = page.read_text()
    return _with_shown_ids(text) == text


def main() -> None:
    server = S3Server()
    server.start()
    try:
        for page in [HOW_TOS / name for name in sys.argv[1:]] or followed_pages():
            print(f"{page.name}: {'written' if rewrite(page, server) else 'is true'}")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
