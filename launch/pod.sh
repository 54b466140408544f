#!/usr/bin/env bash
# Requests a TPU slice (queued resources), installs the committed working tree on its hosts, and runs one lcrag command
# there; it requests the slice again if it is taken away.
#   ZONE=us-west4-a ACCELERATOR=v5litepod-16 bash launch/pod.sh train --gin_file=... --output_dir=gs://BUCKET/runs/lcrl
#   NAME=lcrag  RUNTIME=v2-alpha-tpuv5-lite  CREATE='--spot'  further options of the request  RESTARTS=20
# The slice is left running at the end, and costs money: the last line says how to delete it.
set -euo pipefail
usage="usage: ZONE=us-west4-a ACCELERATOR=v5litepod-16 bash launch/pod.sh COMMAND ..."
if [ $# = 0 ] || [ -z "${ZONE:-}" ] || [ -z "${ACCELERATOR:-}" ]; then
  echo "$usage" >&2
  exit 2
fi
cd "$(dirname "$0")/.."
name=${NAME:-lcrag} logs=${LOGS:-logs}
queued=(gcloud compute tpus queued-resources) tpu=(gcloud compute tpus tpu-vm)
mkdir -p "$logs"

state() { "${queued[@]}" describe "$name" --zone="$ZONE" --format='value(state.state)' 2>/dev/null || true; }
delete=("${queued[@]}" delete "$name" --zone="$ZONE" --force --quiet)

ready() {  # returns when the slice is there and lcrag is installed
  [ -n "${installed:-}" ] && [ "$(state)" = ACTIVE ] && return  # the first call installs what is committed now
  case $(state) in FAILED | SUSPENDED | SUSPENDING) "${delete[@]}" ;; esac
  # shellcheck disable=SC2086  # CREATE is several words
  [ -n "$(state)" ] || "${queued[@]}" create "$name" --node-id="$name" --zone="$ZONE" \
    --accelerator-type="$ACCELERATOR" --runtime-version="${RUNTIME:-v2-alpha-tpuv5-lite}" ${CREATE:-} --quiet
  until [ "$(state)" = ACTIVE ]; do
    case $(state) in FAILED | SUSPENDED) echo "lcrag: error: the request $name was refused" >&2; exit 2 ;; esac
    sleep 20
  done
  echo "Installing lcrag on the hosts of $name: 2 to 5 minutes"
  git archive --format=tar.gz --output="$logs/lcrag.tar.gz" HEAD
  "${tpu[@]}" scp "$logs/lcrag.tar.gz" "$name:lcrag.tar.gz" --zone="$ZONE" --worker=all --quiet
  "${tpu[@]}" ssh "$name" --zone="$ZONE" --worker=all --quiet --command="mkdir -p lcrag && tar -xzf lcrag.tar.gz -C lcrag \
    && cd lcrag && bash -c 'source launch/environment.sh && prepare_environment tpu'"
  installed=yes
}

for _ in $(seq 0 "${RESTARTS:-20}"); do
  ready
  status=0
  # Every host runs the same command; on Cloud TPU the processes find each other.
  "${tpu[@]}" ssh "$name" --zone="$ZONE" --worker=all --quiet \
    --command="cd lcrag && $(printf '%q ' .venv/bin/lcrag "$@")" 2>&1 | tee -a "$logs/$name.log" || status=$?
  # After a mistake (2) another start would fail alike; after any other end the same command continues.
  case $status in 0 | 2) break ;; esac
  sleep 30
done
echo "lcrag: the slice is still there: ${delete[*]}"
exit "$status"
