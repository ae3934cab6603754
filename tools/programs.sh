#!/bin/sh
# Install what the tests use beside Python packages, where it is missing: tools/programs.sh [--or-say] VENV NAME...
#   g++    compiles the plan reader in C and the packet-level check (apt-get)
#   prometheus  evaluates the alert rules and the dashboard (apt-get); not among the default ones: Debian starts its server
#   coq    checks the proofs by machine (apt-get, 500 MB on disk)
#   ns3    the packet-level simulator (pip, 40 MB)
#   torch  optcc.pytorch over Gloo, on processors alone (pip, 200 MB); TORCH_INDEX=URL: from that index
# apt-get runs as root, or by a sudo that asks nothing; pip works in VENV. What cannot be installed is named at the end
# with the command that would; the exit status is then 1, or 0 with --or-say.
set -eu
fails=1
if [ "$1" = --or-say ]; then fails=0; shift; fi
venv=$1
shift
missing=

apt() {  # NAME PROGRAM: Debian's package NAME, unless PROGRAM is here
  command -v "$2" >/dev/null && return
  if [ "$(id -u)" -eq 0 ]; then as_root=; else as_root="sudo -n"; fi
  command -v apt-get >/dev/null && { [ -z "$as_root" ] || $as_root true 2>/dev/null; } || return 1
  echo "installing $1 (apt-get)"
  $as_root apt-get update -q >/dev/null &&
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$1" >/dev/null
}

wheel() {  # MODULE ARGUMENT...: pip install ARGUMENT..., unless Python finds MODULE
  module=$1
  shift
  "$venv/bin/python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$module') is None)" && return
  echo "installing $module (pip)"
  "$venv/bin/pip" install --disable-pip-version-check -q "$@"
}

# A build for processors: PyPI's own is of several GB, with CUDA.
torch() { wheel torch torch==2.13.0+cpu 2>/dev/null ||
  wheel torch torch==2.13.0+cpu --index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"; }

for name; do
  case $name in
    g++) apt g++ g++ || missing="$missing
  g++: apt-get install g++" ;;
    coq) apt coq coqc || missing="$missing
  coq: apt-get install coq" ;;
    ns3) wheel ns3 --no-deps --require-hashes -r requirements-ns3.lock || missing="$missing
  ns3: $venv/bin/pip install --no-deps -r requirements-ns3.lock" ;;
    prometheus) apt prometheus promtool || missing="$missing
  prometheus: apt-get install prometheus" ;;
    torch) torch || missing="$missing
  torch: $venv/bin/pip install torch" ;;
    *) echo "programs: $name is none of g++, coq, ns3, torch, prometheus" >&2; exit 2 ;;
  esac
done
[ -z "$missing" ] && exit 0
echo "not installed; the tests that need it will be skipped:$missing" >&2
exit $fails
