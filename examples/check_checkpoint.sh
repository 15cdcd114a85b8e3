#!/usr/bin/env bash
# Fail a CI job if a checkpoint is damaged. It only reads the checkpoint.
#     check_checkpoint.sh s3://bucket/orders/checkpoint [REPORT.json]
# Exit code: 0 clean, 3 findings; `statekeeper --help` lists the others. As a step of a GitHub workflow:
#     - run: ./check_checkpoint.sh s3://bucket/orders/checkpoint report.json
set -euo pipefail
root=$1
report=${2:-audit.json}

# --deep reads and decodes every byte. Leave it out for a large checkpoint: names and lineage are verified in seconds.
statekeeper audit "$root" --deep --output json > "$report"
