# The demo: nginx before an upstream that counts, until Ctrl-C.
# shellcheck shell=bash

run()
{
    prepare_nginx
    deps run
    locked build

    local demo=$BUILD/demo port=${PORT:-8080}
    [[ $port =~ ^[0-9]+$ ]] || die "PORT is to be a number, not $port"
    local upstream_port=${UPSTREAM_PORT:-$((port + 1))} user=""

    # Started as root nginx would give up its rights, and with them its way
    # into a home directory.
    if (( EUID == 0 )); then
        user="user root;"
    fi

    mkdir -p "$demo"
    stop_stale
    echo $$ > "$demo/run.pid"
    sed "s/@PORT@/$port/; s/@UPSTREAM_PORT@/$upstream_port/" conf/demo.conf.in \
        > "$demo/nginx.conf"
    rm -f "$demo"/*.log "$demo/ledger"
    touch "$demo/access.log" "$demo/error.log"

    demo_pids=()
    trap stop_demo EXIT
    trap 'exit 0' INT
    trap 'exit 143' TERM HUP

    start_demo upstream "$upstream_port" perl t/lib/upstream.pl \
        --port "$upstream_port" --ledger "$demo/ledger" --parent $$ --quiet
    start_demo nginx "$port" \
        "$NGINX_BINARY" -p "$demo/" -e error.log -c nginx.conf -g "$user"
    start_demo tail "" tail -q -n 0 -F "$demo/access.log" "$demo/error.log"
    print_hints "$port"

    # Until Ctrl-C, or until one of them ends.
    wait -n "${demo_pids[@]}" || true
    die "a process of the demo has ended, see build/demo/error.log"
}


# start_demo NAME PORT command...: in the background, until it listens.
start_demo()
{
    local name=$1 port=$2
    shift 2

    if [[ $port ]] && listening "$port"; then
        die "port $port is in use, choose another: PORT=N ./build.sh run"
    fi

    "$@" &
    demo_pids+=($!)
    echo $! > "$BUILD/demo/$name.pid"

    while [[ $port ]] && ! listening "$port"; do
        kill -0 $! 2>/dev/null || die "$name did not start"
        sleep 0.1
    done
}


listening()
{
    (: < "/dev/tcp/127.0.0.1/$1") 2>/dev/null
}


stop_demo()
{
    trap '' INT TERM HUP
    kill "${demo_pids[@]}" 2>/dev/null || true
    wait
    rm -f "$BUILD"/demo/*.pid
}


# Ends what a killed run left behind.
stop_stale()
{
    local name pid

    if pid=$(demo_pid run build.sh); then
        die "the demo is running already, process $pid"
    fi

    for name in nginx upstream tail; do
        if pid=$(demo_pid "$name" "$BUILD/demo"); then
            say "stopping $name of an earlier run, process $pid"
            kill "$pid" 2>/dev/null || true
            timeout 5 tail -s 0.1 --pid="$pid" -f /dev/null || true
        fi
    done

    rm -f "$BUILD"/demo/*.pid
}


# demo_pid NAME WORD: the process in NAME.pid, if it lives.  The pid may belong
# to someone else by now, so its command has to contain WORD.
demo_pid()
{
    local pid
    pid=$(cat "$BUILD/demo/$1.pid" 2>/dev/null) || return 1

    [[ -r /proc/$pid/cmdline ]] || return 1
    tr '\0' ' ' < "/proc/$pid/cmdline" | grep -qF -e "$2" || return 1
    echo "$pid"
}


print_hints()
{
    local url=http://127.0.0.1:$1

    cat <<END

nginx listens on $url.  Try, from another terminal:

  # twice: the second answer is a replay
  curl -i $url/orders -H 'Idempotency-Key: "order-1"' -d item=tea

  # the same key with another body: refused
  curl -i $url/orders -H 'Idempotency-Key: "order-1"' -d item=coffee

  # two at once: one is executed, the other is refused or gets its answer
  for i in 1 2; do
      curl -i $url/orders?sleep=1 -H 'Idempotency-Key: "order-2"' -d item=tea &
  done; wait

  # the upstream dies: the outcome is unknown, and the page can settle it
  curl -i '$url/orders?die=before' -H 'Idempotency-Key: "order-3"' -d item=tea

  # what was really executed
  curl $url/ledger

What the module does, as it happens: open $url/status in a browser.

Requests, with \$idempotency_status last, as they come.  Ctrl-C stops.

END
}
