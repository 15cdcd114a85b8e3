"""Runs every verb on damaged checkpoints: `make fuzz`.

roots     the checkpoints that are damaged: fixtures that Spark wrote, and roots of our own
files     a tree on disk: its files by kind, copies that keep links, FIFOs and sparse files
damages   one function for each kind of damage
verbs     every verb of the command line, with the arguments that this harness gives it
loading   the rows that the library loads of each head
case      one case: which damage, which verbs, and what must hold
dispatch  a process for each case, with limits of time and memory
"""
