"""The next steps that several findings name."""

from statestore.format.provider import Provider

RESTORE = "restore the file from a backup"
UPGRADE = "upgrade Statekeeper; do not change the file"
START_JOB = "start the job: it writes the file again"
REPAIR = "statekeeper repair ROOT --apply --confirm-stopped"


def move_away(provider: Provider, files: str) -> str:
    """The step that moves files out of a store's folder. `repair` does not support Spark's default provider."""
    return f"run: {REPAIR}" if provider is Provider.ROCKSDB else f"move {files} out of the checkpoint"
