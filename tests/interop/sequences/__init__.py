"""Seeded random sequences of verbs, batches and damages, with Spark as the oracle: `make sequences SEEDS=100`.

Verbs that are right alone can fail one after another. A sequence has 4 to 12 steps on one checkpoint. Each step is a verb,
some batches of Spark, a verb that is killed and then finished or aborted, or damage to a file. After each step:

- Spark starts on a copy of the checkpoint and processes a batch, if and only if the audit has no error about the restart
- the rows of this batch, and the state before and after it, are those of a twin
- each command that the audit or the verb prints works on a copy
- a verb that the checkpoint allows is not rejected; a rejection names a command after which the verb is accepted

    python -m tests.interop.sequences --seed 17                    one sequence again, with its steps
    python -m tests.interop.sequences --seed 17 --steps 0,3,4      only these of its steps
    python -m tests.interop.sequences --seed 0 --count 300         many; a failure is shrunk to the steps that it needs

model      what a checkpoint must contain after each batch: the twin's batch, structure, provider and partitions
worlds     a native query or a job on `pipelines`, with its checkpoint, its twin and its copies
commands   the commands that an output prints
checks     the checks after each step
steps      the steps; each chooses its details from the world as it is, so that other steps can be omitted
play       plays, shrinks and counts sequences
"""
