#!/usr/bin/env bash
# Run a command in the lab: a User-Mode Linux with soft-RoCE NICs rxe0, rxe1, ... on one switch. Exit status: the command's.
# The project's tree is /optcc inside, read-only, and the working directory; what is written to /results comes back.
#   --nics N          NICs (8)
#   --results DIR     /results inside (a folder that is thrown away)
#   --packages DIR    /packages inside, read-only: a site-packages, for commands that need more than the guest has; not with --qemu
#   --limit SECONDS   real time after which the lab is stopped, exit status 124 (300)
#   --real-time       the host's clock; without it time is virtual: work costs none, waiting does not wait, NICs take what they take
#   --qemu            a whole emulated machine instead, for where nothing can be compiled; real time
#   --memory SIZE     of the guest (1G)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

nics=8 results= packages= limit=300 clock=time-travel=inf-cpu machine=uml memory=1G
while [ $# -gt 0 ]; do
  case $1 in
    --nics) nics=$2; shift 2 ;;
    --results) results=$2; shift 2 ;;
    --packages) packages=$2; shift 2 ;;
    --limit) limit=$2; shift 2 ;;
    --memory) memory=$2; shift 2 ;;
    --real-time) clock=; shift ;;
    --qemu) machine=qemu; shift ;;
    --) shift; break ;;
    -*) fail "unknown option $1" ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || fail "give a command to run inside"

# The guest's memory is a file: in memory, where there is room for it, or else the disk writes it back time and again.
place=${TMPDIR:-/tmp}
[ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] && [ -w /dev/shm ] &&
  [ "$(df --output=avail -B 1M /dev/shm | tail -n 1)" -gt 2048 ] && place=/dev/shm
run=$(mktemp -d "$place/optcc-lab.XXXXXX")
trap 'rm -rf "$run"' EXIT
results=${results:-$run/results}
mkdir -p "$results"
results=$(cd "$results" && pwd)
project=$(cd "$here/.." && pwd)
[ -z "$packages" ] || packages=$(cd "$packages" && pwd)
case "$project$results$run$packages" in *[[:space:],]*) fail "paths with blanks or commas cannot be passed to the guest" ;; esac
rm -f "$results/.status"
printf '%q ' "$@" > "$results/.job"
kernel_line="lab_nics=$nics quiet"

if [ "$machine" = uml ]; then
  kernel=$("$here/kernel.sh")
  root=$("$here/guest.sh")
  # shellcheck disable=SC2086  # an empty $clock is no argument
  TMPDIR=$run timeout --kill-after=5 "$limit" "$kernel" mem="$memory" root=/dev/root rootfstype=hostfs rootflags="$root" ro \
    init=/init con=null con0=null,fd:1 umid=lab uml_dir="$run/" $kernel_line lab_project="$project" lab_results="$results" \
    ${packages:+lab_packages="$packages"} $clock < /dev/null && ended=0 || ended=$?
else
  [ -z "$packages" ] || fail "no --packages with --qemu"
  . "$here/qemu.sh"
  timeout --kill-after=5 "$limit" qemu-system-x86_64 -accel tcg -cpu qemu64 -smp 1 -m "$memory" -nographic -no-reboot \
    -nodefaults -serial stdio -kernel "$kernel" -initrd "$initrd" \
    -append "console=ttyS0 panic=-1 mitigations=off $kernel_line" \
    -virtfs "local,path=$project,mount_tag=project,security_model=none,multidevs=remap,readonly=on" \
    -virtfs "local,path=$results,mount_tag=results,security_model=none,multidevs=remap" < /dev/null && ended=0 || ended=$?
fi
if [ -e "$results/.status" ]; then
  status=$(cat "$results/.status")
elif [ "$ended" -eq 124 ] || [ "$ended" -eq 137 ]; then
  say "stopped after $limit s"
  status=124
else
  say "the guest did not come to an end (status $ended)"
  status=125
fi
rm -f "$results/.job" "$results/.status"
exit "$status"
