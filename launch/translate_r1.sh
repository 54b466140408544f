#!/usr/bin/env bash
# Translate-R1 with every cost of a tool call: one cold start, then each method with every seed, then one report.
#   bash launch/translate_r1.sh
# Other words go to every `lcrag train`. What is done already is not done again. Settings, from the environment:
#   EXPERIMENT=translate_r1_atlas.gin       what is trained; it has the macro SEED
#   COLD_START=translate_r1_atlas_sft.gin   how the policy that all begin with is made; "": the experiment's own one
#   METHODS="none free flat otc ungated gated"   files gin/ablation/translate_r1_METHOD.gin
#   SEEDS="0 1 2"                           training seeds
#   OUTPUT=runs/translate_r1                where everything goes; the report is in OUTPUT/report
#   JOBS=1                                  how many run at once; of several, each writes its display into FOLDER.log
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
source launch/jobs.sh
prepare_environment

experiment=${EXPERIMENT:-translate_r1_atlas.gin}
cold_start=${COLD_START-translate_r1_atlas_sft.gin}
output=${OUTPUT:-runs/translate_r1}
read -ra methods <<<"${METHODS:-none free flat otc ungated gated}"
read -ra seeds <<<"${SEEDS:-0 1 2}"

policy=()
if [ -n "$cold_start" ]; then
  policy=(--gin.policy.folder="'$output/cold-start/policy'")
  if [ ! -e "$output/cold-start/report.md" ]; then
    run_point "$output/cold-start" sft --gin_file="$cold_start"
    wait_for_all
  fi
fi

# One seed of everything after the other, so that a study which is stopped has whole seeds.
for seed in "${seeds[@]}"; do
  for method in "${methods[@]}"; do
    folder=$output/study/$method-$seed
    if [ ! -e "$folder/report.md" ]; then
      run_point "$folder" train --gin_file="$experiment" --gin_file="ablation/translate_r1_$method.gin" \
        "${policy[@]}" --gin.SEED="$seed" "$@"
    fi
  done
done
wait_for_all
.venv/bin/lcrag report "$output/study" --gin_file=translate_r1_report.gin --output_dir="$output/report"
