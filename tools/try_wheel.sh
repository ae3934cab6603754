#!/bin/sh
# The wheel of this machine's kind in dist/, as somebody has it who has nothing else: installed into an environment that
# nobody can write to, run by a user without a home and without a compiler. PYTHON names another than python3, which that
# user must be able to run. tools/try_wheel.sh
set -eu
cd "$(dirname "$0")/.."
wheel=$(ls dist/*manylinux*_"$(uname -m)".whl)
place=$(mktemp -d /var/tmp/optcc-wheel.XXXXXX)
trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/venv"
"$place/venv/bin/pip" install --disable-pip-version-check --no-compile -q "$wheel"
chmod -R a+rX,a-w "$place"
as_nobody() { (cd / && setpriv --reuid=65534 --regid=65534 --clear-groups env -i PATH="$place/venv/bin" HOME=/nonexistent "$@"); }
as_nobody optcc run example:h100-8x400g.nccl-topo.xml --servers 4 --fail server1/mlx5_0 --size 4MiB --repeat 2 --json |
  grep -q '"exact": *true' || { echo "try_wheel: the demo's result is not exact" >&2; exit 1; }
as_nobody optcc bound example:h100-8x400g.nccl-topo.xml --servers 4 --fail server1/mlx5_0 --size 1GiB
test -e "$(as_nobody optcc nccl --path)"
echo "try_wheel: $(basename "$wheel") works"
