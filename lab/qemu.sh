# Sourced by run.sh: sets `kernel` and `initrd` for an emulated machine with the distribution's own kernel. Nothing is compiled.
need qemu-system-x86_64=qemu-system-x86 cpio=cpio zstd=zstd modprobe=kmod dpkg-deb=dpkg
[ "$(uname -m)" = x86_64 ] || fail "the emulated machine is made for x86_64 only"
PATH=$PATH:/sbin:/usr/sbin
root=$("$here/guest.sh")
locked qemu
image=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-6/ { print $2; exit }')
[ -n "$image" ] || fail "no package lists; as root: apt-get update"
release=${image#linux-image-}
emulated=$LAB_CACHE/qemu-$release-$(basename "$root")
kernel=$emulated/vmlinuz initrd=$emulated/initrd.zst
if [ ! -e "$initrd" ]; then
  say "packing the emulated machine"
  work=$(mktemp -d "$LAB_CACHE/build.XXXXXX")
  (
    cd "$work"
    apt-get -q download "$image" >&2
    dpkg-deb -x "$image"_*.deb all
    depmod -b all "$release"
    for module in rdma_rxe ib_uverbs veth bridge sch_tbf sch_netem sch_ingress cls_u32 act_gact 9p 9pnet_virtio virtio_pci \
      crc32_pclmul crc32_generic; do
      modprobe -d "$work/all" -S "$release" -D "$module" | awk '$1 == "insmod" { print $2 }'
    done | sort -u | while read -r file; do
      mkdir -p "some/$(dirname "${file#"$work/all/"}")"
      cp "$file" "some/${file#"$work/all/"}"
    done
    depmod -b some "$release"
    mkdir emulated
    { (cd "$root" && find . | cpio -o -H newc -R 0:0 --quiet)
      (cd some && find . | cpio -o -H newc -R 0:0 --quiet); } | zstd -q -3 -o emulated/initrd.zst
    cp "all/boot/vmlinuz-$release" emulated/vmlinuz
    mv emulated "$emulated"
  )
  rm -rf "$work"
fi
