#!/usr/bin/env bash
# Times lcrag and its peers on the same work in one run, and prints one dated Markdown table of ratios.
#   bash benchmarks/against_peers.sh [PART...]     about 35 minutes on two idle cores; the first run also installs the peers
# Parts: generation rollouts rollouts_6 long_tailed update step rewards retrieval hnsw. Without any: all of them.
#   LCRAG_PEERS     folder of the peers' environments and vectors (default ~/.cache/lcrag-peers)
#   LCRAG_PYTHON    Python with lcrag[test] installed (default .venv/bin/python)
#   LCRAG_SECONDS   most seconds of the whole run, environments not counted (default 2400); parts that no longer fit are named
#   LCRAG_SMOKE=1   tiny sizes: shows that everything runs, figures mean nothing
# Rows are kept as JSON in $LCRAG_PEERS/rows.jsonl, what the parts print in $LCRAG_PEERS/logs.
set -u
cd "$(dirname "$(readlink -f "$0")")/.." || exit 1
export LCRAG_PEERS=${LCRAG_PEERS:-$HOME/.cache/lcrag-peers}
export LCRAG_BENCHMARK_ROWS=$LCRAG_PEERS/rows.jsonl
threads=$(nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false TF_CPP_MIN_LOG_LEVEL=3
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu} TQDM_DISABLE=1
python=${LCRAG_PYTHON:-.venv/bin/python} most=${LCRAG_SECONDS:-2400}
torch=$LCRAG_PEERS/vt/bin/python tunix=$LCRAG_PEERS/vx/bin/python
parts=" ${*:-generation rollouts rollouts_6 long_tailed update step rewards retrieval hnsw} "
known=" generation rollouts rollouts_6 long_tailed update step rewards retrieval hnsw "
for part in $parts; do
  [[ $known == *" $part "* ]] || { echo "lcrag: error: no part is called $part; there are:$known" >&2; exit 2; }
done
mkdir -p "$LCRAG_PEERS/logs"

# environment FOLDER PACKAGE...: a virtual environment with these packages, made once.
environment() {
  local folder=$LCRAG_PEERS/$1 wanted; shift; wanted="$*"
  [ "$(cat "$folder/packages" 2>/dev/null)" = "$wanted" ] && return
  echo "installing $wanted (once, a few minutes)" >&2
  [ -x "$folder/bin/python" ] || python3 -m venv "$folder" || return
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" && echo "$wanted" >"$folder/packages"
}

failed() { printf '{"failed": "%s"}\n' "$1" >>"$LCRAG_BENCHMARK_ROWS"; echo "not measured: $1" >&2; }

# side PART COMMAND...: one side of a part, if that part was asked for; a failure is a line of the table.
side() {
  local part=$1 left=$((most - (SECONDS - begun))) log status; shift
  [[ $parts == *" $part "* ]] || return
  log=$LCRAG_PEERS/logs/$part-$(basename "$2" .py).log
  if [ "$left" -lt 10 ]; then failed "$part by $(basename "$2"): the $most seconds are over"; return; fi
  echo "$part: $(basename "$2"), $((SECONDS - begun)) s" >&2
  timeout -k 5 "$left" "$@" >"$log" 2>&1; status=$?
  [ $status -eq 0 ] || failed "$part by $(basename "$2"): status $status, see $log"
}

[[ $parts =~ " generation "|" step "|" retrieval "|" hnsw " ]] &&
  environment vt torch==2.13.0 transformers==5.23.0 trl==1.16.0 datasets==5.2.0 accelerate==1.15.0 faiss-cpu==1.15.1
[[ $parts =~ " generation "|" step "|" rollouts " ]] && environment vx google-tunix==0.1.7 jax==0.10.2 flax==0.12.8

: >"$LCRAG_BENCHMARK_ROWS"
begun=$SECONDS
read -r load _ </proc/loadavg 2>/dev/null || load=unknown
tiny=(); [ "${LCRAG_SMOKE:-0}" = 1 ] && tiny=(--repeats=1)
small=(); [ "${LCRAG_SMOKE:-0}" = 1 ] && small=(--tiny)
here=benchmarks/peers
side generation "$python" $here/lcrag_side.py generation
side generation "$torch" $here/transformers_side.py generation
side generation "$tunix" $here/tunix_side.py generation
side rollouts "$python" benchmarks/sampling.py "${tiny[@]}"
side rollouts "$tunix" $here/tunix_side.py rollouts
side rollouts_6 "$python" benchmarks/sampling.py --turns=6 "${tiny[@]}"
side long_tailed "$python" benchmarks/sampling.py --long_tailed "${tiny[@]}"
side update "$python" benchmarks/update.py --repeats=3 "${small[@]}"
side step "$python" $here/lcrag_side.py step
side step "$torch" $here/transformers_side.py step
side step "$tunix" $here/tunix_side.py step
side rewards "$python" benchmarks/rewards.py --only_sets "${tiny[@]}"
side retrieval "$python" $here/lcrag_side.py retrieval
side retrieval "$torch" $here/faiss_side.py retrieval
side hnsw "$torch" $here/faiss_side.py hnsw
model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
"$python" $here/table.py "$LCRAG_BENCHMARK_ROWS" "$threads cores ($model), load $load before the run, $((SECONDS - begun)) s" |
  tee "$LCRAG_PEERS/table.md"
