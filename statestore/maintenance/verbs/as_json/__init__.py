"""Encodes plans and outcomes as JSON objects, for the history and for the output of commands: a file for each room of
`maintenance`, so that a verb imports only its own.

Programs read some of them back from the history; `records.history` has the types of these.
"""
