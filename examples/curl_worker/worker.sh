#!/bin/sh
# A worker that needs only curl and a POSIX shell: it claims tasks from a Treadle server and runs a command for each.
#
#     TREADLE_SERVER=http://127.0.0.1:8787 TREADLE_TOKEN=... sh worker.sh NAME COMMAND [ARGUMENT ...]
#
# NAME is what it handles: a name, a short name or a glob. COMMAND is started for each task, with the payload (a JSON object) on
# stdin. Exit 0: done, with the JSON object on stdout as the result (nothing: {}). Exit 65: it failed, and trying again cannot help.
# Anything else: it failed, and is tried again by the task's retry policy; the last line on stderr says why.
#
# More from the environment: LEASE (seconds; default 60), BEAT_EVERY (seconds; default a third of the lease), TASK_LIST (default),
# WORKER_NAME (curl), MOST (stop after this number of tasks; default: never), WAIT (seconds that a claim waits; default 30).

set -u
LC_ALL=C
export LC_ALL

[ $# -ge 2 ] || { echo "usage: sh worker.sh NAME COMMAND [ARGUMENT ...]" >&2; exit 64; }
handles=$1
shift

server=${TREADLE_SERVER:-http://127.0.0.1:8787}/v1
lease=${LEASE:-60}
beat_every=${BEAT_EVERY:-$(awk "BEGIN { print $lease / 3 }")}
most=${MOST:-0}
wait_for=${WAIT:-30}

umask 077
dir=$(mktemp -d "${TMPDIR:-/tmp}/curl_worker.XXXXXX")
mkfifo "$dir/listening"
headers=$dir/headers   # a file, as arguments of a process can be read by everybody
echo 'Content-Type: application/json' >"$headers"
[ -z "${TREADLE_TOKEN:-}" ] || echo "Authorization: Bearer $TREADLE_TOKEN" >>"$headers"

worker= task= version= work= beats= poll= stopping=

# --- JSON, as far as it is needed ---

# field NAME: the value of that name in the JSON object on stdin, as it is written there; of text, what is in the quotes.
field() {
    awk -v want="\"$1\"" '
        { text = text $0 "\n" }
        END {
            for (i = 1; i <= length(text); i++) {
                c = substr(text, i, 1)
                if (quoted) {
                    value = value c
                    if (c == "\\") value = value substr(text, ++i, 1)
                    else if (c == "\"") quoted = 0
                } else if (c == "\"") { quoted = 1; value = value c
                } else if (c ~ /[ \t\r\n]/) { continue
                } else if (depth == 1 && c == ":") { key = value; value = ""
                } else if (depth == 1 && (c == "," || c == "}")) {
                    if (key == want) { gsub(/^"|"$/, "", value); print value; exit }
                    value = ""
                    if (c == "}") exit
                } else {
                    if (c == "}" || c == "]") depth--
                    if (depth > 0) value = value c
                    if (c == "{" || c == "[") depth++
                }
            }
        }'
}

# quote: stdin as JSON text.
quote() {
    tr -d '\000-\010\013-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/	/ /g' | awk '{ printf "%s%s", (NR > 1 ? "\\n" : ""), $0 }' | sed 's/^/"/; s/$/"/'
}

# --- HTTP ---

# post PATH BODY_FILE ANSWER_FILE: prints the status; 000 without a response.
post() {
    curl -sS -X POST -H "@$headers" --data-binary "@$2" -o "$3" -w '%{http_code}' --max-time $((wait_for + 30)) "$server$1" 2>>"$dir/trouble" || :
}

# say WORD [FIELDS]: tell the server something about the task that is held. What was not answered is said again: if it was heard
# after all, the answer is the same.
say() {
    printf '{"worker_id":"%s","claim_version":%s%s}' "$worker" "$version" "${2:+,$2}" >"$dir/said.$1"
    tries=0
    while :; do
        status=$(post "/tasks/$task/$1" "$dir/said.$1" "$dir/answer.$1")
        case $status in
            000 | 429 | 5??) tries=$((tries + 1)); [ $tries -lt 5 ] || return 1; sleep 1 ;;
            *) return 0 ;;
        esac
    done
}

note() { echo "$(date -u +%H:%M:%S) $*"; }

# --- the work ---

# heartbeats: hold the claim while the command runs; if it is gone, say so and stop the command.
heartbeats() {
    : &   # so that $! is a child of ours whenever the trap looks at it
    trap 'kill $!; exit' TERM
    echo >"$dir/listening"   # a signal that came before the trap might be lost
    while :; do
        sleep "$beat_every" &
        wait $!
        say heartbeat "\"lease\":$lease" || continue
        state=$(field state <"$dir/answer.heartbeat")
        if [ "$status" = 409 ] || [ "$state" = canceled ]; then
            if [ "$status" = 409 ]; then field code; else echo canceled; fi <"$dir/answer.heartbeat" >"$dir/lost"
            kill "$1" 2>/dev/null
            return
        fi
    done
}

# settle CODE: report the outcome of the task.
settle() {
    case $1 in
        0)
            result=$(cat "$dir/out")
            say complete "\"result\":${result:-{\}}"
            ;;
        *)
            retryable=true
            [ "$1" != 65 ] || retryable=false
            reason=$(tail -n 1 "$dir/err" | quote)
            say fail "\"message\":${reason:-\"exit status $1\"},\"code\":\"exit_$1\",\"retryable\":$retryable"
            ;;
    esac
    word=complete
    [ "$1" = 0 ] || word=fail
    case $status in
        200) note "$task $(field state <"$dir/answer.$word")" ;;
        409) note "$task $(field code <"$dir/answer.$word"): the work is dropped" ;;
        422)
            field detail <"$dir/answer.$word" | sed "s/^/$task refused: /"   # such as a result that is not JSON; the claim is still held
            say fail '"message":"the command did not print a JSON object","code":"bad_result","retryable":false'
            ;;
        *) note "$task answered with $status: left to its lease" ;;
    esac
}

# handle: do the task that is in $dir/task.
handle() {
    task=$(field task_id <"$dir/task")
    version=$(field claim_version <"$dir/task")
    field payload <"$dir/task" >"$dir/payload"
    rm -f "$dir/lost"
    note "$task claimed, version $version"
    export TREADLE_TASK_ID="$task" TREADLE_CLAIM_VERSION="$version"
    "$@" <"$dir/payload" >"$dir/out" 2>"$dir/err" &
    work=$!
    heartbeats "$work" >/dev/null 2>&1 &
    beats=$!
    # A signal interrupts the opening, which is then tried again.
    until read -r _ <"$dir/listening" || ! kill -0 "$beats"; do :; done 2>/dev/null
    [ -z "$stopping" ] || kill "$work" 2>/dev/null
    wait "$work"
    code=$?
    work=
    kill "$beats" 2>/dev/null
    wait "$beats" 2>/dev/null
    beats=
    if [ -n "$stopping" ]; then
        say release '"reason":"its worker was stopped"' && note "$task given back"
    elif [ -s "$dir/lost" ]; then
        note "$task $(cat "$dir/lost"): the work is dropped"
    else
        settle "$code"
    fi
    task=
}

# leave: release the held task and deregister this worker.
leave() {
    [ -z "$worker" ] || { echo '{}' >"$dir/said.leave"; post "/workers/$worker/leave" "$dir/said.leave" "$dir/answer.leave" >/dev/null; }
    rm -rf "$dir"
}

# The heartbeats end with the work: killed before they are heard, they would leave `handle` waiting for them.
trap 'stopping=yes; for each in $work $poll; do kill "$each" 2>/dev/null; done' TERM INT
trap leave EXIT

register() {
    printf '{"name":"%s","handlers":["%s"],"task_lists":["%s"]}' "${WORKER_NAME:-curl}" "$handles" "${TASK_LIST:-default}" >"$dir/said.register"
    status=$(post /workers "$dir/said.register" "$dir/answer.register")
    [ "$status" = 201 ] || { echo "cannot register: $status $(cat "$dir/answer.register" "$dir/trouble" 2>/dev/null)" >&2; exit 1; }
    worker=$(field worker_id <"$dir/answer.register")
    note "registered as $worker for $handles"
}

register "$@"
done_so_far=0
while [ -z "$stopping" ]; do
    printf '{"worker_id":"%s","limit":1,"wait_for":%s,"lease":%s}' "$worker" "$wait_for" "$lease" >"$dir/said.claim"
    post /tasks/claim "$dir/said.claim" "$dir/answer.claim" >"$dir/status" &   # in the background, so that the shell handles signals immediately
    poll=$!
    [ -n "$stopping" ] || wait "$poll"
    poll=
    [ -z "$stopping" ] || break
    case $(cat "$dir/status") in
        200)
            field tasks <"$dir/answer.claim" | sed 's/^\[//; s/\]$//' >"$dir/task"
            [ "$(wc -c <"$dir/task")" -gt 2 ] || continue   # nothing came in time
            handle "$@"
            done_so_far=$((done_so_far + 1))
            [ "$done_so_far" != "$most" ] || break
            ;;
        404) register "$@" ;;   # it was away for so long that it is not known any more
        *) echo "claiming failed: $(cat "$dir/status") $(field detail <"$dir/answer.claim" 2>/dev/null)" >&2; sleep 2 ;;
    esac
done
