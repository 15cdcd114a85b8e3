"""What keeps a checkpoint healthy while, or after, a query runs: one module a verb, each split into plan and execute.

A plan is data, made by a pure function from gathered facts, with a reason for each store; executing it is a second step
that looks again at what the plan rests on. Knows nothing of Spark, of Dagster or of terminals.
"""
