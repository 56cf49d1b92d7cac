# Fuzzing: every program of t/fuzz under libFuzzer.
# shellcheck shell=bash

fuzz()
{
    local limit target targets=() failed

    case $#,${1:-60} in
        0,* | 1,[0-9]*)
            limit=-max_total_time=${1:-60} ;;
        2,--runs)
            limit=-runs=$2 ;;
        *)
            die "fuzz takes a number of seconds, or --runs and a number" ;;
    esac

    deps fuzz
    locked build_fuzz

    for target in t/fuzz/*.cpp; do
        targets+=("$(basename "$target" .cpp)")
    done

    say "fuzzing: ${targets[*]}"
    failed=$(printf '%s\n' "${targets[@]}" \
        | xargs -P "$(nproc)" -I TARGET \
            "$ROOT/build.sh" fuzz-one TARGET "$limit")

    if [[ $failed ]]; then
        for target in $failed; do
            tail -n 40 "$BUILD/fuzz/$target.log" >&2
        done
        die "fuzzing found something, see build/fuzz/: ${failed//$'\n'/ }"
    fi
}


build_fuzz()
{
    say "building the fuzz targets"
    make -s -C t/fuzz -j "$(nproc)" OUT="$BUILD/fuzz"
}


# fuzz_one TARGET LIMIT: prints the name if something was found.  libFuzzer
# adds what it learns to the first folder: the seeds stay as they are.  An input
# that hangs is found however long the limit is; a machine that stands still for
# some minutes must not look like one.
fuzz_one()
{
    local target=$1 limit=$2 dir=$BUILD/fuzz seeds=()

    mkdir -p "$dir/corpus/$target"

    if [[ -d t/fuzz/corpus/$target ]]; then
        seeds=("t/fuzz/corpus/$target")
    fi

    "$dir/$target" "$limit" -max_len=4096 -timeout=600 \
        -artifact_prefix="$dir/$target-" \
        "$dir/corpus/$target" "${seeds[@]}" > "$dir/$target.log" 2>&1 \
        || echo "$target"
}
