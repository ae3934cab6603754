#!/usr/bin/env bash
# Build the lab's kernel from the distribution's own source package, once per version and configuration; prints its path.
# Takes some four minutes on two cores. An ordinary user can do it where gcc, make, bc and xz are there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

config=$(sha256sum < "$here/kernel.config" | cut -c1-8)
locked kernel
remembered kernel "$here/kernel.config" "$0" && exit
version=$(candidate linux-source)
if [ -z "$version" ]; then
  # Without package lists the newest kernel of this configuration serves, where there is one.
  newest=$(ls -1dt "$LAB_CACHE"/kernel-*-"$config"/linux 2>/dev/null | head -n 1)
  [ -z "$newest" ] || { say "no package lists; taking $newest"; echo "$newest"; exit; }
fi
need gcc=gcc make=make bc=bc xz=xz-utils dpkg-deb=dpkg
version=${version:-$(candidate linux-source)}
[ -n "$version" ] || fail "the archive has no package linux-source; is this Debian with its main section?"
built=$LAB_CACHE/kernel-$version-$config
[ -x "$built/linux" ] && { remember kernel "$built/linux"; exit; }

say "building the kernel, linux-source $version, some four minutes"
work=$(mktemp -d "$LAB_CACHE/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
source=$(apt-cache depends linux-source | awk '/Depends: linux-source-/ { print $2; exit }')
apt-get -q download "$source" flex bison m4 >&2
for package in flex bison m4; do dpkg-deb -x "$package"_*.deb tools; done   # used from here, not installed
dpkg-deb -x "$source"_*.deb .
tar xf usr/src/"$source".tar.xz
# 6.1 has room for 2696 bytes of a process's vector registers. A host with AMX takes all 11008 or none (EFAULT); later
# kernels ask the host how many. Each thread's stack holds some such buffers, hence KERNEL_STACK_ORDER.
sed -i 's/DEFINE_LONGS(HOST_FP_SIZE, 2696)/DEFINE_LONGS(HOST_FP_SIZE, 12288)/' "$source/arch/x86/um/user-offsets.c"
export PATH=$work/tools/usr/bin:$PATH BISON_PKGDATADIR=$work/tools/usr/share/bison M4=$work/tools/usr/bin/m4
make=(make -s -C "$source" ARCH=um O="$work/out")
mkdir out
"${make[@]}" KCONFIG_ALLCONFIG="$here/kernel.config" allnoconfig >&2
while read -r option; do
  grep -q "^$option\$" out/.config || fail "this kernel's sources do not know or cannot set $option"
done < <(grep '=y$' "$here/kernel.config")
"${make[@]}" -j"$(nproc)" linux >&2
mkdir -p "$built"
strip -o "$built/linux.new" out/linux
mv "$built/linux.new" "$built/linux"
remember kernel "$built/linux"
