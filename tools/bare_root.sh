#!/bin/sh
# The README's two commands on a machine that has nothing of yours: tools/bare_root.sh [COMMAND...]
# Makes a bare Debian root (debootstrap's smallest, with python3, git, make and ca-certificates and nothing else), clones
# the last commit of this tree into it, and runs there `make demo` and `make test`, or each COMMAND, until one fails.
# Needs: Linux, root, debootstrap (apt-get install debootstrap), Debian's and PyPI's servers, 8 GB of disk, 15 minutes.
#   SUITE=bookworm    Debian 12, whose Python 3.11.2 is the oldest that optcc supports; trixie: Debian 13, Python 3.13
#   KEEP=DIR          where the root is made and stays; without it a temporary one, removed at the end
# What this machine's pip and certificates need to reach a package server goes along: PIP_*, *_proxy, certificate files,
# pip's configuration, folders of wheels.
set -eu
cd "$(dirname "$0")/.."
fail() { echo "bare_root: $*" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || fail "debootstrap and chroot need root: sudo $0"
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
# Mounts of a namespace of its own vanish with it, however this ends.
[ -n "${IN_NAMESPACE:-}" ] || exec env IN_NAMESPACE=1 unshare --mount --pid --fork --kill-child -- "$0" "$@"

suite=${SUITE:-bookworm}
[ $# -gt 0 ] || set -- "make demo" "make test"
commit=$(git rev-parse --short HEAD)
[ -z "$(git status --porcelain)" ] || echo "bare_root: what is not committed is left out" >&2
if [ -n "${KEEP:-}" ]; then
  root=$KEEP
  [ ! -e "$root" ] || fail "$root exists already; remove it, or name another"
else
  root=$(mktemp -d /var/tmp/optcc-bare.XXXXXX)
  trap 'awk -v under="$root/" "index(\$2 \"/\", under) == 1 { print \$2 }" /proc/mounts | sort -r | xargs -r umount
    rm -rf --one-file-system "$root"' EXIT
fi
trap 'exit 130' INT
trap 'exit 143' TERM

echo "bare_root: $suite into $root"
debootstrap --variant=minbase --include=python3,git,make,ca-certificates "$suite" "$root" >"$root.log" 2>&1 ||
  { tail -20 "$root.log" >&2; fail "debootstrap failed; all it said is in $root.log"; }
rm -f "$root.log"
chmod 755 "$root"   # as / is: who is not root lives here, too
mount --bind "$root" "$root"   # a mount, as / is: `ip netns exec` changes how it is shared
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"   # the usual devices, and none of this machine's GPUs or NICs
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$root/etc/hosts"   # an installer writes it, debootstrap does not

# What reaches the package servers here must reach them there, under the same names.
for file in /etc/pip.conf /etc/xdg/pip "${PIP_CONFIG_FILE:-}" "${PIP_CERT:-}" "${SSL_CERT_FILE:-}" "${REQUESTS_CA_BUNDLE:-}"; do
  [ -n "$file" ] && [ -e "$file" ] || continue
  mkdir -p "$root$(dirname "$file")"
  cp -rL "$file" "$root$(dirname "$file")/"
done
for folder in ${PIP_FIND_LINKS:-} $(cat /etc/pip.conf /etc/xdg/pip/pip.conf 2>/dev/null | grep -o 'file://[^ ]*' | sed 's,^file://,,'); do
  [ -d "$folder" ] || continue
  mkdir -p "$root$folder"
  mount --bind -o ro "$folder" "$root$folder"
done

git clone -q --no-local . "$root/home/optcc"
for command; do
  echo "bare_root: $commit in $suite: $command"
  env | grep -E '^(PIP_[A-Z_]*|[A-Za-z]*_(proxy|PROXY)|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|TORCH_INDEX|CI)=' |
    (set --; while IFS= read -r variable; do set -- "$@" "$variable"; done
     exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@" sh -c "cd /home/optcc && $command" </dev/null)
done
