#!/bin/sh
# Two leases of different shapes on one GPU, start to end, with an agent of our own in a temporary
# directory. Run it with `make demo`. Exits 0 only when every step did what its heading says.
set -eu
cd "$(dirname "$0")/.."
. client/node.sh
PATH=$PWD/.venv/bin:$PATH

# Root with ROCm libraries but no GPU gets real HIP programs on a fake driver (docs/rocm.md).
can_fake() {
    [ -z "${NODEAGENT_FAKE:-}" ] && [ -n "$(choose_node none)" ] && [ "$(id -u)" -eq 0 ] && [ -w /dev/fuse ] &&
        command -v gcc && [ -e /usr/include/hip/hip_runtime_api.h ] && python -m tests.fakekfd -- rocminfo
}
if can_fake >/dev/null 2>&1; then
    NODEAGENT_FAKE=yes exec python -m tests.fakekfd --gpus 2 -- client/demo.sh
fi

dir=$(mktemp -d "${TMPDIR:-/tmp}/nodeagent-demo.XXXXXX")
export GPULEASE_SOCKET="$dir/api.sock"
stay=$dir/stay # the workloads run while this file exists
agent='' runs=''

clean_up() {
    status=$?
    trap - EXIT INT TERM
    rm -f "$stay"
    for pid in $runs; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true # it gives its lease back while the agent is there
    done
    if [ -n "$agent" ]; then
        kill "$agent" 2>/dev/null || true
        wait "$agent" 2>/dev/null || true
    fi
    [ "$status" -eq 0 ] || { echo "--- the agent's log:"; tail -n 40 "$dir/agent.log"; } >&2
    rm -rf "$dir"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

heading() { printf '\n== %s\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@"; }

# Try "$@" until it succeeds, for at most 20 seconds.
until_true() {
    tries=100
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ] || ! kill -0 "$agent"; then
            echo "demo: gave up waiting for: $*" >&2
            return 1
        fi
        sleep 0.2
    done
}

# A workload: says what it was given, takes half of its memory and then more than is left, and stays.
cat >"$dir/workload" <<'WORKLOAD'
echo "    ROCR_VISIBLE_DEVICES=$ROCR_VISIBLE_DEVICES"
echo "    HSA_CU_MASK=$HSA_CU_MASK"
echo "    GPULEASE_VRAM_BYTES=$GPULEASE_VRAM_BYTES"
if [ -x "$2" ]; then
    half=$((GPULEASE_VRAM_BYTES / 2097152))
    "$2" "malloc=$half" "malloc=$((half + 1024))" "malloc=64" 2>/dev/null | sed 's/^/    HIP, MiB: /'
fi
echo "    (lease $GPULEASE_ID, staying until told to end)"
while [ -e "$1" ]; do sleep 0.2; done
WORKLOAD

# Start `gpulease run "$@"`, its output to $1, with the workload in the background; show what it says.
start() {
    log=$1
    shift
    printf '$ %s\n' "gpulease run $* -- sh workload"
    gpulease run "$@" -- sh "$dir/workload" "$stay" "$dir/hip" >"$log" 2>&1 &
    runs="$runs $!"
    until_true grep -q 'staying until told' "$log" || { cat "$log"; return 1; }
    cat "$log"
}

# The free share of device $1, as "CUs free of all, bytes free of all"; fails unless it is whole.
whole_again() {
    gpulease devices --json | python -c '
import json, sys
for device in json.load(sys.stdin)["devices"]:
    if device["device"] == sys.argv[1]:
        free = device["free"]
        print("%d of %d CUs free" % (free["cus"], device["cus"]))
        print("%d of %d bytes free" % (free["vram_bytes"], device["grantable_bytes"]))
        sys.exit((free["cus"], free["vram_bytes"]) != (device["cus"], device["grantable_bytes"]))
sys.exit("no such device: " + sys.argv[1])
' "$1"
}

if [ -n "${NODEAGENT_FAKE:-}" ]; then
    gcc -o "$dir/hip" tests/rocm/program.c -lamdhip64
    chmod 755 "$dir" "$dir/hip"
fi
simulate=$(choose_node mi300x-spx)
if [ -n "$simulate" ]; then
    heading "An agent on a simulated node: eight MI300X, from a real machine's sysfs"
    even="--cu 25% --vram 32G" exact="--cu 76 --shape exact --vram 16G"
else
    heading "An agent on this node's ${NODEAGENT_FAKE:+fake }GPUs"
    even="--cu 25% --vram 20%" exact="--cu 25% --shape exact --vram 10%"
fi
printf '$ %s\n' "nodeagent serve${simulate:+ $simulate} --socket $GPULEASE_SOCKET --state-dir $dir/state"
# shellcheck disable=SC2086 # none or two words on purpose
nodeagent serve $simulate --socket "$GPULEASE_SOCKET" --state-dir "$dir/state" >"$dir/agent.log" 2>&1 &
agent=$!
until_true nodeagent health --socket "$GPULEASE_SOCKET"

heading "The node's devices"
show gpulease devices
device=$(gpulease devices --json | python -c '
import json, sys
print(next(d["device"] for d in json.load(sys.stdin)["devices"] if d["state"] == "healthy"))')

: >"$stay"
heading "A lease in whole rows on $device, and what its workload sees"
# shellcheck disable=SC2086 # several words on purpose
start "$dir/first.log" $even --device "$device"

heading "A second lease on the same device, of an exact number of CUs"
# shellcheck disable=SC2086 # several words on purpose
start "$dir/second.log" $exact --device "$device"

heading "Both leases on the device"
show gpulease status

heading "A third request, for all of the device, is refused with the reason"
status=0
show gpulease grant --device "$device" --cu 100% 2>&1 || status=$?
echo "(exit $status)"
[ "$status" -eq 3 ]

heading "Both workloads end; their leases end with them"
rm -f "$stay"
for pid in $runs; do wait "$pid"; done
runs=''
until_true whole_again "$device"
show gpulease status

heading "The device is whole again"
whole_again "$device"
