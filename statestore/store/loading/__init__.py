"""Loads of one version onto this host: from the local copy or a snapshot, plus the changelogs after it.

planning    from a request and the snapshots in storage to the base and the changelogs; `lineage` decides, or the commit log
base        a snapshot, fetched and opened
changelogs  fetched once, read in windows
records     the records of one file, by the provider that wrote it
replay      the changelogs of a plan, applied to the database; merges and counts keys
loader      the order of steps, and the alternative when one fails
loaded      the results: an open version and a report
"""
