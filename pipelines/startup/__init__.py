"""Everything before the first batch: the session, the inputs, the checks before a start, and the start of the query."""
