"""The verbs that change a checkpoint, what they share, and `contract`: how all of them run.

    prepare(Rescale(partitions=8), run)   gather -> plan -> guards                              reads only
        the caller shows the plan and asks for confirmation
    perform(prepared)                     guards -> stopped? -> plan again -> lease -> history -> execute

The command line, Dagster and Python call these two functions and differ only in their prompts and displays; `unattended`
does both for a schedule. A verb is a frozen dataclass with its options. It belongs here if it changes files of a root; how
it plans and changes them belongs to the rooms `upkeep`, `rewrites`, `rollback` and `copies`.

The refusals of a plan have this order. A verb that states nothing else has all of these guards:

    the mode allows it              a configured mode must be `full`. `gc` needs `full` as a default, too; `snapshot` and
                                    `unpack` need a mode other than `observe`; copies need none, because they write
                                    nothing into their source in mode `observe`
    no rewrite is half done         but a rewrite completes one of its own kind, and `Rollback` reverses it
    the plan does not refuse itself the plan of a rewrite contains the audit. `gc` refuses while the audit reports lost or
                                    wrong state
    no other maintainer works on it copies: it does not delete files of the source, and does not work on the destination.
                                    `unpack` and `savepoint --delete` work beside any other verb
    the query is stopped            a person has confirmed it, and the checkpoint does not change for some seconds.
                                    `snapshot`, `gc` and copies need it only for files that Spark may still replace
"""
