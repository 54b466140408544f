#!/usr/bin/env bash
# From a fresh clone to a policy that has learned to search: makes .venv, installs, and runs LcRL on the atlas.
#   bash launch/quickstart.sh           into runs/quickstart; run again, it continues that run, and once
#                                       that is done it takes runs/quickstart-2, -3, ...
#   bash launch/quickstart.sh --gin.SEED=1 --output_dir=runs/seed-1        other words go to `lcrag train`
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
prepare_environment ""

folder=runs/quickstart
number=2
while [ -e "$folder/report.md" ]; do
  folder=runs/quickstart-$number
  number=$((number + 1))
done
if [ -e "$folder/config.gin" ]; then
  echo "Continuing the run in $folder"
fi
echo "Training takes 6 to 12 minutes on two cores, the first of which compile"
# A later --output_dir replaces this one.
.venv/bin/lcrag train --gin_file=quickstart.gin --output_dir="$folder" "$@"
echo "For the command lcrag in this shell: source .venv/bin/activate"
