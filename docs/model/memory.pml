/*
 * One worker and one server, two keys: what the worker remembers so that it
 * can put it back, and how long and how much that is.
 *
 * The worker notices each loss at once, and puts back before it claims: the
 * time that this takes is in loss.pml.
 *
 * Protections that a macro takes away: DROPS_FACTS, LATE_EXPIRES, NO_RESERVE,
 * NO_REFUSAL, COUNTS_OUTAGE.  TODAY takes away all that the code does not have.
 * EMPTY is a server without disk and replica.  README.md tells what follows
 * from which.
 */

#ifndef ROOM
#define ROOM 2          /* for what is stored: a fact takes 1, a response 2 */
#endif
#ifndef LATE_ROOM
#define LATE_ROOM 1     /* for outcomes that are not stored yet */
#endif
#ifndef REASSERT
#define REASSERT 2      /* ticks for which a stored outcome is remembered */
#endif
#ifndef LAG
#define LAG 1           /* until a write is on the disk, or on the replica */
#endif
#ifndef LATE
#define LATE 2          /* ticks for which LATE_EXPIRES remembers a late one */
#endif
#ifndef LOSSES
#define LOSSES 2
#endif

#ifdef TODAY
#define DROPS_FACTS
#define LATE_EXPIRES
#define NO_RESERVE
#define NO_REFUSAL
#endif

#define KEYS 2

mtype = { absent, pending, completed };         /* a record */
mtype = { idle, running, late, stored };        /* a request */
mtype = { nothing, fact, response };            /* what is remembered of it */

mtype record[KEYS];
mtype saved[KEYS];              /* what the server has after a restart */
byte unsaved[KEYS];             /* ticks that are left to save it */
bool up = true;

mtype at[KEYS];
mtype kept[KEYS];
byte age[KEYS];                 /* ticks since it was stored, or became late */
bool owed[KEYS];                /* the server is back: to be put back first */

/* Runs.  More than one of a key is the error. */
byte effects[KEYS];

byte losses_left = LOSSES;


/*
 * What the server has confirmed counts against ROOM, what is late against
 * LATE_ROOM.
 */
#define is_kept(k) (at[k] == stored && kept[k] != nothing)
#define counts(k) (is_kept(k) && !owed[k])
#define size_of(k) (counts(k) -> (kept[k] == response -> 2 : 1) : 0)
#define has_response(k) (counts(k) && kept[k] == response)
#define fits (size_of(0) + size_of(1) <= ROOM)

#define is_late(k) (at[k] == late && kept[k] != nothing)
#define lates (is_late(0) + is_late(1))
#define runs ((at[0] == running) + (at[1] == running))

#ifdef NO_REFUSAL
#define may_claim true
#else
#ifdef NO_RESERVE
#define may_claim (lates < LATE_ROOM)
#else
#define may_claim (lates + runs < LATE_ROOM)
#endif
#endif

/* While something is put back, or has to make room, nothing else happens. */
#define at_rest (fits && !owed[0] && !owed[1])


inline write(k, what)
{
    record[k] = what;
#ifndef EMPTY
    if
    :: saved[k] != what && unsaved[k] == 0 -> unsaved[k] = LAG
    :: else
    fi
#endif
}


inline store(k)
{
    write(k, completed);
    at[k] = stored;
    kept[k] = response;
    age[k] = 0;
    printf("key %d: its outcome is stored\n", k)
}


inline become_late(k)
{
    age[k] = 0;
    if
    :: lates < LATE_ROOM ->
        kept[k] = fact;
        printf("key %d ends: its outcome cannot be stored yet\n", k)
    :: else ->
        kept[k] = nothing;
        printf("key %d ends: there is no room for its outcome\n", k)
    fi;
    at[k] = late
}


inline put_back(k)
{
    if
    :: at[k] == running && record[k] != completed -> write(k, pending)
    :: is_late(k) -> store(k)
    :: is_kept(k) ->
        write(k, completed);
        age[k] = 0;
        printf("key %d is put back\n", k)
    :: else
    fi;
    owed[k] = false
}


proctype key(byte k)
{
    do
    /* A request that finds no record. */
    :: atomic { up && at_rest && may_claim && record[k] == absent &&
            at[k] != running ->
        printf("key %d RUNS\n", k);
        assert(effects[k] == 0);
        effects[k]++;
        at[k] = running;
        kept[k] = nothing;
        write(k, pending) }

    /* The answer of the application. */
    :: atomic { at_rest && at[k] == running && up -> store(k) }
    :: atomic { at_rest && at[k] == running -> become_late(k) }
    :: atomic { at_rest && is_late(k) && up -> store(k) }

    :: atomic { owed[k] -> put_back(k) }

    /* Over budget: a response goes first. */
    :: atomic { !fits && has_response(k) ->
#ifdef DROPS_FACTS
        kept[k] = nothing;
        printf("key %d is forgotten, to make room\n", k)
#else
        kept[k] = fact;
        printf("key %d: its response is forgotten, to make room\n", k)
#endif
        }

    /* Where there are only facts, one of them goes. */
    :: atomic { !fits && !has_response(0) && !has_response(1) &&
            counts(k) ->
        kept[k] = nothing;
        printf("key %d is forgotten, to make room\n", k) }
    od
}


#ifdef COUNTS_OUTAGE
#define counts_now true
#else
#define counts_now up
#endif

inline grow_old(k)
{
    if
    :: is_kept(k) && counts_now ->
        age[k]++;
        if
        :: age[k] >= REASSERT ->
            kept[k] = nothing;
            age[k] = 0;
            printf("key %d is forgotten, it was stored long ago\n", k)
        :: else
        fi
#ifdef LATE_EXPIRES
    :: is_late(k) ->
        age[k]++;
        if
        :: age[k] >= LATE ->
            kept[k] = nothing;
            age[k] = 0;
            printf("key %d is forgotten, it was late for long\n", k)
        :: else
        fi
#endif
    :: else
    fi;
    unsaved[k] = (unsaved[k] > 0 && up -> unsaved[k] - 1 : unsaved[k])
}

#ifdef EMPTY
#define to_save(k) false
#else
#define to_save(k) (up && saved[k] != record[k])
#endif
#define must_save(k) (to_save(k) && unsaved[k] == 0)

inline save(k)
{
    saved[k] = record[k];
    unsaved[k] = 0;
    printf("the server has saved key %d\n", k)
}


inline start(k)
{
    record[k] = saved[k];
    unsaved[k] = 0;
    owed[k] = true
}


proctype world()
{
    do
    :: atomic { at_rest && !must_save(0) && !must_save(1) ->
        printf("time goes by\n");
        grow_old(0);
        grow_old(1) }

    :: atomic { to_save(0) -> save(0) }
    :: atomic { to_save(1) -> save(1) }

    :: atomic { losses_left > 0 && up && at_rest ->
        losses_left--;
        up = false;
        printf("the server ends\n") }

    :: atomic { !up ->
        up = true;
        start(0);
        start(1);
        printf("the server starts with what it has saved\n") }
    od
}


init
{
    atomic {
        byte k;

        for (k : 0 .. KEYS - 1) {
            record[k] = absent;
            saved[k] = absent;
            at[k] = idle;
            kept[k] = nothing
        }

        run key(0);
        run key(1);
        run world()
    }
}
