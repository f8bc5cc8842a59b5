# shellcheck shell=sh
# Sourced by prolog, epilog, task-prolog and await-agent: the site's settings, and how the agent is asked.
#
# What Slurm does with these scripts gives them their form:
# * They get no PATH, so each program is named in full.
# * slurmd waits until nobody holds their stdout or stderr, not for their exit: nothing is left in the background.
# * They run in parallel, and may be killed at any time with their process group: what they leave is whole or absent.
# * Slurm starts them with text that users wrote (a job's comment, a task's whole environment). It is passed on as
#   bytes on stdin only, by the shell's own printf: never in an argument, never evaluated, never made into JSON.

# shellcheck disable=SC2034 # each script uses some of the settings
{
    settings=/etc/nodeagent/prolog.conf
    socket=/run/nodeagent/api.sock
    deadline=8
    on_agent_down=drain
    epilog_wait=30
    epilog_trouble=ignore
    run=/run/nodeagent/slurm
    spool=/var/spool/nodeagent/slurm
    bypass=/run/nodeagent/bypass/gpulease
}
newline='
'
method=POST
LC_ALL=C # so that a range such as a-z is these bytes and no others
unset IFS

complain() {
    printf 'gpulease: %s\n' "$*" >&2
}

# Whether $1 is root's and nobody else may write to it. A link is not believed, wherever it leads.
only_roots() {
    [ -n "$(/usr/bin/find "$1" -prune -user 0 ! -perm -020 ! -perm -002 2>/dev/null)" ]
}

# Read, not sourced: a mistake in the file can set a wrong value, but run nothing. What is not understood keeps its
# default, which is the strict one.
read_settings() {
    [ -e "$settings" ] || return 0
    if ! only_roots "$settings"; then
        complain "$settings: not read, since it is not root's, or others may write to it"
        return 0
    fi
    while IFS= read -r line || [ -n "$line" ]; do
        use_setting "$line"
    done <"$settings"
}

use_setting() {
    case $1 in
    '' | '#'*) ;;
    socket=/*) socket=${1#*=} ;;
    deadline=[1-9] | deadline=[1-9][0-9]) deadline=${1#*=} ;;
    on_agent_down=drain | on_agent_down=fail | on_agent_down=allow) on_agent_down=${1#*=} ;;
    epilog_wait=[1-9] | epilog_wait=[1-9][0-9] | epilog_wait=[1-9][0-9][0-9]) epilog_wait=${1#*=} ;;
    epilog_trouble=ignore | epilog_trouble=drain) epilog_trouble=${1#*=} ;;
    run=/*) run=${1#*=} ;;
    spool=/*) spool=${1#*=} ;;
    bypass=/*) bypass=${1#*=} ;;
    *) complain "$settings: not understood, and left at its default: ${1%%=*}" ;;
    esac
}

# A stopped agent may take /run/nodeagent with it; the directory of its settings stays while it is installed.
agent_installed() {
    [ -d "${settings%/*}" ] || [ -d "${socket%/*}" ]
}

# Whether root has bypassed the agent (`nodeagent bypass on`): in this boot, and for no longer than it said. What is
# not as that writes it is no bypass.
bypassed() {
    [ -f "$bypass" ] && only_roots "${bypass%/*}" && only_roots "$bypass" || return 1
    { IFS= read -r boot && IFS= read -r ends; } 2>/dev/null <"$bypass" || return 1
    read -r boot_now </proc/sys/kernel/random/boot_id
    [ "$boot" = "boot_id=$boot_now" ] || return 1
    case $ends in until=?*) ends=${ends#*=} ;; *) return 1 ;; esac
    is_number "$ends" && [ "${#ends}" -le 10 ] || return 1
    read_clock
    [ "${clock%.*}" -lt "$ends" ]
}

is_number() {
    case $1 in '' | *[!0-9]*) return 1 ;; esac
}

# Whether $1 is fit for a log, `sinfo -R` and a terminal: one line of ASCII without control characters.
is_printable() {
    case $1 in *[!\ -~]*) return 1 ;; esac
}

# Set $clock to the seconds since the node started, and $now to the same in hundredths. The agent uses this clock too.
read_clock() {
    read -r clock _ </proc/uptime
    now=${clock%.*}${clock#*.}
}

# Start to count time, and give the agent $1 seconds of it.
start_clock() {
    read_clock
    # shellcheck disable=SC2034 # the prolog and the epilog tell it to the agent
    started_at=$clock
    started=$now asked='' answer='' word='' why='there was no time to ask'
    give_until "$1"
}

# Give the agent $1 seconds in all.
give_until() {
    end=$((started + $1 * 100))
}

# One field of a body, unless it is empty. The cut bounds the body, whatever a user made of a comment.
field() {
    [ -z "$2" ] || printf '%s=%.4096s\0' "$1" "$2"
}

# Become the client that sends stdin to path $1 of the agent within $2 seconds. It prints the answer, a newline and
# the HTTP status. Its environment is empty: a proxy, a .curlrc or a library of the user's does not reach it.
become_client() {
    for program in /usr/bin/curl /bin/curl /usr/local/bin/curl; do
        [ -x "$program" ] || continue
        exec /usr/bin/env -i "$program" -q --silent --unix-socket "$socket" --max-time "$2" --request "$method" \
            --header 'Content-Type: application/octet-stream' --header 'Accept: text/plain' --header 'Expect:' \
            --data-binary @- --write-out '\n%{http_code} ' "http://localhost$1"
    done
    for program in /usr/bin/python3 /usr/libexec/platform-python; do
        [ -x "$program" ] || continue
        exec /usr/bin/env -i "$program" -I "$here/ask.py" "$method" "$socket" "$1" "$2"
    done
    exit 127
}

# Send what `body` prints to path $1 of the agent, once, within $2 seconds. Set $answer, or $why where none came: only
# a status of 200 and a client that got the whole of it count, so the two end the text that is read here.
ask() {
    answer='' why="$socket: its directory is missing, or is not root's alone"
    only_roots "${socket%/*}" || return 1
    answer=$({ body | (become_client "$1" "$2"); printf %s "$?"; } 2>/dev/null | /usr/bin/head -c 8192)
    why=${answer##*"$newline"}
    case $why in
    '200 0') answer=${answer%"$newline"*} && return 0 ;;
    '' | *[!0-9\ ]* | ????????*) why='an answer without an end' ;;
    *) why="HTTP status and exit code of the client: $why" ;;
    esac
    answer=''
    return 1
}

# One more try at path $1, which sets $answer, to nothing where none came. Fails, without a try, when the time is up.
ask_again() {
    [ -z "$asked" ] || /bin/sleep 0.2
    asked=yes
    read_clock
    left=$((end - now))
    [ "$left" -ge 10 ] || return 1
    ask "$1" "$((left / 100)).$((left / 10 % 10))" || :
}

# Split $answer: $word is its first line, and $text the second.
read_answer() {
    text=${answer#*"$newline"}$newline
    word=${answer%%"$newline"*}
    [ "$word" != "$answer" ] || text=''
    text=${text%%"$newline"*}
    is_printable "$text" && [ "${#text}" -le 200 ] || text='(the reason cannot be shown: it is not plain text)'
}
