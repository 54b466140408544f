#!/usr/bin/env bash
# Translation and search, with the tool and without: a cold start of each, then training with every seed, then one table.
#   bash launch/translate_and_search.sh
# Other words go to every `lcrag train`. What is done already is not done again. Settings, from the environment:
#   SEEDS="0 1 2"                           training seeds
#   OUTPUT=runs/translate_and_search        where everything goes; the report is in OUTPUT/report
#   JOBS=1                                  how many run at once; of several, each writes its display into FOLDER.log
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
source launch/jobs.sh
prepare_environment

experiment=translate_and_search_atlas
output=${OUTPUT:-runs/translate_and_search}
read -ra seeds <<<"${SEEDS:-0 1 2}"

# set_variant with|without: the words that make the experiment so, and the folder of its cold start.
set_variant() {
  words=()
  cold_start=$output/cold-start
  if [ "$1" = without ]; then
    words=(--gin_file=ablation/no_translation.gin)
    cold_start=$output/cold-start-without
  fi
}

for variant in with without; do
  set_variant "$variant"
  if [ ! -e "$cold_start/report.md" ]; then
    run_point "$cold_start" sft --gin_file="${experiment}_sft.gin" "${words[@]}"
  fi
done
wait_for_all

for seed in "${seeds[@]}"; do
  for variant in with without; do
    set_variant "$variant"
    folder=$output/study/$variant-$seed
    if [ ! -e "$folder/report.md" ]; then
      run_point "$folder" train --gin_file="$experiment.gin" "${words[@]}" \
        --gin.policy.folder="'$cold_start/policy'" --gin.SEED="$seed" "$@"
    fi
  done
done
wait_for_all
.venv/bin/lcrag report "$output/study" --output_dir="$output/report"
