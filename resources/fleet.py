"""The fleet of checkpoints, as `statekeeper.toml` names them: the same file that the command line reads."""

from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from resources.worker import Worker
from statestore.maintenance import config, fleet
from statestore.maintenance.config import Configuration, Policies
from statestore.maintenance.quiet import QUIET_SECONDS
from statestore.storage import Storage, open_storage


@dataclass(frozen=True)
class OpenedQuery:
    """One checkpoint, ready to be worked on: its name, its storage, and how it is looked after."""

    name: str
    storage: Storage
    policies: Policies


class Fleet(dg.ConfigurableResource):
    """Reads the configuration anew each time: a changed policy holds from the next run on.

    Storages are opened by who uses them, never kept: those on S3 share a client for as long as the process lives.
    """

    config_file: str
    """Path of `statekeeper.toml`."""
    scratch: str
    """A folder on local disk to work in."""
    worker: dg.ResourceDependency[Worker]
    """The sign of life of the run that works with the fleet."""
    quiet_seconds: float = QUIET_SECONDS
    """How long a checkpoint must not change before its query counts as stopped."""

    def configuration(self) -> Configuration:
        """What the file says. Raises `BadConfiguration`."""
        return config.load(Path(self.config_file))

    def discover(self) -> fleet.Fleet:
        """The checkpoints that there are. Raises `BadConfiguration`."""
        return fleet.discover(self.configuration())

    def open(self, query: str) -> OpenedQuery:
        """A checkpoint by its name. Raises `BadConfiguration`, `StorageError` for a name that is no root."""
        root = self.configuration().find(query)
        return OpenedQuery(query, open_storage(root.spec), root.policies)

    def scratch_folder(self) -> Path:
        """The folder to work in, as a path."""
        return Path(self.scratch)
