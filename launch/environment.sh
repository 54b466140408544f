# shellcheck shell=bash
# Makes `.venv` ready; source it from the repository's root, then call `prepare_environment EXTRA`,
# EXTRA being empty or the name of an extra of setup.py. Installing is skipped while setup.py and the tested versions
# in constraints.txt are unchanged.

supported_python() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1
}

find_python() {
  local candidate
  for candidate in python3 python3.11 python3.12 python3.13 python; do
    if supported_python "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  echo "lcrag: error: Python 3.11, 3.12 or 3.13 is needed; install one and run this again" >&2
  return 1
}

make_virtual_environment() {
  local python
  if [ -x .venv/bin/python ] && supported_python .venv/bin/python; then
    return
  fi
  python=$(find_python) || return 2
  echo "Making .venv with $("$python" --version)"
  if ! "$python" -m venv --clear .venv; then
    echo "lcrag: error: $python cannot make a virtual environment; install its venv package (python3-venv)" >&2
    return 2
  fi
}

# One line for the content of setup.py and constraints.txt, the interpreter, and the folder,
# as a copied .venv installs into the first one.
installation_stamp() {
  .venv/bin/python -c '
import hashlib, pathlib, sys
files = b"".join(pathlib.Path(name).read_bytes() for name in ("setup.py", "constraints.txt"))
print(hashlib.sha256(files + sys.version.encode() + sys.prefix.encode()).hexdigest())'
}

prepare_environment() {
  local extra=${1:-} stamp started=$SECONDS
  make_virtual_environment || return 2
  stamp=$(installation_stamp)
  # An installation with an extra serves those who need none.
  if grep -qsx "$stamp" .venv/lcrag-installed-*"$extra"; then
    return
  fi
  echo "Installing lcrag${extra:+[$extra]} and its dependencies into .venv: 3.5 GB, 2 to 5 minutes the first time"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
    --editable ".${extra:+[$extra]}" || return 2
  echo "$stamp" >".venv/lcrag-installed-${extra:-plain}"
  echo "Installed in $((SECONDS - started)) s"
}

# Compiled programs are kept between runs, for each user.
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-$PWD/.venv}/.cache}/lcrag/jax}
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=${JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS:-0}
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=${JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES:--1}
