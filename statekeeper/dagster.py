"""Maintenance in Dagster: `from statekeeper.dagster import build`. It needs `pip install 'statekeeper[platform]'`."""

from statekeeper.statestore.base.extras import needed_by

with needed_by("statekeeper.dagster", "platform"):
    from statekeeper.assets.definitions import build

__all__ = ["build"]
