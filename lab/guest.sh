#!/usr/bin/env bash
# Make the guest's file tree (Python, numpy, pytest, libibverbs, iproute2) of the distribution's packages, once per set of
# versions; prints its path. Nothing is installed: packages are downloaded and unpacked. Ten seconds, 150 MB.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

packages=(dash busybox-static iproute2 kmod python3 python3-numpy python3-pytest python3-pytest-timeout libibverbs1
  python3-hypothesis ibverbs-providers ibverbs-utils perftest libstdc++6)   # the last for wheels that run.sh --packages brings
# What the dependencies would bring besides: administration, compilers, documentation.
skip='^(perl|libperl|debconf|dpkg|tar|passwd|adduser|login|base-|libdb5|media-types|mailcap|mime|sensible|gcc-12-base'
skip+='|libpam|libaudit|libsem|libsepol|python3-pkg|install-info|debianutils|libdebconf|coreutils|rdma-core|udev|libsystemd'
skip+='|tzdata|bash|sed|libgdbm|netbase|util-linux|init-system|readline-common|python3-distutils|python3-lib2to3)'
applets='mount mkdir cat cut sleep ls grep printf ln time poweroff tr head tail sed awk rm cp mv kill ps timeout sort wc
  find env touch date seq true false stty chmod mktemp tee uname dmesg'

locked guest
remembered guest "$here/init" "$0" && exit
archive_known || need apt-get=apt
apt=$LAB_CACHE/apt
mkdir -p "$apt/archives/partial"
: > "$apt/status"   # as if nothing were installed, so that the whole set is resolved
resolve=(apt-get -q -y -o Debug::NoLocking=1 -o Dir::State::status="$apt/status" -o Dir::Cache="$apt"
  -o Dir::Cache::archives="$apt/archives" -o APT::Install-Recommends=0 -o APT::Sandbox::User=)
mkdir -p "$apt/empty/partial"   # what is here already would not be listed
if ! wanted=$("${resolve[@]}" -o Dir::Cache::archives="$apt/empty" --print-uris install "${packages[@]}" 2>/dev/null | sed -n "s/^'[^']*' \([^ ]*\.deb\) .*/\1/p" | sort) ||
   [ -z "$wanted" ]; then
  newest=$(ls -1dt "$LAB_CACHE"/guest-*/usr 2>/dev/null | head -n 1)
  [ -n "$newest" ] || fail "no package lists; as root: apt-get update"
  say "no package lists; taking ${newest%/usr}"
  echo "${newest%/usr}"; exit
fi
need dpkg-deb=dpkg
root=$LAB_CACHE/guest-$(cat "$0" "$here/init" - <<< "$wanted" | sha256sum | cut -c1-12)
[ -d "$root" ] && { remember guest "$root"; exit; }

say "making the guest's file tree"
find "$LAB_CACHE" -maxdepth 1 '(' -name 'guest-*' -o -name 'build.*' -o -name 'qemu-*' ')' -mtime +30 -exec rm -rf {} +
"${resolve[@]}" --download-only install "${packages[@]}" > "$apt/log" || { cat "$apt/log" >&2; fail "downloads failed"; }
new=$(mktemp -d "$LAB_CACHE/build.XXXXXX")
trap 'rm -rf "$new"' EXIT
while read -r name; do
  [[ $name =~ $skip ]] || dpkg-deb -x "$apt/archives/$name" "$new"
done <<< "$wanted"
chmod 755 "$new"
cd "$new"
python=$(basename usr/lib/python3.*)
lib=usr/lib/$(uname -m)-linux-gnu
rm -rf usr/share/{doc,man,locale,info,lintian,bash-completion,perl5} "usr/lib/$python"/{test,idlelib,lib2to3,ensurepip,distutils,pydoc_data,tkinter} \
  usr/lib/python3/dist-packages/numpy/{tests,*/tests,f2py,distutils} "$lib/gconv"
mkdir -p proc sys dev tmp run root etc bin optcc results packages
ln -sf dash bin/sh
for applet in $applets; do [ -e "bin/$applet" ] || ln -s busybox "bin/$applet"; done
# What the packages' install scripts would have done.
echo "/$lib" > etc/ld.so.conf
ln -sf blas/libblas.so.3 "$lib/libblas.so.3"
ln -sf lapack/liblapack.so.3 "$lib/liblapack.so.3"
ln -sf "$python" usr/bin/python3
echo '127.0.0.1 localhost' > etc/hosts
echo 'root:x:0:0:root:/root:/bin/sh' > etc/passwd
find etc/libibverbs.d -name '*.driver' ! -name rxe.driver -delete
cp "$here/init" init
chmod +x init
mv "$new" "$root"
remember guest "$root"
