"""Rounds over a fleet: a round visits the queries that are due, tells what changed, and waits for the next one.

    due         which queries are due; pure
    visit       one query: snapshots, audit, retention, and the problems that a person must know
    notices     which notices the people of a query get, and when; pure
    memory      what a round must know of the rounds before it: a file on local disk
    delivery    how a notice reaches people
    rounds      one round over the fleet, also while a query, a root or the configuration is broken
    metrics     the figures of the memory for Prometheus

A round only uses the verbs `snapshot` and `gc`, which are safe while the query runs and while another maintainer works.
"""
