"""What maintenance writes below `_statekeeper/` of a root: the lease, holds, announcements, the history and the quarantine.

The records are advice or evidence. No reader of the state needs them.
"""
