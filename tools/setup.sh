#!/bin/sh
# Make the virtual environment VENV with this tree, editable, and the packages of LOCK: tools/setup.sh VENV LOCK
#   requirements.lock      what optcc itself needs
#   requirements-dev.lock  that, and what tests, checks and the site need
# Says on standard error how far it is. Works on a bare Debian 12: python3-venv is installed when the interpreter cannot
# make environments itself, and gcc where there is no C compiler (for native/); where nobody may install it, zig's
# compiler comes as a Python package. CC names another.
set -eu
venv=$1
lock=$2
python=${PYTHON:-python3}
began=$(date +%s)

fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
say() { printf 'setup: %3d s: %s\n' "$(($(date +%s) - began))" "$*" >&2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"

as_root=
[ "$(id -u)" -eq 0 ] || as_root=sudo
apt() {  # PACKAGE...
  say "installing $* (apt-get)"
  $as_root apt-get update -qq
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qqy --no-install-recommends "$@" >/dev/null
}

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  command -v apt-get >/dev/null || fail "this Python cannot make environments; install its venv module"
  [ -z "$as_root" ] || command -v sudo >/dev/null ||
    fail "this Python cannot make environments; as root: apt-get install python3-venv"
  apt python3-venv
fi

in_place() { find "$venv"/lib/python3*/site-packages -maxdepth 1 -name '*.dist-info' | wc -l; }

# pip's own words are many while it downloads and none while it unpacks, so both are counted.
how_far() {  # LOG BEFORE: packages that were in place before
  unpacked=$(sed -n 's/^Installing collected packages: //p' "$1" | tr ',' '\n' | grep -c . || true)
  if [ "$unpacked" -gt 0 ]; then
    echo "unpacking, $(($(in_place) - $2)) of $unpacked packages in place"
  else
    wheel=$(sed -n 's/^ *\(Downloading\|Using cached\) \([^ ]*\).*\( ([^)]*)\).*/\2\3/p' "$1" | tail -n 1)
    echo "fetching, $(grep -c '^\(Collecting\|Processing\) ' "$1" || true) of at most $(sed -n 's/^\([^ #]*\)==.*/\1/p' "$lock" | sort -u | wc -l) packages${wheel:+: ${wheel##*/}}"
  fi
}

say "environment in $venv"
"$python" -m venv "$venv"
log=$venv/setup.log
before=$(in_place)
"$venv/bin/pip" install --disable-pip-version-check --progress-bar off --require-hashes -r "$lock" >"$log" 2>&1 &
pip=$!
trap 'kill "$pip" 2>/dev/null || true' EXIT   # interrupted: pip is not left behind
said=
while kill -0 "$pip" 2>/dev/null; do
  sleep 3
  now=$(how_far "$log" "$before")
  [ "$now" = "$said" ] || say "$now"
  said=$now
done
wait "$pip" || { tail -n 30 "$log" >&2; fail "pip cannot install $lock; all it said is in $log"; }
trap - EXIT
compiles() { printf '#include <math.h>\n' | ${CC:-cc} -E -xc - >/dev/null 2>&1; }
if ! compiles && [ -z "${CC:-}" ]; then
  may_install() { command -v apt-get >/dev/null && { [ -z "$as_root" ] || sudo -n true 2>/dev/null; }; }
  if ! { may_install && apt gcc libc6-dev && compiles; }; then
    say "no C compiler, and none to be had by apt-get: zig's, from the package ziglang"
    "$venv/bin/pip" install --disable-pip-version-check -q ziglang==0.17.0
    CC="$(cd "$venv" && pwd)/bin/python -m ziglang cc"
    export CC
  fi
fi
compiles || fail "${CC:-cc} cannot compile C; CC names another compiler"
say "this tree, editable; its C by ${CC:-cc}"
"$venv/bin/pip" install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
# As pip does with packages: else the first command takes 0.3 s more, and every one where PYTHONDONTWRITEBYTECODE is set.
"$venv/bin/python" -m compileall -q optcc runtime theory
say "$(du -sm "$venv" | cut -f1) MB in $venv"
