#!/bin/sh
# Ranks in network namespaces of their own, on one bridge, each behind a link of its own rate: no root needed, under
#   unshare -Urnm tools/slow_link.sh up RANKS RATE
# and in that same place later: tools/slow_link.sh rate RANK RATE. Rates as tc writes them: 200mbit. Rank R is namespace
# rankR with address 10.77.0.(R+1) on eth0; `ip netns exec rankR COMMAND` runs something there.
set -eu

shape() {  # both ways: out of the rank at its own end, into it at the bridge's
  ip netns exec "rank$1" tc qdisc replace dev eth0 root tbf rate "$2" burst 128kb limit 1mb
  tc qdisc replace dev "to$1" root tbf rate "$2" burst 128kb limit 1mb
}

case "$1" in
  up)
    mount -t tmpfs tmpfs /run   # where ip keeps the names of namespaces
    ip link set lo up
    ip link add fabric type bridge
    ip link set fabric up
    rank=0
    while [ "$rank" -lt "$2" ]; do
      ip netns add "rank$rank"
      ip link add "to$rank" type veth peer name eth0 netns "rank$rank"
      ip link set "to$rank" master fabric up
      ip -n "rank$rank" addr add "10.77.0.$((rank + 1))/24" dev eth0
      ip -n "rank$rank" link set eth0 up
      ip -n "rank$rank" link set lo up
      shape "$rank" "$3"
      rank=$((rank + 1))
    done
    ;;
  rate) shape "$2" "$3" ;;
  *) echo "usage: $0 up RANKS RATE | rate RANK RATE" >&2; exit 2 ;;
esac
