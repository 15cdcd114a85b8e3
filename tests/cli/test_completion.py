"""Completion in real shells, from the script that `statekeeper completion` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from statekeeper.statestore.cli.completion import INSTALLATION
from statekeeper.statestore.cli.main import main

_BASH = """
eval "$(statekeeper completion bash)"
compopt() { :; }  # it works only while the line is edited
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_statekeeper_completion statekeeper
printf '%s\\n' "${COMPREPLY[@]}"
"""
_FISH = """
statekeeper completion fish | source
complete --do-complete "$argv"
"""
# Outside of the line editor, the functions that show matches are replaced by ones that print them.
_ZSH = """
autoload -Uz compinit; compinit -u -D
eval "$(statekeeper completion zsh)"
compadd() { print -l -- ${(P)argv[-1]} }
_describe() { print -l -- ${(P)3} }
_path_files() { : }
words=("$@"); CURRENT=$#
_statekeeper_completion
"""


@pytest.fixture(params=list(INSTALLATION))
def shell(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


def test_a_shell_completes_verbs_options_codes_and_configured_roots(shell: str, tmp_path: Path) -> None:
    (tmp_path / "statekeeper.toml").write_text("[roots.flights]\nurl = 'state'\n[roots.orders]\nurl = 'other'\n")
    (tmp_path / "folder").mkdir()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def completed(*words: str) -> set[str]:
        script = {"bash": _BASH, "fish": _FISH, "zsh": _ZSH}[shell]
        given = [" ".join(words)] if shell == "fish" else [shell, *words]
        done = subprocess.run(
            [shell, "-c", script, *given], capture_output=True, text=True, env=environment, cwd=tmp_path, check=True
        )
        assert done.stderr == ""
        return {line.partition("\t")[0].partition(":")[0] for line in done.stdout.splitlines()} - {""}

    assert completed("statekeeper", "sn") == {"snapshot"}
    assert "--dry-run" in completed("statekeeper", "snapshot", "--d")
    assert {"flights", "orders"} <= completed("statekeeper", "gc", "")
    assert "flights" in completed("statekeeper", "gc", "fl")
    assert completed("statekeeper", "explain", "changelog_m") == {"changelog_missing"}


@pytest.mark.parametrize("name", INSTALLATION)
def test_the_script_says_how_to_install_it(name: str) -> None:
    result = CliRunner().invoke(main, ["completion", name])
    assert result.exit_code == 0
    assert result.stdout.endswith(f"# To install this completion, run: {INSTALLATION[name]}\n")
    assert INSTALLATION[name] in CliRunner().invoke(main, ["completion", "--help"]).stdout
