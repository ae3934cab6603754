#!/bin/sh
# Put ns-3 into the virtual environment VENV, for the packet-level tests; they compile against it.
# Its Python bindings are not used, and what they need is left out.
set -eu
venv=$1

if ! command -v g++ >/dev/null; then
  as_root=
  [ "$(id -u)" -eq 0 ] || as_root=sudo
  command -v apt-get >/dev/null || { echo "ns3: install g++" >&2; exit 1; }
  $as_root apt-get update -q
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends g++
fi
"$venv/bin/pip" install --disable-pip-version-check -q --no-deps --require-hashes -r requirements-ns3.lock
