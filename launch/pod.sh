#!/usr/bin/env bash
# Starts a training on a TPU slice by queued resources: bash launch/pod.sh --zone=Z --accelerator=v5litepod-16 -- train ...
# `lcrag launch --help` lists the options, docs/pods.md shows the whole way; --dry_run prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
prepare_environment
exec .venv/bin/lcrag launch pod "$@"
