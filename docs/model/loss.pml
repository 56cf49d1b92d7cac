/*
 * One key, one address, time.  The server at the address loses its records,
 * wholly or what its disk or its replica did not have yet, and a host needs
 * time to notice that.  Workers start and exit meanwhile.
 *
 * Claims are granted by one step here, and nobody withdraws one: what happens
 * between a claim and its reply is in failover.pml.  What a worker can put back
 * is not limited as long as the worker lives: that is in memory.pml.
 *
 * Each time is a free choice up to its limit, in ticks: CHECK, TIMEOUT, RETRY,
 * CONNECT, PUT, RENEW, LAG.  The grace is the one time that is exact.
 *
 * Protections that a macro takes away: EACH_WORKER_KNOWS, EACH_WORKER_WAITS,
 * START_AT_ONCE, BY_UPTIME, SLEEPS, LEAVES.  TODAY takes away all that the code
 * does not have.  Faults that a macro adds: MOVES, RESETS, VANISHES, OLD_LIVES,
 * EMPTY, SPARE, RELOAD, START.  README.md tells what follows from which.
 */

#ifndef CHECK
#define CHECK 1         /* until an idle connection is checked */
#endif
#ifndef TIMEOUT
#define TIMEOUT 1       /* until a check without a reply is given up */
#endif
#ifndef RETRY
#define RETRY 1         /* between two attempts to connect */
#endif
#ifndef CONNECT
#define CONNECT 1       /* until an attempt succeeds or fails */
#endif
#ifndef PUT
#define PUT 1           /* until all is put back */
#endif
#ifndef GRACE
#define GRACE 6         /* more than the longest way through all of these */
#endif
#ifndef LAG
#define LAG 1           /* until a write is on the disk, or on the replica */
#endif
#ifndef RENEW
#define RENEW 7         /* between two renewals of a lease */
#endif
#ifndef LOSSES
#define LOSSES 1
#endif

#ifdef TODAY
#define EACH_WORKER_KNOWS
#define EACH_WORKER_WAITS
#define START_AT_ONCE
#define SLEEPS
#define LEAVES
#endif

#define WORKERS 3       /* 0 and 1 are there at first; 2 starts later */
#define SERVERS (LOSSES + 1)
#define NOBODY 9

mtype = { absent, pending, completed };                 /* a record */
mtype = { idle, running, ended };                       /* a request */
mtype = { none, asleep, waiting, connecting, open };    /* a connection */

/* Servers, one after the other under one address. */
mtype record[SERVERS];
mtype saved;                    /* what the next one begins with */
byte server;                    /* the one that has the address now */
bool up = true;
byte unsaved;                   /* ticks that are left to save it */
byte uptime = GRACE;            /* of the server; more does not matter */

/* Workers. */
mtype at[WORKERS];
bool stored[WORKERS];           /* the outcome of what has run here */
mtype link[WORKERS];
byte to[WORKERS];               /* the server that it is, or was, connected to */
byte left[WORKERS];             /* ticks for what it has to do next */
bool doomed[WORKERS];           /* it began to connect while nobody was there */
bool failed[WORKERS];           /* an attempt has failed since it started */
bool owes[WORKERS];             /* it has to put back what it has */
bool exits[WORKERS];

/* Who remembers which server there was, and when new claims may be sent. */
byte known[WORKERS];
byte grace[WORKERS];            /* ticks until then */

/* Runs.  More than one is the error. */
byte effects;

byte losses_left = LOSSES;


#ifdef START
#define host_of(w) (w)
#else
#define host_of(w) (w == 2 -> 0 : w)
#endif

#ifdef EACH_WORKER_KNOWS
#define memory_of(w) (w)
#else
#define memory_of(w) host_of(w)
#endif

#ifdef EACH_WORKER_WAITS
#define gate_of(w) (w)
#else
#define gate_of(w) host_of(w)
#endif

#ifdef OLD_LIVES
#define answers(s) (s < server || up)
#else
#define answers(s) (s == server && up)
#endif

#define is_stale(w) (link[w] == open && (to[w] != server || !up))
#define is_linked(w) (link[w] == open && answers(to[w]))


/* A write is saved within LAG; without a disk and a replica never. */
inline write(s, what)
{
    record[s] = what;
#ifndef EMPTY
    if
    :: s == server && unsaved == 0 -> unsaved = LAG
    :: else
    fi
#endif
}

#define to_save (saved != record[server])


/* What a worker without any knowledge of the server does. */
inline wait_as_a_newcomer(w)
{
#ifdef START_AT_ONCE
    if
    :: failed[w] -> grace[gate_of(w)] = GRACE
    :: else
    fi
#else
#ifdef BY_UPTIME
    grace[gate_of(w)] = GRACE - uptime
#else
    grace[gate_of(w)] = GRACE
#endif
#endif
}


/* The connection is there, and the server has said who it is. */
inline greet(w)
{
    if
    :: known[memory_of(w)] == NOBODY -> wait_as_a_newcomer(w)
    :: known[memory_of(w)] != NOBODY && known[memory_of(w)] != server ->
        grace[gate_of(w)] = GRACE
    :: else
    fi;
    known[memory_of(w)] = server;
    owes[w] = (to[w] != server && at[w] != idle);
    to[w] = server;
    link[w] = open;
    doomed[w] = false;
    left[w] = PUT;
    printf("worker %d connects to server %d\n", w, server)
}


/* A claim gives way to what is put back, an outcome does not. */
inline put_back(w)
{
    if
    :: at[w] == running && record[server] != completed ->
        write(server, pending);
        printf("worker %d puts back its claim\n", w)
    :: at[w] == ended ->
        write(server, completed);
        stored[w] = true;
        printf("worker %d puts back its outcome\n", w)
    :: else
    fi;
    owes[w] = false
}


inline begin_to_connect(w)
{
    link[w] = connecting;
    left[w] = CONNECT;
    doomed[w] = !up
}


#ifdef LEAVES
#define may_leave(w) (at[w] == idle || stored[w])
#else
#define may_leave(w) (at[w] == idle || (stored[w] && saved == completed))
#endif


proctype worker(byte me)
{
    do
    /* A request that finds no record. */
    :: atomic { at[me] != running && !exits[me] && is_linked(me) &&
            !owes[me] && grace[gate_of(me)] == 0 &&
            record[to[me]] == absent ->
        printf("worker %d RUNS the request, server %d has its claim\n", me,
            to[me]);
        assert(effects == 0);
        effects++;
        at[me] = running;
        stored[me] = false;
        write(to[me], pending) }

    :: atomic { at[me] == running ->
        at[me] = ended;
        printf("worker %d has the answer of the application\n", me) }

    :: atomic { at[me] == ended && !stored[me] && is_linked(me) &&
            !owes[me] ->
        write(to[me], completed);
        stored[me] = true;
        printf("worker %d stores the outcome in server %d\n", me, to[me]) }

    /* The connection leads to a server that is there no more. */
    :: atomic { is_stale(me) ->
        link[me] = waiting;
        left[me] = RETRY;
        printf("worker %d notices that server %d has gone\n", me, to[me]) }

    :: atomic { link[me] == waiting -> begin_to_connect(me) }

    /* Its renewal, or its outcome, has to be sent. */
    :: atomic { link[me] == asleep ->
        begin_to_connect(me);
        printf("worker %d has something to send, and connects\n", me) }

    :: atomic { link[me] == connecting && up -> greet(me) }

    :: atomic { link[me] == connecting && doomed[me] ->
        failed[me] = true;
        link[me] = waiting;
        left[me] = RETRY;
        doomed[me] = false;
        printf("worker %d could not connect\n", me) }

    :: atomic { link[me] == open && owes[me] && !is_stale(me) ->
        put_back(me) }

    /* It is asked to exit, and has nothing to wait for. */
    :: atomic { exits[me] && may_leave(me) ->
        link[me] = none;
        owes[me] = false;
        printf("worker %d exits\n", me);
        break }
    od
}


/* Nobody may be later than its limit. */
#define must_act(w) (left[w] == 0 && (is_stale(w) || \
    (link[w] == open && owes[w]) || link[w] == asleep || \
    link[w] == waiting || link[w] == connecting))
#define may_tick (!must_act(0) && !must_act(1) && !must_act(2) && \
    !(unsaved == 0 && to_save && saves))
#ifdef EMPTY
#define saves false
#else
#define saves true
#endif

#define count_down(x) x = (x > 0 -> x - 1 : 0)


/* How long a worker that does not know of the loss has from now on. */
inline unaware()
{
    for (i : 0 .. WORKERS - 1) {
        if
        :: link[i] == open -> left[i] = CHECK + TIMEOUT; owes[i] = false
        :: else
        fi
    }
}


/* The connections of a process that ends are reset. */
inline reset()
{
    for (i : 0 .. WORKERS - 1) {
        if
        :: link[i] == open -> link[i] = waiting; left[i] = RETRY
        :: else
        fi
    }
}


inline next_server()
{
    server++;
    record[server] = saved;
    unsaved = 0;
#ifndef SPARE
    uptime = 0;
#endif
    if
    :: saved == absent -> printf("server %d has the address, empty\n", server)
    :: else -> printf("server %d has the address\n", server)
    fi
}


inline start_worker()
{
    link[2] = waiting;
    left[2] = RETRY;
#ifdef RELOAD
    exits[0] = true;
    printf("host 0 reloads: worker 2 starts, worker 0 exits when it can\n");
#ifdef SLEEPS
    if
    :: link[0] == open && at[0] == running ->
        link[0] = asleep;
        left[0] = RENEW;
        printf("worker 0 closes its idle connection\n")
    :: else
    fi
#endif
#else
    printf("host 2 starts with worker 2\n")
#endif
}


proctype world()
{
    byte i;

    do
    :: atomic { may_tick ->
        for (i : 0 .. WORKERS - 1) {
            count_down(left[i]);
            count_down(grace[i])
        }
        count_down(unsaved);
        uptime = (uptime < GRACE -> uptime + 1 : GRACE);
        printf("time goes by\n") }

#ifndef EMPTY
    :: atomic { to_save ->
        saved = record[server];
        unsaved = 0;
        printf("server %d has saved its records\n", server) }
#endif

#ifdef MOVES
    /* Another server has the address at once; no connection is reset. */
    :: atomic { losses_left > 0 && up ->
        losses_left--;
        next_server();
        unaware() }
#endif
#ifdef RESETS
    /* The process ends, and starts again some time later. */
    :: atomic { losses_left > 0 && up ->
        losses_left--;
        up = false;
        reset();
        printf("server %d ends\n", server) }
#endif
#ifdef VANISHES
    /* The machine is gone, and another comes some time later. */
    :: atomic { losses_left > 0 && up ->
        losses_left--;
        up = false;
        unaware();
        printf("the machine of server %d vanishes\n", server) }
#endif
    :: atomic { !up ->
        up = true;
        next_server();
        unaware() }

#if defined(RELOAD) || defined(START)
    :: atomic { link[2] == none && !exits[2] && !exits[0] ->
        start_worker() }
#endif
    od
}


init
{
    atomic {
        byte i;

        for (i : 0 .. SERVERS - 1) {
            record[i] = absent
        }
        for (i : 0 .. WORKERS - 1) {
            at[i] = idle;
            link[i] = open;
            stored[i] = false
        }
        link[2] = none;
        to[2] = NOBODY;
        known[2] = NOBODY;
        saved = absent;

        run worker(0);
        run worker(1);
#if defined(RELOAD) || defined(START)
        run worker(2);
#endif
        run world()
    }
}
