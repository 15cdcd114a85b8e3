"""Starts the processes of Dagster and watches them: the code server, the webserver and the daemon.

It imports neither Dagster nor Spark, so a Spark job can start Dagster beside itself.
"""
