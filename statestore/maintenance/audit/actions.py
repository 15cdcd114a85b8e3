"""The next steps that several findings name."""

RESTORE = "restore the file from a backup"
UPGRADE = "upgrade Statekeeper; do not change the file"
START_JOB = "start the job: it writes the file again"
REPAIR = "statekeeper repair ROOT --apply --confirm-stopped"
