#!/usr/bin/env bash
# A whole study of LcRL: trains or evaluates every point with every seed, then gathers them in tables and figures.
#   bash launch/study.sh tables                 tables 1 and 2: LcRL, its baselines and its ablations
#   bash launch/study.sh ablations              table 2 alone: what each part of LcRL is worth
#   bash launch/study.sh data                   figure 4: 25, 50, 75 and 100 % of the training questions
#   bash launch/study.sh training_languages     figure 5: one to eight training languages
#   bash launch/study.sh collections            figure 3: how many languages may be searched
#   bash launch/study.sh retrieval              figure 3: which languages may be searched
#   bash launch/study.sh curves                 figure 6: reward and response length over the steps
# Other words go to every `lcrag train`. What is done already is not done again. Settings, from the environment:
#   EXPERIMENT=quickstart.gin   what is studied; it has the macro SEED
#   SEEDS="0 1 2"               training seeds
#   METHODS="lcrl msearch_r1"   files of gin/method, lcrl being the experiment itself; each study has its own default
#   OUTPUT=runs/studies         where everything goes; the report is in OUTPUT/STUDY/report
#   SFT=sft.gin                 how the baseline SFT is trained in the study `tables`
#   JOBS=1                      how many run at once; of several, each writes its display into FOLDER.log
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
source launch/jobs.sh
prepare_environment

study=${1:-}
shift || true
experiment=${EXPERIMENT:-quickstart.gin}
output=${OUTPUT:-runs/studies}
read -ra seeds <<<"${SEEDS:-0 1 2}"

# method_file METHOD: the words that make an experiment one of this method.
method_file() {
  [ "$1" = lcrl ] || echo "--gin_file=method/$1.gin"
}

needs_training() {
  case $1 in lcrl | msearch_r1 | search_r1) true ;; *) false ;; esac
}

# train_point FOLDER SEED WORD...
train_point() {
  local folder=$1 seed=$2
  shift 2
  if [ ! -e "$folder/report.md" ]; then
    run_point "$folder" train --gin_file="$experiment" "$@" --gin.SEED="$seed"
  fi
}

# evaluate_point FOLDER WORD...
evaluate_point() {
  local folder=$1
  shift
  if [ ! -e "$folder/evaluation.json" ]; then
    run_point "$folder" evaluate --gin_file="$experiment" "$@"
  fi
}

# train_study POINT...: each a file of gin/study, "" being the experiment itself. The method's file comes last: it
# knows its own groups.
train_study() {
  local method point seed words
  for method in $methods; do
    for point in "$@"; do
      for seed in "${seeds[@]}"; do
        read -ra words <<<"${point:+--gin_file=study/$point.gin} $(method_file "$method")"
        train_point "$output/$study/$method-${point:-whole}-$seed" "$seed" "${words[@]}" "${others[@]}"
      done
    done
  done
}

# evaluate_study POINT...: trains each method once a seed, and evaluates it at every point.
evaluate_study() {
  local method point seed file folder policy
  for method in $methods; do
    read -ra file <<<"$(method_file "$method")"
    for seed in "${seeds[@]}"; do
      policy=()
      if needs_training "$method"; then
        folder=$output/trained/$method-$seed
        train_point "$folder" "$seed" "${file[@]}" "${others[@]}"
        wait_for_all
        policy=(--gin.policy.folder="'$folder/policy'")
      fi
      for point in "$@"; do
        evaluate_point "$output/$study/$method-$point-$seed" --gin_file="study/$point.gin" "${file[@]}" \
          "${policy[@]}" --gin.SEED="$seed"
      done
    done
  done
}

# One seed of everything after the other, so that a study which is stopped has whole seeds.
ablation_study() {
  local seed ablation
  for seed in "${seeds[@]}"; do
    train_point "$output/$study/lcrl-$seed" "$seed" "${others[@]}"
    for ablation in no_penalty exact_match independent_groups native_only ppo; do
      train_point "$output/$study/$ablation-$seed" "$seed" --gin_file="ablation/$ablation.gin" "${others[@]}"
    done
  done
}

baseline_study() {
  local seed method folder
  for seed in "${seeds[@]}"; do
    for method in msearch_r1 search_r1; do
      train_point "$output/$study/$method-$seed" "$seed" --gin_file="method/$method.gin" "${others[@]}"
    done
    folder=$output/$study/sft-$seed
    if [ ! -e "$folder/report.md" ]; then
      run_point "$folder" sft --gin_file="${SFT:-sft.gin}" --gin.SEED="$seed"
    fi
    for method in direct rag ircot search_o1 d_rag; do
      evaluate_point "$output/$study/$method-$seed" --gin_file="method/$method.gin" --gin.SEED="$seed"
    done
  done
}

others=("$@")
axis=()
case $study in
  tables)
    ablation_study
    baseline_study
    axis=(--against=mSearch-R1 --gin.compare_runs.also='("before",)')
    ;;
  ablations)
    ablation_study
    axis=(--against=LcRL)
    ;;
  data)
    methods=${METHODS:-lcrl msearch_r1}
    train_study data_25 data_50 data_75 data_100
    axis=(--axis=train.question_share)
    ;;
  training_languages)
    methods=${METHODS:-lcrl msearch_r1}
    train_study training_languages_{1,2,3,4,5,6,7,8}
    axis=(--axis=Evaluation.seen_languages)
    ;;
  collections)
    methods=${METHODS:-lcrl rag d_rag}
    evaluate_study collections_{1,2,3,5,8,13}
    axis=(--axis=largest_collections.count)
    ;;
  retrieval)
    methods=${METHODS:-lcrl rag d_rag}
    evaluate_study retrieval_{native,english,native_english,native_english_high,all}
    axis=(--axis=Method.collections)
    ;;
  curves)
    methods=${METHODS:-lcrl msearch_r1}
    train_study ""
    axis=(--against=mSearch-R1)
    ;;
  *)
    echo "lcrag: error: choose a study: tables, ablations, data, training_languages, collections, retrieval or curves" >&2
    exit 2
    ;;
esac
wait_for_all
.venv/bin/lcrag report "$output/$study" "${axis[@]}" --output_dir="$output/$study/report"
