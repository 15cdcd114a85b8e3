"""The extras of the package: `pip install statekeeper` brings only what a command needs for checkpoints on local disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra, quoted for a shell."""
    return f"pip install 'statekeeper[{extra}]'"


def missing(*packages: str) -> str | None:
    """Return the first package that is not installed; None if all are."""
    return next((package for package in packages if find_spec(package) is None), None)


@contextmanager
def needed_by(part: str, extra: str) -> Iterator[None]:
    """Import the modules of a part of the package in this block. If a package of the extra is not installed, raise an
    `ImportError` that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "statekeeper":
            raise
        raise ImportError(
            f"{part} needs the package {error.name}, which is not installed; run: {how_to_install(extra)}",
            name=error.name,
        ) from error
