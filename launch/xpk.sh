#!/usr/bin/env bash
# Starts a training on a GKE cluster made for XPK: bash launch/xpk.sh --cluster=C --accelerator=v5litepod-16 --image=I -- train ...
# `lcrag launch --help` lists the options, docs/pods.md shows the whole way; --dry_run prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
prepare_environment
exec .venv/bin/lcrag launch xpk "$@"
