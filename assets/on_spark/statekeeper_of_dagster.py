"""The application that `spark-submit` starts for a run of Dagster: the work of a step, in the driver of a cluster.

It has a folder of its own, because Spark puts that folder first on the path of Python.
"""

from statekeeper.dagster import work_on_spark

if __name__ == "__main__":
    work_on_spark()
