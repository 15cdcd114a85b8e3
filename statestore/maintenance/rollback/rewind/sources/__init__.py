"""The sources of a query after a rewind: the data that they must still have, and the data that they no longer have.

data       reads the data that each source must have from the offsets and the logs of file sources
look_ups   looks up this data: files here, and the others with
delta      the versions and files of a Delta table
kafka      the offsets of topics
"""

from statekeeper.statestore.maintenance.rollback.rewind.sources.data import SourceData, read
from statekeeper.statestore.maintenance.rollback.rewind.sources.kafka import client_properties
from statekeeper.statestore.maintenance.rollback.rewind.sources.look_ups import SourceLocations, SourceNeed, look_up

__all__ = ["SourceData", "SourceLocations", "SourceNeed", "client_properties", "look_up", "read"]
