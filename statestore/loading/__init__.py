"""Bringing a version of a store onto this host: from its local copy, or from a snapshot, and the changelogs after it.

loader      the order of steps, and what is tried when one fails
planning    from which files: the facts are fetched until `lineage`, or `confirmed`, has decided
base        a snapshot, fetched and opened
changelogs  fetched once, read in windows
replay      applied to the database; `merges` and `key_count` on the way
loaded      what comes of it
"""
