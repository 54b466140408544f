#!/usr/bin/env bash
# RAG-R1, stage after stage: demonstrations, SFT, the selection of questions, PPO; then a report of all that was done.
#   bash launch/rag_r1.sh                    several queries at once
#   bash launch/rag_r1.sh single             one query at a time
#   bash launch/rag_r1.sh ablations          both, and without SFT, without RL, without selection
# Other words go to every command. What is done already is not done again. Settings, from the environment:
#   EXPERIMENT=rag_r1_atlas.gin   the experiment; gin/rag_r1.gin is the paper's
#   SEEDS="0 1 2"                 seeds of PPO and evaluation; all before PPO is made once, with the first
#   OUTPUT=runs/rag_r1            where everything goes; the report is in OUTPUT/report
#   JOBS=1                        how many trainings run at once; of several, each writes its display into FOLDER.log
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
source launch/jobs.sh
prepare_environment

what=several
case ${1:-} in
  single | ablations)
    what=$1
    shift
    ;;
esac
experiment=${EXPERIMENT:-rag_r1_atlas.gin}
output=${OUTPUT:-runs/rag_r1}
read -ra seeds <<<"${SEEDS:-0}"
others=("$@")

# point FOLDER DONE COMMAND...: at once or beside others, unless its last file is there already.
point() {
  local folder=$1 done=$2 command=$3
  shift 3
  if [ ! -e "$folder/$done" ]; then
    run_point "$folder" $command --gin_file="$experiment" "$@" "${others[@]}"
  fi
}

# stage FOLDER DONE COMMAND...: a point that others wait for.
stage() {
  point "$@"
  wait_for_all
}

# set_mode several|single: the words that make the experiment so.
set_mode() {
  mode=()
  if [ "$1" = single ]; then mode=(--gin_file=method/rag_r1_single.gin); fi
  made=$output/made/$1
}

# The data of stages 1 and 1b, and the policy of stage 1.
prepare() {
  set_mode "$1"
  stage "$made/demonstrations" report.json "curate demonstrations" "${mode[@]}"
  stage "$made/sft" report.md sft "${mode[@]}" --gin.SEED="${seeds[0]}" \
    --gin.demonstration_files.files="('$made/demonstrations/rows.jsonl',)"
  stage "$made/selection" report.json "curate selection" "${mode[@]}" --gin.SEED="${seeds[0]}" \
    --gin.policy.folder="'$made/sft/policy'" --gin.selection.demonstrated="'$made/demonstrations'"
}

# reinforce NAME MODE SFT|BASE QUESTIONS WORD...: PPO on a file of the selection.
reinforce() {
  local name=$1 start=$3 questions=$4 seed from=()
  set_mode "$2"
  shift 4
  if [ "$start" = SFT ]; then from=(--gin.policy.folder="'$made/sft/policy'"); fi
  for seed in "${seeds[@]}"; do
    point "$output/study/$name-$seed" report.md train "${mode[@]}" --gin_file=data/selected.gin "$@" "${from[@]}" \
      --gin.train/jsonl_questions.files="('$made/selection/$questions',)" --gin.SEED="$seed"
  done
}

# evaluate_sft NAME MODE WORD...
evaluate_sft() {
  local name=$1 seed
  set_mode "$2"
  shift 2
  for seed in "${seeds[@]}"; do
    point "$output/study/$name-$seed" evaluation.json evaluate "${mode[@]}" "$@" \
      --gin.policy.folder="'$made/sft/policy'" --gin.SEED="$seed"
  done
}

modes=("$what")
if [ "$what" = ablations ]; then modes=(several single); fi
for each in "${modes[@]}"; do
  prepare "$each"
  reinforce "$each" "$each" SFT train.jsonl
done
if [ "$what" = ablations ]; then
  reinforce without_sft several BASE train.jsonl --gin_file=ablation/rag_r1_without_sft.gin
  reinforce without_selection several SFT unfiltered.jsonl --gin_file=ablation/rag_r1_without_selection.gin
  evaluate_sft without_rl several --gin_file=ablation/rag_r1_without_rl.gin
fi
wait_for_all
.venv/bin/lcrag report "$output/study" --output_dir="$output/report" \
  --gin.compare_runs.metrics='("squad_exact_match", "searches", "retrieval_rounds")'
