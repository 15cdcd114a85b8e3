"""The plan of a switchover."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine.model import Plan, StoreStep


@dataclass(frozen=True, kw_only=True)
class SwitchPlan(Plan):
    """The steps of a switchover, in order: quarantine the files `first`, make the snapshots of the `stores`, rewrite the
    newest commit, quarantine the files `last`.

    stays_files, stays_bytes   files of the old structure that are kept
    """

    rewrite: RewriteKind = RewriteKind.SWITCH
    to: Structure
    stores: tuple[StoreStep, ...]
    first: tuple[str, ...]
    last: tuple[str, ...]
    conf: StateConf = OURS
    stays_files: int = 0
    stays_bytes: int = 0

    @property
    def start_with(self) -> str:
        """The conf with which to start the query afterwards, or the argument of the own job."""
        if self.origin is Origin.OWN:
            return f"structure=Structure.{self.to.name}"
        return " ".join(f"{name}={value}" for name, value in self.to.conf.items())

    @property
    def read_bytes(self) -> int:
        """Bytes to download for all stores."""
        return sum(step.read_bytes for step in self.stores)

    @property
    def write_bytes(self) -> int:
        """Bytes to upload for all stores."""
        return sum(step.write_bytes for step in self.stores)
