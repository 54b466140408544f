#!/usr/bin/env bash
# Fetches a small policy and a small encoder with pretrained weights, as Hugging Face folders: DIR/SmolLM2-135M-Instruct
# and DIR/multilingual-e5-small (1 GB; 190 MB are downloaded, which takes a minute). Run again, it makes what is missing.
#   bash launch/real_weights.sh DIR
set -euo pipefail
[ $# = 1 ] || { echo "lcrag: error: name one folder: bash launch/real_weights.sh DIR" >&2; exit 2; }
case $1 in /*) folder=$1 ;; *) folder=$PWD/$1 ;; esac
cd "$(dirname "$0")/.."
source launch/environment.sh
prepare_environment ""
echo "Fetching 190 MB and writing 1 GB into $folder: about a minute"
.venv/bin/python launch/real_weights.py "$folder"
