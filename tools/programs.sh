#!/bin/sh
# Install what the tests use beside Python packages, where it is missing: tools/programs.sh [--or-say] VENV NAME...
#   g++    compiles the plan reader in C and the packet-level check (apt-get)
#   perftest  runs over played NICs (apt-get, with libibverbs-dev, whose header the played library is compared with)
#   ucx    runs over played NICs, too (apt-get)
#   prometheus  evaluates the alert rules and the dashboard (from Debian's package into VENV, 100 MB on disk)
#   coq    checks the proofs by machine (apt-get, 500 MB on disk)
#   ip     network namespaces whose cables are pulled and whose rates are set (apt-get: iproute2)
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
fetched=   # whether this run has the lists of packages

lists() {  # [AS_ROOT...]: once; each time takes seconds
  [ -n "$fetched" ] || { "$@" apt-get update -q >/dev/null && fetched=yes; }
}

apt() {  # NAME PROGRAM: Debian's package NAME, unless PROGRAM, or a file of this name, is here
  { command -v "$2" >/dev/null || [ -e "$2" ]; } && return
  if [ "$(id -u)" -eq 0 ]; then as_root=; else as_root="sudo -n"; fi
  command -v apt-get >/dev/null && { [ -z "$as_root" ] || $as_root true 2>/dev/null; } || return 1
  echo "installing $1 (apt-get)"
  # shellcheck disable=SC2086  # words of a command, or none
  lists $as_root && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$1" >/dev/null
}

monitoring() {  # its programs alone: the package, once installed, starts a server
  command -v prometheus >/dev/null && command -v promtool >/dev/null && return
  [ -x "$venv/bin/prometheus" ] && [ -x "$venv/bin/promtool" ] && return
  command -v apt-get >/dev/null || return 1
  echo "unpacking prometheus (apt-get)"
  folder=$(mktemp -d)
  [ "$(id -u)" -ne 0 ] || lists
  (cd "$folder" && apt-get download -q prometheus >/dev/null 2>&1 && dpkg -x prometheus_*.deb .) &&
    cp "$folder/usr/bin/prometheus" "$folder/usr/bin/promtool" "$venv/bin/"
  status=$?
  rm -rf "$folder"
  return $status
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
    perftest) apt perftest ib_write_bw && apt libibverbs-dev /usr/include/infiniband/verbs.h || missing="$missing
  perftest: apt-get install perftest libibverbs-dev" ;;
    ucx) apt ucx-utils ucx_perftest || missing="$missing
  ucx: apt-get install ucx-utils" ;;
    ip) apt iproute2 ip || missing="$missing
  ip: apt-get install iproute2" ;;
    coq) apt coq coqc || missing="$missing
  coq: apt-get install coq" ;;
    ns3) wheel ns3 --no-deps --require-hashes -r requirements-ns3.lock || missing="$missing
  ns3: $venv/bin/pip install --no-deps -r requirements-ns3.lock" ;;
    prometheus) monitoring || missing="$missing
  prometheus: apt-get install prometheus" ;;
    torch) torch || missing="$missing
  torch: $venv/bin/pip install torch" ;;
    *) echo "programs: $name is none of g++, perftest, ucx, ip, coq, ns3, torch, prometheus" >&2; exit 2 ;;
  esac
done
[ -z "$missing" ] && exit 0
echo "not installed; the tests that need it will be skipped:$missing" >&2
exit $fails
