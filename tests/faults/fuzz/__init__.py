"""Runs every verb on damaged checkpoints: `make fuzz`.

roots     the checkpoints to damage: native fixtures, and roots of Statekeeper
files     a tree on disk: its files by kind, and copies that preserve links, FIFOs and sparse files
damages   one function for each kind of damage
verbs     every verb of the command line with its arguments
loading   the rows that the library loads of each head
case      one case: its damages, its verbs and the invariants
dispatch  one process per case, with limits of time and memory
"""
