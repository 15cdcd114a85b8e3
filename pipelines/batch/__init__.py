"""A batch on the driver, from the query's offsets to the commit, and what it reports."""
