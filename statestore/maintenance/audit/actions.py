"""The next steps that several findings name."""

from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.audit.findings import Restart

RESTORE = "restore the file from a backup"
UPGRADE = "upgrade Statekeeper; do not change the file"
START_JOB = "start the job: it writes the file again"
REPAIR = "statekeeper repair ROOT --apply --confirm-stopped"


def move_away(provider: Provider, files: str) -> str:
    """The step that moves files out of a store's folder. `repair` does not support Spark's default provider."""
    return f"run: {REPAIR}" if provider is Provider.ROCKSDB else f"move {files} out of the checkpoint"


def roll_back(restart: Restart, *, has_backup: bool = True, fix: str = RESTORE) -> str:
    """The step after a loss at the newest batch: restore the file, or roll back to the newest batch that works. `fix`: what
    makes the file usable."""
    if restart.batch is None:
        return fix if has_backup else "ask for help with the output of: statekeeper audit ROOT --output json"
    command = f"roll back to batch {restart.batch}: statekeeper rewind ROOT --to-batch {restart.batch}"
    return f"{fix}, or {command}" if has_backup else command
