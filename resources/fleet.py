"""The fleet of checkpoints in `statekeeper.toml`, the file that the command line also reads."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from statekeeper.resources.worker import Worker, tag_run
from statekeeper.statestore.base.messages import with_name
from statekeeper.statestore.contents.quiet import QUIET_SECONDS
from statekeeper.statestore.maintenance.upkeep.snapshot import KEPT_BYTES
from statekeeper.statestore.maintenance.verbs import config, fleet
from statekeeper.statestore.maintenance.verbs.config import (
    Configuration,
    MirrorPolicy,
    Policies,
    RunsOn,
    SinkTable,
    StateTable,
    with_options_of,
)
from statekeeper.statestore.storage import Storage, open_storage
from statekeeper.statestore.storage.query_metrics import Prices


@dataclass(frozen=True, kw_only=True)
class OpenedQuery:
    """A checkpoint to maintain: its name, its storage, its policies, and the configuration file that names it. `prices`: of
    requests; `mirror`: None if it has none; `state_tables`: with its state; `sinks`: the tables that it writes; `submit`:
    the command that starts Spark; `job_prefix`, `has_rewrites`: those of its fleet."""

    name: str
    storage: Storage
    policies: Policies
    prices: Prices
    config_file: str
    mirror: MirrorPolicy | None = None
    job_prefix: str = ""
    has_rewrites: bool = True
    state_tables: tuple[StateTable, ...] = ()
    sinks: tuple[SinkTable, ...] = ()
    submit: tuple[str, ...] = ()

    @property
    def is_on_spark(self) -> bool:
        """Whether a Spark cluster does the work on each of its stores."""
        return self.policies.executor is RunsOn.SPARK

    def command(self, verb: str, *options: str) -> str:
        """The `statekeeper` command that applies a verb to this query."""
        return _command(self.config_file, verb, self.name, *options)

    def pasteable(self, text: str) -> str:
        """The text with commands that can be pasted: with the name of this query, and the configuration that names it."""
        return with_name(text, self.name, before=("--config", self.config_file))


QUERIES_PER_RUN = 25
"""Default of the most queries that one run maintains."""

KEPT_TABLES_MIB = KEPT_BYTES // 1024**2
"""Default of the disk space for SST files that stay between runs."""

FLEET_TAG = "statekeeper/fleet"
"""The tag of a run with the name of its fleet. Other teams and other fleets can use the same Dagster instance. The jobs of
a fleet have it, so their runs have it before they start."""


class Fleet(dg.ConfigurableResource):
    """Reads the configuration at each call, so a changed policy applies from the next run. A broken file of several stops
    only its own queries.

    The caller opens storages and does not keep them. Storages on S3 share a client while the process lives.
    """

    name: str = ""
    """The name of the fleet. Two fleets of one Dagster instance have different names. Default: `config_file`."""

    config_file: str
    """Path of `statekeeper.toml`, of a folder with one file for each team, or of a pattern such as `teams/*.toml`."""
    scratch: str
    """Folder on a local disk for temporary files."""
    worker: dg.ResourceDependency[Worker]
    """The sign of life of the run that uses the fleet."""
    job_prefix: str = ""
    """The prefix of the names of its jobs and ops."""
    has_rewrites: bool = True
    """Whether it has jobs that rewrite the state of a stopped query."""
    quiet_seconds: float = QUIET_SECONDS
    """Seconds without a change after which a query counts as stopped."""
    queries_per_run: int = QUERIES_PER_RUN
    """The most queries of one run of `maintain_queries`; the other queries are due at the next tick."""
    kept_tables_mib: int = KEPT_TABLES_MIB
    """Most MiB below `scratch` for SST files of the newest snapshots, so that the next run does not fetch them again; 0
    keeps none."""

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Tag the run with the name of the fleet, also if a person launched an asset without its job."""
        if context.instance is not None and context.run is not None:
            tag_run(context.instance, context.run.run_id, {FLEET_TAG: self.label})

    @property
    def label(self) -> str:
        """The name of the fleet in the tags of its runs."""
        return self.name or self.config_file

    def configuration(self) -> Configuration:
        """The configuration. Raises `BadConfiguration`."""
        return config.load(Path(self.config_file))

    def people(self) -> Configuration:
        """What an invalid configuration says of the people to tell."""
        return config.people_of(Path(self.config_file))

    def discover(self) -> fleet.Fleet:
        """Find the checkpoints. Raises `BadConfiguration`."""
        return fleet.discover(self.configuration())

    def open(self, query: str, configuration: Configuration | None = None) -> OpenedQuery:
        """Open a checkpoint by its name. Raises `BadConfiguration`, or `StorageError` for an unknown name.

        `configuration`: the one to use; default: that of the file.
        """
        configuration = configuration or self.configuration()
        root = configuration.find(query)
        return OpenedQuery(
            name=query,
            storage=open_storage(root.spec, is_hurried=False),
            policies=root.policies,
            prices=root.prices,
            config_file=self.config_file,
            mirror=root.mirror,
            job_prefix=self.job_prefix,
            has_rewrites=self.has_rewrites,
            state_tables=root.state_tables,
            sinks=root.sinks,
            submit=root.submit,
        )

    def open_destination(self, name: str, source: OpenedQuery) -> Storage:
        """Open the destination of a copy; see `with_options_of`. Raises `BadConfiguration`, `StorageError`."""
        configuration = self.configuration()
        return open_storage(
            with_options_of(configuration.find(source.name).spec, configuration.find(name).spec), is_hurried=False
        )

    def command(self, verb: str, query: str) -> str:
        """The `statekeeper` command that applies a verb to a query."""
        return _command(self.config_file, verb, query)

    def scratch_folder(self) -> Path:
        """The folder for temporary files."""
        return Path(self.scratch)


def _command(config_file: str, verb: str, query: str, *options: str) -> str:
    return shlex.join(["statekeeper", "--config", config_file, verb, query, *options])
