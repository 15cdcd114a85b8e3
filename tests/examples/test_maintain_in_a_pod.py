"""The files of `examples/maintain-in-a-pod`: the image starts the command of the wheel with the arguments of the page.

No container is built here.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import yaml

from tests.support.commands import run
from tests.support.pages import Page
from tests.support.running import REPOSITORY

CONTAINERFILE = (REPOSITORY / "examples" / "maintain-in-a-pod" / "Containerfile").read_text()
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PAGE = Page.of("how-to/maintain-without-dagster.md")


def test_the_entrypoint_is_the_command_of_the_wheel_with_its_extras() -> None:
    (entrypoint,) = re.findall(r"^ENTRYPOINT (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    assert set(json.loads(entrypoint)) <= set(PROJECT["scripts"])
    (extras,) = re.findall(r"statekeeper-\*\.whl\)\[(.*)\]", CONTAINERFILE)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_container_copies_files_that_exist_and_its_user_is_not_root() -> None:
    sources = [word for line in re.findall(r"^COPY (.*) \S+$", CONTAINERFILE, re.MULTILINE) for word in line.split()]
    assert sources == ["requirements.lock", "dist/statekeeper-*.whl"]
    assert (REPOSITORY / "requirements.lock").exists()
    assert re.findall(r"^USER (\d+)$", CONTAINERFILE, re.MULTILINE) == ["1000"]


def test_the_page_builds_this_image_and_its_pod_starts_a_command_that_exists(tmp_path: Path) -> None:
    build = PAGE.command("podman build")
    assert f"#     {build}" in CONTAINERFILE
    (manifest,) = (block for block in PAGE.blocks if "kind: Deployment" in block)
    pod = yaml.safe_load(manifest)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == build.split()[-2]
    assert pod["securityContext"]["fsGroup"] == 1000, "the user of the image can write the state file"
    (tmp_path / "payments.toml").touch()
    args = [word.replace("/config", str(tmp_path)) for word in container["args"]]
    assert run(*args, "--help").exit_code == 0
