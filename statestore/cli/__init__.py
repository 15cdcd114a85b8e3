"""`statekeeper VERB ROOT`: the maintenance verbs for people at a terminal, and for programs (`--output json`)."""

from statestore.cli.main import main

__all__ = ["main"]
