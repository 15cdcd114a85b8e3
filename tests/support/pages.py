"""Pages of the documentation, followed as a reader follows them: their files are written, and their commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.running import REPOSITORY

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)\n(?P=indent)```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """The blocks of code of a page, in their order."""

    blocks: tuple[str, ...]

    @classmethod
    def of(cls, name: str) -> Page:
        """Read a page below `docs/`."""
        text = (REPOSITORY / "docs" / name).read_text()
        found = ((one["indent"], one["text"]) for one in _BLOCK.finditer(text))
        return cls(tuple(re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found))

    def file(self, name: str) -> str:
        """Return the only block whose first line is a comment with this name."""
        (found,) = (block for block in self.blocks if block.partition("\n")[0] == f"# {name}")
        return found + "\n"

    def command(self, *words: str) -> str:
        """Return the only command with all these words, as one line."""
        lines = (line for block in self.blocks for line in block.replace("\\\n", " ").splitlines())
        (found,) = (line for line in lines if all(word in line for word in words))
        return " ".join(found.split())


@dataclass(frozen=True)
class Machine:
    """A machine of a reader. Folders such as `/etc/statekeeper` are below `folder`, and the commands of this environment
    are installed."""

    folder: Path
    environment: dict[str, str]

    def place(self, text: str) -> str:
        """Return a text of a page with the folders of this machine."""
        text = text.replace("/opt/statekeeper/bin/", f"{Path(sys.executable).parent}/")
        return re.sub(r"(?<![\w/])/(etc|opt|var)/", rf"{self.folder}/\1/", text)

    def write(self, name: str, text: str) -> Path:
        """Write a file of a page. A relative name is one in the folder of the reader."""
        file = self.folder / self.place(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.place(text))
        return file

    @property
    def variables(self) -> dict[str, str]:
        """The environment of commands."""
        path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}
        return {**os.environ, **path, "PYTHONPATH": str(REPOSITORY), **self.environment}

    def run(self, command: str, *, exit_code: int = 0) -> str:
        """Run a command of a page in the reader's folder, and return all it prints."""
        done = subprocess.run(
            ["bash", "-c", self.place(command)],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == exit_code, f"{command}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout
