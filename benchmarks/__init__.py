"""Benchmarks: each runs Statekeeper and its peer on the same input in one run, and prints the ratio."""
