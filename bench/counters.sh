#!/usr/bin/env bash

# What counting costs: the same load on the module and on a copy of it that
# counts nothing, in turns.  Prints the CPU time of nginx per request, and the
# ratio of the two, for replays and for new keys.
#
#     bench/counters.sh [rounds] [seconds]
#
# Needs wrk and curl, and what ./build.sh build needs.

set -euo pipefail

ROUNDS=${1:-7}
SECONDS_EACH=${2:-4}
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MODULE=ngx_http_idempotency_module.so
COPY=$ROOT/build/bench/copy
DIR=$(mktemp -d)
PORT=${PORT:-18080}

trap 'stop_all; rm -rf "$DIR"' EXIT


main()
{
    "$ROOT/build.sh" build > /dev/null 2>&1
    make_copy

    start with "$ROOT/build/$MODULE" "$PORT"
    start without "$COPY/build/$MODULE" "$((PORT + 1))"
    write_loads

    measure replays
    measure new-keys

    counted with || die "the module did not count"
    ! counted without || die "the copy counted"
}


# A copy whose counters stay where they are.
make_copy()
{
    mkdir -p "$COPY"
    (cd "$ROOT" && cp -a build.sh config config.make src util "$COPY/")
    sed -i '/fetch_add/d' "$COPY/src/store/counters.h"
    sed -i 's/void add(std::size_t which, std::uint64_t n = 1)/void add(std::size_t, std::uint64_t = 1)/' \
        "$COPY/src/store/counters.h"
    sed -i '/^counters::observe(/,/^}/ s/^{/{ if (true) { (void) first; (void) bounds; (void) ms; return; }/' \
        "$COPY/src/store/counters.cpp"
    "$COPY/build.sh" build > /dev/null 2>&1
}


# start NAME MODULE PORT: one worker, and an application that is nginx too.
start()
{
    local dir=$DIR/$1 user=""

    if (( EUID == 0 )); then
        user="user root;"
    fi

    mkdir -p "$dir"
    cat > "$dir/nginx.conf" <<END
load_module $2;
$user
worker_processes 1;
pid nginx.pid;
error_log error.log;
events { worker_connections 512; }
http {
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    upstream application { server 127.0.0.1:$((PORT + 2)); keepalive 64; }
    server {
        listen 127.0.0.1:$3;
        location / {
            idempotency on;
            idempotency_scope none;
            idempotency_ttl 2s;
            proxy_http_version 1.1;
            proxy_set_header Connection '';
            proxy_pass http://application;
        }
        location = /status { idempotency_status; }
        location /replays { idempotency on; idempotency_scope none; proxy_pass http://application; }
    }
}
END
    if [[ $1 == with ]]; then
        mkdir -p "$DIR/application"
        cat > "$DIR/application/nginx.conf" <<END
$user
worker_processes 1;
pid nginx.pid;
error_log error.log;
events { worker_connections 512; }
http {
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server { listen 127.0.0.1:$((PORT + 2)); location / { return 200 done; } }
}
END
        nginx -p "$DIR/application/" -e error.log -c nginx.conf
    fi

    nginx -p "$dir/" -e error.log -c nginx.conf
}


stop_all()
{
    local pid

    for pid in "$DIR"/*/nginx.pid; do
        if [[ -f $pid ]]; then
            kill "$(cat "$pid")" || true
        fi
    done
}


write_loads()
{
    cat > "$DIR/replays.lua" <<'END'
wrk.method = "POST"
wrk.path = "/replays"
wrk.body = "item=tea"
wrk.headers["Idempotency-Key"] = '"one"'
END
    cat > "$DIR/new-keys.lua" <<'END'
wrk.method = "POST"
wrk.body = "item=tea"
local prefix = tostring(os.time()) .. tostring({}):gsub("%W", "")
local n = 0
function request()
    n = n + 1
    wrk.headers["Idempotency-Key"] = prefix .. n
    return wrk.format()
end
END
}


# measure LOAD: in turns, so that what else happens on the machine meets both.
measure()
{
    local load=$1 round name

    for name in with without; do
        # Or the first retries would meet a request that is running.
        curl -s -o "$DIR/first" -H 'Idempotency-Key: "one"' -H 'Content-Type:' -d item=tea \
            "http://127.0.0.1:$(port_of "$name")/replays"
        run "$load" "$name" > /dev/null
    done

    for (( round = 0; round < ROUNDS; round++ )); do
        echo "$(run "$load" with) $(run "$load" without)"
    done | sort -n -k1,1 | awk -v load="$load" '
        { with[NR] = $1; without[NR] = $2; ratio[NR] = $1 / $2 }
        END {
            n = asort_(ratio); asort_(with); asort_(without); m = int((NR + 1) / 2)
            printf "%-10s %.2f us with, %.2f us without counters, ratio %.3f (%.3f to %.3f)\n",
                load, with[m], without[m], ratio[m], ratio[1], ratio[NR]
        }
        function asort_(a,  i, j, t) {
            for (i = 2; i <= NR; i++) {
                t = a[i]
                for (j = i - 1; j > 0 && a[j] > t; j--) { a[j + 1] = a[j] }
                a[j + 1] = t
            }
            return NR
        }'
}


# run LOAD NAME: microseconds of CPU time per request.
run()
{
    local port worker before after requests

    port=$(port_of "$2")
    worker=$(pgrep -P "$(cat "$DIR/$2/nginx.pid")")
    before=$(cpu_of "$worker")
    wrk -t 1 -c 16 -d "${SECONDS_EACH}s" -s "$DIR/$1.lua" "http://127.0.0.1:$port/" > "$DIR/wrk"
    ! grep -q Non-2xx "$DIR/wrk" || die "requests failed: $(grep Non-2xx "$DIR/wrk")"
    requests=$(awk '/requests in/ { print $1 }' "$DIR/wrk")
    after=$(cpu_of "$worker")
    awk "BEGIN { print ($after - $before) / 1000 / $requests }"
}


port_of()
{
    [[ $1 == with ]] && echo "$PORT" || echo "$((PORT + 1))"
}


# counted NAME: whether its counters have counted.
counted()
{
    curl -s "http://127.0.0.1:$(port_of "$1")/status" | grep -q '"REPLAY":[1-9]'
}


die()
{
    echo "counters.sh: $*" >&2
    exit 1
}


# Nanoseconds that a process has run.
cpu_of()
{
    awk '{ print $1 }' "/proc/$1/schedstat"
}


main
