# The models of the Redis store: docs/model with spin.
# shellcheck shell=bash

# "EXPECTED MODEL NAME MACROS".  EXPECTED is one of
#   holds    nothing runs twice
#   breaks   it does when this protection is taken away, or this fault added
#   today    it does with the code as it is: a known fault, to be mended
# docs/model/README.md has a line or a paragraph for each.
MODEL_CASES=(
    "holds  failover asynchronous-failover"
    "holds  failover restart-without-data  FAILOVERS=0 FORGET=2"
    "holds  failover restart-and-failover  FORGET=1"
    "holds  failover refused-at-first      REFUSES"
    "holds  failover all-replicas          WAIT_N=2 CRASH CUT RESTARTS=1"
    "holds  failover fence                 CUT SPLIT"
    "breaks failover no-token              NO_TOKEN"
    "breaks failover no-hold               NO_HOLD"
    "breaks failover no-put-back           NO_PUT_BACK"
    "breaks failover no-outcomes           NO_OUTCOMES"
    "breaks failover no-replace            NO_REPLACE"
    "breaks failover no-grace              NO_GRACE"
    "breaks failover no-second-grace       REFUSES NO_SECOND_GRACE"
    "breaks failover no-fence              CUT SPLIT NO_FENCE"
    "breaks failover host-dies             CRASH"
    "breaks failover host-cut-off          CUT"
    "breaks failover one-of-two-replicas   WAIT_N=1 CRASH"
    "breaks failover master-without-disk   WAIT_N=2 CRASH FAILOVERS=0 FORGET=1"
    "breaks failover empty-replica         WAIT_N=2 CRASH RESTARTS=1 UNSYNCED"

    "holds  loss any-loss             MOVES RESETS VANISHES EMPTY LOSSES=2"
    "holds  loss old-master-lives     MOVES OLD_LIVES EMPTY"
    "holds  loss reload               MOVES RESETS VANISHES RELOAD"
    "holds  loss cold-start           MOVES RESETS VANISHES START EMPTY"
    "holds  loss start-by-uptime      RESETS START EMPTY BY_UPTIME"
    "holds  loss reset-today          RESETS EMPTY TODAY GRACE=3 CONNECT=0"
    "breaks loss grace-too-short      MOVES EMPTY GRACE=5"
    "breaks loss attempt-too-early    VANISHES EMPTY CHECK=0 TIMEOUT=0 CONNECT=2 GRACE=6"
    "breaks loss gate-of-each-worker  MOVES RELOAD EACH_WORKER_WAITS"
    "breaks loss start-at-once        MOVES START START_AT_ONCE"
    "breaks loss uptime-of-a-spare    MOVES START BY_UPTIME SPARE"
    "breaks loss exiting-sleeps       MOVES RELOAD SLEEPS"
    "breaks loss exiting-leaves       MOVES RELOAD LEAVES"
    "today  loss today-idle-host      MOVES EMPTY TODAY CHECK=5 GRACE=2"
    "today  loss today-reload         RESETS RELOAD TODAY"
    "today  loss today-cold-start     MOVES START TODAY"

    "holds  memory bounded              "
    "holds  memory bounded-late         LATE_ROOM=2"
    "breaks memory older-than-reassert  EMPTY"
    "breaks memory lag-over-reassert    LAG=3"
    "breaks memory outage-counts        COUNTS_OUTAGE"
    "breaks memory drops-facts          DROPS_FACTS"
    "breaks memory facts-over-budget    ROOM=1"
    "breaks memory late-expires         LATE_EXPIRES"
    "breaks memory no-reserve           NO_RESERVE"
    "breaks memory no-refusal           NO_REFUSAL"
    "today  memory today-budget         TODAY LATE_ROOM=9 LATE=9"
    "today  memory today-late           TODAY ROOM=9 LATE_ROOM=9"
    "today  memory today-many-late      TODAY ROOM=9 LATE=9"

    "holds  attempts take-overs         LOSS"
    "holds  attempts late-outcomes      LOSS HOLD LATE LOST_REPLY"
    "holds  attempts flushall           FLUSH"
    "holds  attempts flushall-hold      FLUSH HOLD LOST_REPLY"
    "breaks attempts no-renewal         NO_RENEWAL"
    "breaks attempts no-attempts        LOSS NO_ATTEMPTS"
    "breaks attempts not-by-renewal     FLUSH HOLD NOT_BY_RENEWAL"
    "breaks attempts valid-lease        FLUSH VALID_LEASE"
    "breaks attempts no-later           FLUSH NO_LATER"
    "breaks attempts no-answer          FLUSH HOLD LOST_REPLY NO_ANSWER"
    "breaks attempts not-unknown        FLUSH NOT_UNKNOWN"
    "today  attempts today-late-answer  FLUSH HOLD LATE LOST_REPLY"

    "holds  takeover by-token           "
    "breaks takeover no-token-named     NO_TOKEN_NAMED"
    "breaks takeover no-promise         NO_PROMISE"
    "breaks takeover unasked            UNASKED"
)

# Models and cases that take longer than a second.
MODEL_SLOW=" failover take-overs flushall reload cold-start "


# model [--quick | MODEL | NAME]: checks every case; what holds and what does not
# hold today, without the slow ones; those of one model; or tells the story of
# one case.
model()
{
    local case name=${1:-} cases=()

    deps model
    mkdir -p "$BUILD/model"

    for case in "${MODEL_CASES[@]}"; do
        # shellcheck disable=SC2086
        set -- $case

        if [[ $3 == "$name" ]]; then
            model_case "$@"
            return
        fi

        if [[ -z $name || $2 == "$name" ]] \
            || [[ $name == --quick && $1 != breaks \
                && $MODEL_SLOW != *" $2 "* && $MODEL_SLOW != *" $3 "* ]]
        then
            cases+=("$case")
        fi
    done

    (( ${#cases[@]} )) || die "model takes one of: $(model_names)"

    say "checking ${#cases[@]} cases of docs/model, $(nproc) at once"
    # Not half of a line each.  xargs fails if a case does.
    printf '%s\n' "${cases[@]}" \
        | xargs -P "$(nproc)" -I CASE "$ROOT/build.sh" model-one CASE \
        | sed '/^ /d'
}


model_names()
{
    printf '%s\n' "${MODEL_CASES[@]}" \
        | awk '{if (!seen[$2]++) print $2; print $3}' | paste -sd' '
}


# model_case EXPECTED MODEL NAME MACROS...: fails if it is not so.  The shortest
# way to a violation is told, event by event.
model_case()
{
    local expected=$1 model=$ROOT/docs/model/$2.pml name=$3
    local dir=$BUILD/model/$3 found word macros=()
    shift 3

    (( $# == 0 )) || macros=("${@/#/-D}")
    rm -rf "$dir"
    mkdir -p "$dir"
    cd "$dir" || return

    # What holds is searched to the end, in depth; a violation in breadth.
    local search=(-DSAFETY)
    [[ $expected == holds ]] || search+=(-DBFS)

    # Most cases take less time than the compiler with -O1.
    local level=-O0
    [[ $MODEL_SLOW != *" $name "* && $model != */failover.pml ]] || level=-O1

    spin "${macros[@]}" -a "$model" > spin.log
    gcc "$level" -w "${search[@]}" -o pan pan.c
    ./pan -E -m100000 > pan.log
    found=$(model_result pan.log)

    word=$expected
    [[ $expected != today ]] || word="breaks today"
    printf 'expected %-12s  found %-10s  %-8s %-22s %8d states  %s\n' "$word" \
        "$found" "$(basename "$model" .pml)" "$name" \
        "$(awk '/states, stored/ {print $1}' pan.log)" "$*"

    if [[ $found == breaks ]]; then
        spin -T "${macros[@]}" -k ./*.trail "$model" \
            | grep -E '^ *(host|server|worker|key|application|and|the|time) ' \
            | sed 's/^ */    /'
    fi

    [[ $found == "${word% today}" ]] \
        || die "model: $name should be \"$word\", it is \"$found\""
}


# What was not searched to its end has shown nothing.
model_result()
{
    if grep -q 'max search depth too small\|out of memory' "$1"; then
        echo unfinished
    elif grep -q 'errors: 0$' "$1"; then
        echo holds
    elif grep -q 'errors: 1$' "$1"; then
        echo breaks
    else
        echo unfinished
    fi
}
