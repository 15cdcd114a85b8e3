"""Bytes <-> values. Pure: no I/O, no clock, no randomness."""
