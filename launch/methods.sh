#!/usr/bin/env bash
# A method's variants side by side: its cold starts, then every variant with every seed, then one report.
#   bash launch/methods.sh r_search               by GRPO, by PPO, and without evidence
#   bash launch/methods.sh globalrag              with the plan's rewards, without them, and with constant weights
#   bash launch/methods.sh translate_r1           every cost of a tool call
#   bash launch/methods.sh translate_and_search   both at once, and search alone
# Other words go to every `lcrag train`. What is done already is not done again. Settings, from the environment:
#   EXPERIMENT=METHOD_atlas         EXPERIMENT.gin is trained, from what EXPERIMENT_sft.gin makes
#   COLD_START=made                 "": nothing is made, each variant begins with the experiment's own policy
#   VARIANTS="free gated"           only these, by the names below
#   SEEDS="0 1 2"                   training seeds
#   OUTPUT=runs/methods/METHOD      where everything goes; the report is in OUTPUT/report
#   JOBS=1                          how many run at once; of several, each writes its display into FOLDER.log
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
source launch/jobs.sh
prepare_environment

# Each "NAME FILE...": the files of gin/ablation that make a cold start or a variant. A variant begins with the cold start
# of its own name, if there is one, else with the first.
report=()
case ${1:-} in
  r_search)
    starts=("grpo" "without_evidence no_evidence")
    variants=("grpo" "ppo r_search_ppo" "without_evidence no_evidence")
    report=(--gin.compare_runs.metrics='("squad_f1", "squad_exact_match", "searches", "answered")')
    ;;
  globalrag)
    starts=("full")
    variants=("full" "outcome_only globalrag_outcome_only" "constant_weights globalrag_constant_weights")
    report=(--gin.compare_runs.metrics='("squad_exact_match", "squad_f1", "searches", "answered")')
    ;;
  translate_r1)
    starts=("any")
    variants=()
    for cost in none free flat otc ungated gated; do variants+=("$cost translate_r1_$cost"); done
    report=(--gin_file=translate_r1_report.gin)
    ;;
  translate_and_search)
    starts=("both" "search_alone no_translation")
    variants=("${starts[@]}")
    ;;
  *)
    echo "which method: r_search, globalrag, translate_r1 or translate_and_search?" >&2
    exit 2
    ;;
esac
method=$1
shift
experiment=${EXPERIMENT:-${method}_atlas}
output=${OUTPUT:-runs/methods/$method}
read -ra seeds <<<"${SEEDS:-0 1 2}"

# files FILE...: the words that add these ablations.
files() {
  local file
  for file in "$@"; do echo "--gin_file=ablation/$file.gin"; done
}

chosen() {
  [ -z "${VARIANTS:-}" ] || [[ " $VARIANTS " = *" $1 "* ]]
}

# start_of VARIANT: the name of the cold start that it begins with.
start_of() {
  local start
  for start in "${starts[@]}"; do
    if [ "${start%% *}" = "$1" ]; then echo "$1" && return; fi
  done
  echo "${starts[0]%% *}"
}

needed=" "
names=" ${variants[*]%% *} "
for name in ${VARIANTS:-$names}; do
  if [[ $names != *" $name "* ]]; then
    echo "VARIANTS=$VARIANTS: there is no $name, $method has$names" >&2
    exit 2
  fi
  needed+="$(start_of "$name") "
done
if [ -z "${COLD_START-made}" ]; then needed=" "; fi

for start in "${starts[@]}"; do
  read -r name ablations <<<"$start"
  folder=$output/cold-start/$name
  if [[ $needed = *" $name "* && ! -e $folder/report.md ]]; then
    run_point "$folder" sft --gin_file="${experiment}_sft.gin" $(files $ablations)
  fi
done
wait_for_all

# One seed of everything after the other, so that a study which is stopped has whole seeds.
for seed in "${seeds[@]}"; do
  for variant in "${variants[@]}"; do
    read -r name ablations <<<"$variant"
    folder=$output/study/$name-$seed
    policy=(--gin.policy.folder="'$output/cold-start/$(start_of "$name")/policy'")
    if [ -z "${COLD_START-made}" ]; then policy=(); fi
    if chosen "$name" && [ ! -e "$folder/report.md" ]; then
      run_point "$folder" train --gin_file="$experiment.gin" $(files $ablations) "${policy[@]}" --gin.SEED="$seed" "$@"
    fi
  done
done
wait_for_all
.venv/bin/lcrag report "$output/study" "${report[@]}" --output_dir="$output/report"
