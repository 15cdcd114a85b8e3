"""The steps of each kind of rewrite, for `engine.execute`, `engine.rollback` and `engine.revert`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.maintenance.rewrites.edits import EditSteps
from statekeeper.statestore.maintenance.rewrites.engine import RewriteSteps
from statekeeper.statestore.maintenance.rewrites.migration import MigrationSteps
from statekeeper.statestore.maintenance.rewrites.switchover import SwitchSteps
from statekeeper.statestore.maintenance.rewrites.whole_stores import WholeStoreSteps

STEPS: Mapping[RewriteKind, RewriteSteps[Any]] = {
    RewriteKind.SWITCH: SwitchSteps(),
    RewriteKind.EDIT: EditSteps(),
    RewriteKind.RESCALE: WholeStoreSteps(),
    RewriteKind.CONVERT: WholeStoreSteps(),
    RewriteKind.LOAD: WholeStoreSteps(),
    RewriteKind.EVOLVE: WholeStoreSteps(),
    RewriteKind.MIGRATE: MigrationSteps(),
}
