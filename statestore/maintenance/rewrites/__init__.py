"""What gives a stopped query new versions: switch, rescale, convert, load, edit and evolve.

`engine` has the lifecycle of all of them, and `kinds` the steps of each. `switchover` makes new snapshots from files,
`edits` changes single rows, and `whole_stores` writes all rows of a store anew. `evolution` has the columns of an evolve.
"""
