"""What every package uses: the clock, ids, errors, durations, redaction, workers and parts of messages.

It imports nothing else of Statekeeper and knows nothing about checkpoints.
"""
