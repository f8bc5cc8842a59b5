# shellcheck shell=sh
# Sourced by prolog and epilog, after agent.sh: what root's two scripts send, and what they leave on the node.
#
# <run>/verdict/<job>    why the job must fail: its task-prolog prints it
# <run>/allowed/<job>    the job runs without a lease; the text, if any, is for its user
# <run>/hook/<job>       where the lease's limits and the hook's library are, for root's plugin in slurmstepd
# <spool>/<kind>-<job>-<boot id>-<uptime>
#                        the body of a call that got no answer; the agent reads it before it grants anything

job=${SLURM_JOB_ID-}
if ! is_number "$job"; then
    complain "SLURM_JOB_ID is not a number, so slurmd did not start this"
    exit 1
fi

# Each variable by name: what the agent needs, and no more of a user's than the two texts that may carry a request.
body() {
    field SLURM_JOB_ID "$job" &&
        field SLURM_JOB_SLUID "${SLURM_JOB_SLUID-}" &&
        field SLURM_HET_JOB_ID "${SLURM_HET_JOB_ID-}" &&
        field SLURM_JOB_UID "${SLURM_JOB_UID-}" &&
        field SLURM_JOB_GID "${SLURM_JOB_GID-}" &&
        field SLURM_JOB_ACCOUNT "${SLURM_JOB_ACCOUNT-}" &&
        field SLURM_JOB_GPUS "${SLURM_JOB_GPUS-}" &&
        field SLURM_JOB_RESTART_COUNT "${SLURM_JOB_RESTART_COUNT-}" &&
        field SLURM_JOB_START_TIME "${SLURM_JOB_START_TIME-}" &&
        field SLURM_JOB_PARTITION "${SLURM_JOB_PARTITION-}" &&
        field SLURM_JOB_EXCLUSIVE "${SLURM_JOB_EXCLUSIVE-}" &&
        field SLURM_JOB_EXTRA "${SLURM_JOB_EXTRA-}" &&
        field SLURM_JOB_COMMENT "${SLURM_JOB_COMMENT-}" &&
        field SLURMD_NODENAME "${SLURMD_NODENAME-}" &&
        field SLURM_CONF "${SLURM_CONF-}" &&
        field GPULEASE_AT "$started_at"
}

# Make directory $1 with mode $2, or see that it is root's alone.
own_directory() {
    [ -d "$1" ] || /bin/mkdir -p -m "$2" "$1" 2>/dev/null
    only_roots "$1"
}

# Keep what command "$@" prints as file $2 of directory $1: whole or not at all, whenever this script is killed.
keep() {
    file=$1/$2 new=$1/.$2.$$
    shift 2
    "$@" 2>/dev/null >"$new" && /bin/mv -f "$new" "$file" && return
    /bin/rm -f "$new"
    return 1
}

# leave verdict|allowed|hook TEXT: for what comes before the job's tasks. The task-prolog is not root, and may read
# what it knows the name of; whose jobs are here is not for users to list.
leave() (
    umask 022
    own_directory "$run" 755 && own_directory "$run/$1" 711 && keep "$run/$1" "$job" printf '%s\n' "$2" && exit
    complain "$run/$1/$job: cannot be written; is the directory root's alone, and not full?"
    exit 1
)

# Whether any of the files "$@" is there.
found() {
    for path in "$@"; do
        [ ! -e "$path" ] || return 0
    done
    return 1
}

# Remove what was left for this job; fails if there was nothing.
forget() {
    set -- "$run/verdict/$job" "$run/allowed/$job" "$run/hook/$job"
    found "$@" && /bin/rm -f "$@"
}

# spool_call prolog|epilog: for the agent, when it is back. Nothing is synced: a reboot ends every lease anyway.
spool_call() (
    umask 077
    read -r boot </proc/sys/kernel/random/boot_id
    own_directory "$spool" 700 && keep "$spool" "$1-$job-$boot-$started_at" body && exit
    complain "$spool: the call that got no answer cannot be kept; is the directory root's alone, and not full?"
    exit 1
)
