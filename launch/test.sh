#!/usr/bin/env bash
# Checks everything: format, lint, types, tests. Makes .venv first if need be.
#   bash launch/test.sh                 the fast tests
#   bash launch/test.sh -m slow         other arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
prepare_environment test

.venv/bin/ruff format --check .
.venv/bin/ruff check .
.venv/bin/mypy
.venv/bin/python -m pytest --quiet -n 2 --dist loadfile --durations 10 "$@"
