#!/bin/sh
# Make the virtual environment VENV with the locked dependencies and this tree, editable.
# Works on a bare Debian 12: python3-venv is installed when the interpreter cannot make environments itself.
set -eu
venv=$1
python=${PYTHON:-python3}

fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  as_root=
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "this Python cannot make environments; as root: apt-get install python3-venv"
    as_root=sudo
  fi
  command -v apt-get >/dev/null || fail "this Python cannot make environments; install its venv module"
  $as_root apt-get update -q
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends python3-venv
fi

"$python" -m venv "$venv"
"$venv/bin/pip" install --disable-pip-version-check -q --require-hashes -r requirements.lock
"$venv/bin/pip" install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
