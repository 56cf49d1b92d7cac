# Looking into the file of a memory store.
# shellcheck shell=bash

zone_dump()
{
    [[ $# == 1 ]] || die "zone-dump takes the name of a file"

    deps zone-dump
    locked build_zone_dump
    "$BUILD/zone-dump" "$1"
}


build_zone_dump()
{
    local newest
    newest=$(find src/store src/contract util/zone-dump.cpp -newer \
        "$BUILD/zone-dump" -print -quit 2> /dev/null || echo none)

    if [[ -x $BUILD/zone-dump && ! $newest ]]; then
        return
    fi

    say "building build/zone-dump"
    g++ -std=c++20 -O2 -Wall -Wextra -I src -o "$BUILD/zone-dump" \
        util/zone-dump.cpp \
        src/store/zone{,_blocks,_expiry,_records,_recovery}.cpp \
        src/store/zone{_responses,_room,_verify}.cpp \
        src/contract/{record,summary}.cpp
}
