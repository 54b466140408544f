#!/usr/bin/env bash
# Starts a training on hosts reached by ssh: bash launch/ssh.sh --hosts=a,b -- train ...
# `lcrag launch --help` lists the options, docs/pods.md shows the whole way; --dry_run prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
prepare_environment
exec .venv/bin/lcrag launch ssh "$@"
