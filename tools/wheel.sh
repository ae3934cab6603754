#!/bin/sh
# Wheels for any Linux with glibc 2.28 or newer into dist/: tools/wheel.sh VENV [ARCH...]   (x86_64, aarch64; both)
# VENV's setuptools builds; zig's compiler, which comes with every glibc's symbols, is installed into build/zig, and
# auditwheel, which reads from the libraries which glibc they need.
set -eu
cd "$(dirname "$0")/.."
venv=$1
shift
[ $# -gt 0 ] || set -- x86_64 aarch64
tools=build/zig
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/pip" install --disable-pip-version-check -q ziglang auditwheel wheel
zig=$(cd "$tools" && pwd)/bin/python
mkdir -p dist
for arch; do
  rm -rf "build/tree-$arch"
  git clone -q . "build/tree-$arch"   # setuptools leaves its products where it builds
  CC="$zig -m ziglang cc -target $arch-linux-gnu.2.28" \
    "$venv/bin/pip" wheel "build/tree-$arch" --no-deps --no-build-isolation --no-index -q -w "build/tree-$arch/out"
  made=$(ls "build/tree-$arch"/out/*.whl)
  made=$(cd "$(dirname "$made")" && "$zig" -m wheel tags --remove --platform-tag "manylinux_2_28_$arch" "$(basename "$made")")
  if [ "$arch" = "$(uname -m)" ]; then   # auditwheel judges this machine's kind alone
    said=$("$zig" -m auditwheel show "build/tree-$arch/out/$made")
    case $(echo "$said" | grep -o 'manylinux_2_[0-9]*' | tail -n 1) in
      manylinux_2_[0-9] | manylinux_2_1[0-9] | manylinux_2_2[0-8]) ;;
      *) echo "wheel: the libraries need a newer glibc: $said" >&2; exit 1 ;;
    esac
  fi
  mv "build/tree-$arch/out/$made" dist/
  rm -rf "build/tree-$arch"
  echo "dist/$made"
done
