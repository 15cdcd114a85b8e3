"""Benchmarks: each runs Statekeeper and what it is compared with on the same input in one run, and prints the ratio."""
