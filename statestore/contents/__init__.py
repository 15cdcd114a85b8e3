"""What a checkpoint holds: the versions of a store that load, their rows, and what a start of the query reads."""
