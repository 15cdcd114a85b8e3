"""What gives a stopped query new versions: switch, rescale, convert, load, edit and evolve.

`engine` makes new snapshots from the rows of all stores, `switchover` from files, and `edits` from single rows.
"""
