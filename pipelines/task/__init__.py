"""The work of Spark's Python workers: the stores of a group of partitions, the state of its keys, timers and outputs."""
