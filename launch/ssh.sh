#!/usr/bin/env bash
# Runs one lcrag command on several hosts reached by ssh, one process a host, and again if a process is lost.
#   bash launch/ssh.sh node1,node2 train --gin_file=quickstart.gin --output_dir=/shared/runs/first
# The first host coordinates; lcrag is installed in the same folder everywhere (prepare_environment of environment.sh).
#   FOLDER=~/lcrag  that folder        PORT=8476    a port of the first host that all hosts reach
#   LOGS=logs       a log per host     RESTARTS=20  further starts, each after PAUSE=30 s
set -euo pipefail
[ $# -gt 1 ] || { echo "usage: bash launch/ssh.sh HOST,HOST COMMAND ..." >&2; exit 2; }
folder=${FOLDER:-$PWD} port=${PORT:-8476} logs=${LOGS:-logs} restarts=${RESTARTS:-20}
folder=${folder#\~/}  # ssh begins in the home folder
IFS=, read -r -a hosts <<<"$1"
shift
mkdir -p "$logs"

for start in $(seq 0 "$restarts"); do
  running=()
  for i in "${!hosts[@]}"; do
    cluster=(--coordinator="${hosts[0]}:$port" --processes="${#hosts[@]}" --process="$i")
    line=$(printf '%q ' .venv/bin/lcrag "$@" "${cluster[@]}")
    # ssh passes no signals on. With -tt its end hangs up the remote terminal, whose shell then asks the run to save.
    line="cd $(printf %q "$folder") && export TERM=dumb && { (trap '' HUP; exec $line) & p=\$!; trap 'kill -TERM \$p' HUP TERM; wait \$p; s=\$?
      kill -0 \$p 2>/dev/null && { wait \$p; s=\$?; }; exit \$s; }"
    ssh -tt -o BatchMode=yes "${hosts[$i]}" "$line" </dev/null >>"$logs/${hosts[$i]}.log" 2>&1 &
    running+=($!)
  done
  # A signal to this script is one to every run; each saves its last finished step.
  trap 'kill "${running[@]}" 2>/dev/null; wait; exit 143' INT TERM
  status=0
  for process in "${running[@]}"; do
    wait "$process" || { code=$?; [ "$status" = 2 ] || status=$code; }
  done
  # After a mistake (2) another start would fail alike; after any other end the same command continues.
  case $status in 0 | 2) break ;; esac
  echo "lcrag: start $start ended with status $status; the logs are in $logs" >&2
  sleep "${PAUSE:-30}"
done
tail -n 3 "$logs/${hosts[0]}.log"
exit "$status"
