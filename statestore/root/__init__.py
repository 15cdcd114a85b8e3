"""The state root of a job on `pipelines`: its binding to a query, the declared columns, and the attempts at each batch.

A state root is a valid checkpoint of Spark, so whatever is true of both kinds of checkpoint is in `checkpoint`.
"""
