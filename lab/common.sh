# Sourced by the lab's scripts: where things are kept, and how packages are had from the distribution's archive.
# Everything the lab builds lies under one folder of the user; nothing outside it is written, unless a program that
# the build needs is missing and can be installed.
LAB_CACHE=${OPTCC_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/optcc-lab}
mkdir -p "$LAB_CACHE"

fail() { printf 'lab: %s\n' "$*" >&2; exit 1; }
say() { printf 'lab: %s\n' "$*" >&2; }

# need PROGRAM=PACKAGE...: install what is missing, where that is possible.
need() {
  local missing=() pair
  for pair in "$@"; do command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}"); done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null || fail "missing: ${missing[*]}; install them (the lab is for Debian)"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "missing: as root, apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  archive_known || "${as_root[@]}" apt-get update -q >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}" >&2
}

# Are there package lists? A fresh container has none.
archive_known() { apt-cache show linux-source >/dev/null 2>&1; }

# The newest version that the archive offers of a package; nothing when it offers none.
candidate() { apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ { if ($2 != "(none)") print $2 }'; }

# One builder at a time: `locked NAME` holds until this shell ends.
locked() {
  exec {lock}>"$LAB_CACHE/$1.lock"
  flock "$lock"
}

# remembered NAME SOURCE...: print what `remember NAME` was told, unless package lists or sources have changed since.
remembered() {
  local note=$LAB_CACHE/$1 source
  [ -s "$note" ] && [ -e "$(cat "$note")" ] || return 1
  shift
  for source in /var/lib/apt/lists "$@"; do [ "$note" -nt "$source" ] || return 1; done
  cat "$note"
}
remember() { echo "$2" | tee "$LAB_CACHE/$1"; }
