# prove, on a machine that may stand still.  A virtual one can, for minutes: it
# is copied, or moved to another host.  Leases, timeouts and lifetimes are over
# when it goes on, and tests fail that have nothing to do with that.
# shellcheck shell=bash

# No load on the machine makes a sleep of one second last so long.
STANDSTILL=15


# run_prove [options] [files]: all files if none is named.
run_prove()
{
    local argument options=() files=() status=0 log still

    for argument; do
        if [[ -e $argument ]]; then
            files+=("$argument")
        else
            options+=("$argument")
        fi
    done

    # Those about timeouts and about Redis take longest: else one of them would
    # end alone.
    if (( ${#files[@]} == 0 )); then
        files=(t/07*.t t/1*.t t/0[!7]*.t)
    fi

    log=$(mktemp)
    still=$(mktemp)
    watch_clock "$still" &> /dev/null &

    # Most of the time they wait.
    prove -j"$(($(nproc) + 2))" "${options[@]}" "${files[@]}" |& tee "$log" \
        || status=$?

    mapfile -t files < <(failed_files "$log")

    if (( status && ${#files[@]} )) && [[ -s $still ]]; then
        say "the machine stood still for $(tail -n 1 "$still") s: what failed runs once more"
        status=0
        prove "${options[@]}" "${files[@]}" || status=$?
    fi

    rm -f "$log" "$still"
    return "$status"
}


# watch_clock FILE: writes there for how many seconds the machine stood still,
# until the file or this shell is gone.
watch_clock()
{
    local before=$EPOCHSECONDS

    while [[ -e $1 ]] && kill -0 $$; do
        sleep 1

        if (( EPOCHSECONDS - before >= STANDSTILL )); then
            echo "$((EPOCHSECONDS - before))" >> "$1"
        fi

        before=$EPOCHSECONDS
    done
}


failed_files()
{
    sed -n '/^Test Summary Report/,$s/^\(t\/[^ ]*\.t\) *(Wstat: .*/\1/p' "$1"
}
