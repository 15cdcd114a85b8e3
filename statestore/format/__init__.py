"""Parsers and encoders of Spark's and Statekeeper's files. Pure: no I/O, no clock, no randomness."""
