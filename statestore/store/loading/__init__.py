"""Loads of one version onto this host: from the local copy or a snapshot, plus the changelogs after it.

request     one version of one store to load
facts       the snapshots of the store in storage
planning    from request and facts to the base and the changelogs; `lineage` or `confirmed` decides
base        a snapshot, fetched and opened
changelogs  fetched once, read in windows
records     the records of one file, by the provider that wrote it
replay      the changelogs of a plan, applied to the database; uses `merges` and `key_count`
loader      the order of steps, and the alternative when one fails
loaded      the results: an open version and a report
"""
