#!/usr/bin/env bash

# What records cost in Redis: fills a server of its own with records as the
# module writes them and prints the memory per million, for pending records
# and for responses of some sizes (headers and body, encoded).

set -euo pipefail

DIR=$(mktemp -d)
COUNT=${1:-100000}

# One program in redis-tools, which looks at its name to know what it is.
(exec -a redis-server redis-check-rdb --port 0 --unixsocket "$DIR/redis" \
    --save '' --dir "$DIR" --daemonize yes --pidfile "$DIR/pid" > /dev/null)

trap 'kill "$(cat "$DIR/pid")"; rm -rf "$DIR"' EXIT

cli()
{
    redis-cli -s "$DIR/redis" "$@"
}

until cli ping > /dev/null 2>&1; do sleep 0.1; done

used()
{
    cli info memory | tr -d '\r' | sed -n 's/^used_memory://p'
}

printf '%-24s %s\n' "response" "megabytes per million records"

for size in 0 200 600 2000 10000; do
    cli flushall > /dev/null
    before=$(used)

    for (( i = 0; i < COUNT; i += 10000 )); do
        cli eval '
            local value = string.rep("x", 70 + ARGV[2])
            for i = 1, 10000 do
                redis.call("SET", "idem:" .. redis.sha1hex(ARGV[1] .. i):sub(1, 32),
                    value, "PX", 86400000)
            end' 0 "$i-" "$size" > /dev/null
    done

    printf '%-24s %d\n' "$size bytes" \
        $(( ($(used) - before) / COUNT * 1000000 / 1024 / 1024 ))
done
