#!/usr/bin/env bash
# The verbs tests: in the lab, or on this host's own NICs where it has some (LAB=1: in the lab even so).
# Without WHOLE=1 what takes long is left out: many random faults, training. In the lab they have 25 minutes, with WHOLE=1 an hour.
# REAL_TIME=1: by the host's clock. Where many processes always have something to do, such as training on 4 ranks, virtual time, in which work costs none, hardly goes on.
# Arguments go to pytest. Results: out/lab/{console.txt,junit.xml,...}; exit status: pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -n "${WHOLE:-}" ] || set -- -m "not whole" "$@"
if [ -n "$(ls -A /sys/class/infiniband 2>/dev/null)" ] && [ -z "${LAB:-}" ]; then
  exec "${PYTHON:-.venv/bin/python}" -m pytest --require=rdma tests/verbs "$@"
fi
# What the command line needs: of the project's environment, where there is one for the guest's Python.
packages=$("${PYTHON:-.venv/bin/python}" -c 'import sys, sysconfig; sys.version_info[:2] == (3, 11) and print(sysconfig.get_path("purelib"))' 2>/dev/null || true)
mkdir -p out/lab
[ -e optcc/liboptcc.so ] || python3 native/build.py optcc/liboptcc.so   # with which the guest plans
[ -e optcc/libnccl-net-optcc.so ] || python3 native/build.py optcc/libnccl-net-optcc.so
cc -O2 -Inative tests/nccl_harness.c -o out/lab/nccl_harness -ldl -pthread   # plays NCCL; the guest has no compiler
lab/run.sh --nics "${NICS:-12}" --memory 2G --limit "${LIMIT:-$([ -n "${WHOLE:-}" ] && echo 3600 || echo 1500)}" --results out/lab \
  ${REAL_TIME:+--real-time} ${packages:+--packages "$packages"} -- \
  lab/tests.sh "$@" |
  tee out/lab/console.txt
