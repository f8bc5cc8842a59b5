# shellcheck shell=sh
# Sourced by demo.sh and .ci/serve: which node a private agent may take.

# Print nothing for this node's own GPUs, else "--simulate $1". Real GPUs need root, and no installed agent:
# two agents that know nothing of each other would grant the same GPU twice.
choose_node() {
    if [ "$(id -u)" -eq 0 ] && [ ! -S /run/nodeagent/api.sock ] &&
        grep -qsE '^simd_count [1-9]' /sys/class/kfd/kfd/topology/nodes/*/properties; then
        return
    fi
    echo "--simulate $1"
}
