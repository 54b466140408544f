#!/usr/bin/env bash
# Checks everything: format, lint, types, tests. Makes .venv first if need be.
#   bash launch/test.sh                 the fast tests
#   bash launch/test.sh --quick         before a commit: lint, and the tests of what is most often changed
#   bash launch/test.sh -m slow         other arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
prepare_environment test

.venv/bin/ruff format --check .
.venv/bin/ruff check .
if [ "${1:-}" = --quick ]; then
  shift
  # Without those that load transformers or compare a sampler with the trainer: under 90 seconds on two cores.
  exec .venv/bin/python -m pytest --quiet -n 2 --dist loadfile \
    -k "not of_transformers and not qwen3_without and not is_the_trainers" \
    tests/rewards tests/learning/test_learning_losses.py tests/sampling/test_sampling_choice.py tests/episodes \
    tests/methods tests/data/test_data_questions.py \
    tests/train/test_train_runs.py::test_a_small_rollout_has_fewer_mini_batches "$@"
fi
.venv/bin/mypy
.venv/bin/python -m pytest --quiet -n 2 --dist loadfile --durations 10 "$@"
