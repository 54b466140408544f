#!/usr/bin/env bash
# Fetches a small policy and a small encoder with pretrained weights, as Hugging Face folders: DIR/SmolLM2-135M-Instruct
# and DIR/multilingual-e5-small (1 GB; 190 MB are downloaded, which takes a minute). Run again, it makes what is missing.
#   bash launch/real_weights.sh DIR
# With the name gemma-3-270m after the folder it makes DIR/gemma-3-270m instead of SmolLM2 (2 GB; 330 MB are downloaded),
# and, if LCRAG_DATA has XQuAD, DIR/gemma-3-270m-xquad, with the tokens of XQuAD's texts in eight languages only.
# Gemma is provided under and subject to the Gemma Terms of Use, https://ai.google.dev/gemma/terms; who names it accepts
# them. They restrict its use, and what is trained from it falls under them.
#   bash launch/real_weights.sh DIR gemma-3-270m
set -euo pipefail
case $#/${2:-gemma-3-270m} in 1/* | 2/gemma-3-270m) ;; *)
  echo "lcrag: error: name one folder, and gemma-3-270m after it if you want that model:" \
    "bash launch/real_weights.sh DIR [gemma-3-270m]" >&2
  exit 2 ;;
esac
case $1 in /*) folder=$1 ;; *) folder=$PWD/$1 ;; esac
cd "$(dirname "$0")/.."
source launch/environment.sh
prepare_environment ""
name=${2:-SmolLM2-135M-Instruct}
echo "Fetching 190 MB or more and writing 1 GB into $folder for $name: about a minute"
.venv/bin/python launch/real_weights.py "$folder" "$name"
