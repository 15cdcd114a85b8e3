"""Calls of the command-line interface in this process."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from statestore.cli import main
from tests.support.maintainers import MAINTAINER


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def statekeeper(*arguments: object) -> Result:
    """Call as `run`, by a maintainer that waits briefly before it treats a query as stopped."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], obj=MAINTAINER)


def json_output(*arguments: object) -> dict:
    result = run(*arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
