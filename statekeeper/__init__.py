"""Maintenance of the checkpoints of stateful Spark queries, and a state store for Python jobs on Spark.

    statekeeper.statestore   the formats, the storage, the state store, maintenance and the command line
    statekeeper.pipelines    streaming jobs on PySpark that write only changelogs
    statekeeper.dagster      maintenance as assets, checks, jobs and sensors of Dagster

The code lies in the folders at the top of the repository. This folder contains only links to them.
"""
