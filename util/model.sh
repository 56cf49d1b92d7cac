# The model of a failover: docs/model with spin.
# shellcheck shell=bash

MODEL=$ROOT/docs/model/failover.pml

# What has to hold, and what has to break when a protection is taken away or a
# fault is added: "holds|breaks NAME MACROS".  docs/model/README.md has a
# paragraph for each.
MODEL_CASES=(
    "holds  asynchronous-failover"
    "holds  restart-without-data   FAILOVERS=0 FORGET=2"
    "holds  restart-and-failover   FORGET=1"
    "holds  refused-at-first       REFUSES"
    "holds  all-replicas           WAIT_N=2 CRASH CUT RESTARTS=1"
    "holds  fence                  CUT SPLIT"
    "breaks no-token               NO_TOKEN"
    "breaks no-hold                NO_HOLD"
    "breaks no-put-back            NO_PUT_BACK"
    "breaks no-outcomes            NO_OUTCOMES"
    "breaks no-replace             NO_REPLACE"
    "breaks no-grace               NO_GRACE"
    "breaks no-second-grace        REFUSES NO_SECOND_GRACE"
    "breaks no-fence               CUT SPLIT NO_FENCE"
    "breaks host-dies              CRASH"
    "breaks host-cut-off           CUT"
    "breaks one-of-two-replicas    WAIT_N=1 CRASH"
    "breaks master-without-disk    WAIT_N=2 CRASH FAILOVERS=0 FORGET=1"
    "breaks empty-replica          WAIT_N=2 CRASH RESTARTS=1 UNSYNCED"
)


# model [NAME]: checks every case, or tells the story of one.
model()
{
    local case name=${1:-} status=0

    deps model
    mkdir -p "$BUILD/model"

    if [[ $name ]]; then
        for case in "${MODEL_CASES[@]}"; do
            # shellcheck disable=SC2086
            set -- $case
            [[ $2 != "$name" ]] || { model_case "$@"; return; }
        done
        die "model takes one of: $(model_names)"
    fi

    say "checking docs/model, $(nproc) cases at once"
    # Not half of a line each.
    printf '%s\n' "${MODEL_CASES[@]}" \
        | xargs -P "$(nproc)" -I CASE "$ROOT/build.sh" model-one CASE \
        | sed '/^ /d' || status=$?
    return "$status"
}


model_names()
{
    printf '%s\n' "${MODEL_CASES[@]}" | awk '{print $2}' | paste -sd' '
}


# model_case holds|breaks NAME MACROS...: fails if it is not so.  The shortest
# way to a violation is told, event by event.
model_case()
{
    local expected=$1 name=$2 dir=$BUILD/model/$2 found macros=()
    shift 2

    (( $# == 0 )) || macros=("${@/#/-D}")
    rm -rf "$dir"
    mkdir -p "$dir"
    cd "$dir" || return

    # What holds is searched to the end, in depth; a violation in breadth.
    local search=(-DSAFETY)
    [[ $expected == holds ]] || search+=(-DBFS)

    spin "${macros[@]}" -a "$MODEL" > spin.log
    gcc -O1 -w "${search[@]}" -o pan pan.c
    ./pan -E -m100000 > pan.log
    if grep -q 'errors: 0$' pan.log; then found=holds; else found=breaks; fi
    # What was not searched to its end has shown nothing.
    if grep -q 'max search depth too small\|out of memory' pan.log; then
        found=unfinished
    fi

    printf '%-6s %-22s %9d states  %s\n' "$found" "$name" \
        "$(awk '/states, stored/ {print $1}' pan.log)" "$*"

    if [[ $found == breaks ]]; then
        spin -T "${macros[@]}" -k failover.pml.trail "$MODEL" \
            | grep -E '^ *(host|server|and|the) ' | sed 's/^ */    /'
    fi

    [[ $found == "$expected" ]] \
        || die "model: $name should be \"$expected\", it is \"$found\""
}
