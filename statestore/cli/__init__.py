"""`statekeeper VERB ROOT`: the maintenance verbs for people at a terminal, and for programs (`--output json`)."""

from statekeeper.statestore.cli.main import main

__all__ = ["main"]
