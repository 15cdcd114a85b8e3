"""The flights out of New York in 2013: a job on real data."""
