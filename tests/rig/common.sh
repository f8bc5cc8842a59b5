# What build and run share. Sourced by bash.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(cd "$here/../.." && pwd)
cache=${NODEAGENT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodeagent}/rig
# 7.3 and older differ in what a write to dmem.max does; "stock" is Debian's own kernel, which has no dmem.
kernel=${RIG_KERNEL:-7.3}

say() { printf '%s rig: %s\n' "$(date +%T)" "$*" >&2; }
die() { printf 'rig: %s\n' "$*" >&2; exit 125; }
