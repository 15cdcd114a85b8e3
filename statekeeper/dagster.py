"""Maintenance in Dagster: `from statekeeper.dagster import build_definitions`, or in a `defs.yaml`
`type: statekeeper.dagster.FleetComponent`. It needs `pip install 'statekeeper[platform]'`."""

from statekeeper.statestore.base.extras import needed_by

with needed_by("statekeeper.dagster", "platform"):
    from statekeeper.assets.component import FleetComponent
    from statekeeper.assets.factory import build, build_definitions
    from statekeeper.assets.spark_driver import work_on_spark

__all__ = ["FleetComponent", "build", "build_definitions", "work_on_spark"]
