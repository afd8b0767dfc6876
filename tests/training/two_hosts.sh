#!/usr/bin/env bash
# Two hosts on one machine: network namespaces `left` and `right`, a virtual cable between them, torchrun in both.
# Usage: two_hosts.sh PYTHON ARGUMENTS...   (what torchrun is to start). Exit code 77: namespaces can't be made here.
set -u
python=$1
shift
if [ "${INSIDE_NAMESPACE:-}" = "" ]; then
    exec env INSIDE_NAMESPACE=1 unshare -rnm --fork --kill-child "$0" "$python" "$@"
fi

give_up() { echo "$1" >&2; exit 77; }
mount -t tmpfs tmpfs /run 2>/dev/null && mkdir -p /run/netns || give_up "can't mount /run"
for host in left right; do
    ip netns add $host 2>/dev/null || give_up "can't make a network namespace"
    ip -n $host link set lo up
done
ip link add cable-left netns left type veth peer name cable-right netns right 2>/dev/null || give_up "no veth"
ip -n left address add 10.77.0.1/24 dev cable-left
ip -n right address add 10.77.0.2/24 dev cable-right
ip -n left link set cable-left up
ip -n right link set cable-right up

start() {  # host, rank, then the command
    local host=$1 rank=$2
    shift 2
    GLOO_SOCKET_IFNAME=cable-$host ip netns exec "$host" "$python" -m torch.distributed.run \
        --nnodes 2 --node_rank "$rank" --nproc_per_node 1 --master_addr 10.77.0.1 --master_port 29577 "$@"
}
start left 0 "$@" &
first=$!
start right 1 "$@" &
second=$!
wait $first; code=$?
wait $second || code=$?
exit $code
