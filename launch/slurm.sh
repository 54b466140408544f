#!/usr/bin/env bash
# Submits one lcrag command to SLURM, one process a node, and again after a preemption or a lost node.
#   NODES=2 GPUS=8 bash launch/slurm.sh train --gin_file=platform/h100_8.gin --gin_file=lcrl/paper.gin --output_dir=runs/lcrl
# Run it in the folder where lcrag is installed, on a disk that all nodes see.
#   NODES=1  GPUS=8  of a node  TIME=24:00:00  NAME=lcrag   SBATCH='--partition=P --account=A'  further options
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: NODES=2 GPUS=8 bash launch/slurm.sh COMMAND ..." >&2; exit 2; }
name=${NAME:-lcrag} gpus=${GPUS:-8}
mkdir -p logs
# SIGTERM comes 120 s before the time is up: the run saves, and the job queues itself again.
# shellcheck disable=SC2086  # SBATCH is several words
sbatch --job-name="$name" --nodes="${NODES:-1}" --ntasks-per-node=1 --gpus-per-node="$gpus" --exclusive \
  --time="${TIME:-24:00:00}" --signal=TERM@120 --requeue --open-mode=append --output="logs/$name-%j.log" \
  ${SBATCH:-} <<JOB
#!/usr/bin/env bash
export XLA_PYTHON_CLIENT_MEM_FRACTION=\${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.95}
srun --kill-on-bad-exit=1 --gpus-per-task=$gpus --output=logs/$name-%j-%N.log $(printf '%q ' .venv/bin/lcrag "$@")
status=\$?
# 2 is a mistake, which another start would repeat.
case \$status in 0 | 2) exit \$status ;; esac
scontrol requeue "\$SLURM_JOB_ID"
JOB
