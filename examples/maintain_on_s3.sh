#!/usr/bin/env bash
# Maintain a checkpoint in a bucket; run it from cron, for example every ten minutes:
#     maintain_on_s3.sh s3://bucket/orders/checkpoint
# Credentials come from the environment, ~/.aws or the machine's role. For a store other than Amazon's, set AWS_ENDPOINT_URL.
set -euo pipefail
root=$1

statekeeper inspect "$root"
statekeeper snapshot "$root" --mode snapshots   # makes a restart shorter
statekeeper gc "$root" --mode full --apply      # deletes files older than the retention allows
