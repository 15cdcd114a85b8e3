"""Makes the pictures of the terminal in the docs from the output of real commands on a damaged checkpoint of Spark's.

    python -m tests.docs.take_terminal

It writes docs/pictures/terminal-*.svg. Look at the pictures before you commit them.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

REPOSITORY = Path(__file__).parents[2]
PICTURES = REPOSITORY / "docs" / "pictures"
COLUMNS = 96
_ARCHIVE = REPOSITORY / "tests" / "fixtures" / "checkpoints" / "spark-4.2.0-v2-aggregation.zip"
_THEME = TerminalTheme(
    (30, 34, 42),
    (220, 223, 228),
    [
        (40, 44, 52),
        (224, 108, 117),
        (152, 195, 121),
        (229, 192, 123),
        (97, 175, 239),
        (198, 120, 221),
        (86, 182, 194),
        (220, 223, 228),
    ],
)


def damaged(folder: Path) -> None:
    """Unpack a checkpoint that Spark wrote, and delete the changelog of its newest version of a store."""
    with zipfile.ZipFile(_ARCHIVE) as archive:
        archive.extractall(folder.parent)
    (folder.parent / "checkpoint").rename(folder)
    newest = max((folder / "state" / "0" / "0").glob("*.changelog"), key=lambda path: int(path.name.partition("_")[0]))
    newest.unlink()


def output(command: list[str], folder: Path) -> str:
    """Return what a command leaves on a terminal, with the colors. Its progress goes to stderr, and is erased."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": "50", "TERM": "xterm-256color"}
    executable = str(Path(sys.executable).with_name(command[0]))
    with subprocess.Popen(
        [executable, *command[1:]], cwd=folder, stdout=follower, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(follower)
        printed = b""
        while True:
            try:
                block = os.read(leader, 65_536)
            except OSError:  # the other side is closed
                break
            printed += block
        process.wait()
    os.close(leader)
    return printed.decode().replace("\r\n", "\n")


def picture(name: str, commands: list[str], folder: Path) -> Path:
    """Run the commands one after the other, and write one picture."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for command in commands:
        console.print(Text(f"$ {command}", style="bold"))
        console.print(Text.from_ansi(output(command.split(), folder)))
    target = PICTURES / f"terminal-{name}.svg"
    drawn = console.export_svg(title="statekeeper", theme=_THEME, unique_id=name)
    # No picture loads a font from a server.
    target.write_text(
        re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    )
    return target


def main() -> None:
    """The command line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        damaged(folder / "orders")
        commands = ["statekeeper audit orders", "statekeeper rewind orders --to-batch 5"]
        print(picture("audit", commands[:1], folder).relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
