"""What Dagster hands to assets, sensors and schedules: the fleet of checkpoints, the notifier, the sign of life of a run.

Here belongs how the outside is reached. What is done with it is the business of `assets`, and how it is done that of
`statestore`.
"""

from resources.fleet import Fleet, OpenedQuery
from resources.notifier import Notifier
from resources.worker import HOLDER_TAG, Worker, forget_dead, holder, is_dead

__all__ = ["HOLDER_TAG", "Fleet", "Notifier", "OpenedQuery", "Worker", "forget_dead", "holder", "is_dead"]
