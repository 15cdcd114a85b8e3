"""Maintenance in Dagster: `from statekeeper.dagster import build_definitions`. It needs `pip install
'statekeeper[platform]'`."""

from statekeeper.statestore.base.extras import needed_by

with needed_by("statekeeper.dagster", "platform"):
    from statekeeper.assets.factory import build, build_definitions

__all__ = ["build", "build_definitions"]
