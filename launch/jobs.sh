# Runs commands of `lcrag` at once or a few beside one another; source it, and set JOBS.
#   run_point FOLDER COMMAND...     `lcrag COMMAND... --output_dir=FOLDER`; of several, each writes into FOLDER.log
#   wait_for_all                    before anything that needs what they make

jobs=${JOBS:-1}
running=0

# The first failure ends everything.
run_point() {
  local folder=$1
  shift
  if [ "$jobs" -le 1 ]; then
    .venv/bin/lcrag "$@" --output_dir="$folder"
    return
  fi
  if [ "$running" -ge "$jobs" ]; then wait_for_one; fi
  running=$((running + 1))
  mkdir -p "$(dirname "$folder")"
  echo "lcrag $* --output_dir=$folder"
  (.venv/bin/lcrag "$@" --output_dir="$folder" >"$folder.log" 2>&1 || { tail -n 3 "$folder.log" >&2 && exit 1; }) &
}

wait_for_one() {
  if ! wait -n; then
    wait
    exit 1
  fi
  running=$((running - 1))
}

wait_for_all() {
  while [ "$running" -gt 0 ]; do wait_for_one; done
}
