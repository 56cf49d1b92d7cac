/*
 * One key, one server, three workers: leases and their renewal, attempts, and
 * what happens to them when records are lost, noticed or not.  An unknown
 * outcome is taken over (idempotency_unknown_outcome release), unless HOLD.
 *
 * A tick is a third of the lease: a worker renews once in each, unless it
 * stands still.  After a loss that is noticed claims wait until all workers
 * have put back what they have: the time for that is in loss.pml.  After one
 * that is not noticed no worker stands still.
 *
 * Protections that a macro takes away: NO_RENEWAL, NO_ATTEMPTS, NOT_BY_RENEWAL,
 * VALID_LEASE, NO_LATER, NO_ANSWER, NOT_UNKNOWN.  Faults that a macro adds:
 * LOSS (noticed), FLUSH (not noticed), LOST_REPLY, LATE.  README.md tells what
 * follows from which.
 */

#define WORKERS 3       /* each gets one request */
#define NOBODY 9
#define LEASE 3

mtype = { absent, pending, unknown, completed };        /* the record */
mtype = { idle, running, late, stored, returning, over };   /* a request */

/* The record. */
mtype record;
byte owner = NOBODY;
byte attempt;
byte lease;                     /* ticks that are left of it */

/* Workers. */
mtype at[WORKERS];
byte my_attempt[WORKERS];
byte my_lease[WORKERS];         /* by its own clock */
mtype outcome[WORKERS];         /* what it stores: completed, unknown */
bool renewed[WORKERS];          /* in this tick */
bool still[WORKERS];            /* the worker stands still */
bool in_doubt[WORKERS];         /* it knows that its record may be lost */

/* For the rules. */
byte lives[WORKERS];            /* ticks until it has stood still for a lease */
bool beaten[WORKERS];           /* its lease was lost by right */
bool unseen[WORKERS];           /* it has not renewed since FLUSHALL */
bool ended_by_right[WORKERS];   /* it had an answer while it was leased */
bool answered[WORKERS];         /* and the server was told since FLUSHALL */

bool loss_left = true;

#define has_expired (record == pending && lease == 0)
#define is_unknown (record == unknown || has_expired)

#ifdef HOLD
#define may_run (record == absent)
#define late_counts true
#else
#define may_run (record == absent || is_unknown)
#define late_counts false       /* it may be taken over after the lease */
#endif

/* A server that was flushed does not know that anything runs. */
#ifdef FLUSH
#define was_told loss_left
#define may_stand_still loss_left
#else
#define was_told true
#define may_stand_still true
#endif

#define gate_is_open (!in_doubt[0] && !in_doubt[1] && !in_doubt[2])


/*
 * Beside a run that lives, and that nobody had the right to take over, none
 * begins, nor after its answer.
 */
#define is_later(v, w) (my_attempt[v] > my_attempt[w])
#define is_latest(w) (!is_later(0, w) && !is_later(1, w) && !is_later(2, w))
#define by_right(w) (lives[w] > 0 && !beaten[w] && is_latest(w))
#define is_in_time(w) (by_right(w) && my_lease[w] > 0)
#define is_valid(w) (at[w] == running && by_right(w) && !unseen[w])
#define is_free(w) (!is_valid(w) && !answered[w])
#define may_begin (is_free(0) && is_free(1) && is_free(2))

/*
 * What a retry gets is not the outcome of an earlier attempt.  After FLUSHALL
 * that is not promised.
 */
#ifdef FLUSH
#define is_superseded(w) false
#else
#define is_superseded(w) (answered[w] && my_attempt[w] > attempt)
#endif
#define may_replay (!is_superseded(0) && !is_superseded(1) && \
    !is_superseded(2))


/* Who gives way to whom, see redis_scripts.h. */
#ifdef NO_ATTEMPTS
#define gives_way_after_loss(w) (in_doubt[w] && record != completed)
#else
#define gives_way_after_loss(w) (in_doubt[w] && \
    attempt + (record == pending -> 0 : 1) <= my_attempt[w])
#endif

#ifdef NO_LATER
#define gives_way_to_later(w) false
#else
#define gives_way_to_later(w) (is_unknown && attempt < my_attempt[w])
#endif

#ifdef NO_ANSWER
#define gives_way_to_answer(w) false
#else
#ifdef NOT_UNKNOWN
#define may_be_replaced (record == pending)
#else
#define may_be_replaced (record == pending || record == unknown)
#endif
#define gives_way_to_answer(w) (may_be_replaced && my_lease[w] > 0 && \
    attempt <= my_attempt[w])
#endif

#define gives_way(w) (gives_way_after_loss(w) || gives_way_to_later(w))


inline write(w, what, ticks)
{
    record = what;
    owner = w;
    attempt = my_attempt[w];
    lease = ticks
}


#define next_attempt (record == absent -> 1 : attempt + 1)

inline begin(w)
{
    my_attempt[w] = next_attempt;
    write(w, pending, LEASE)
}


inline claim(w)
{
    if
    :: printf("worker %d RUNS, attempt %d\n", w, next_attempt);
        assert(may_begin);
        begin(w);
        at[w] = running;
        my_lease[w] = LEASE;
        lives[w] = LEASE;
        renewed[w] = true
#ifdef LOST_REPLY
    :: begin(w);
        at[w] = returning;
        printf("worker %d claims, gets no reply and answers 503\n", w)
#endif
    fi
}


/* Who has lost its lease puts back a record whose lease has expired. */
#ifdef VALID_LEASE
#define ticks_of(w) LEASE
#else
#define ticks_of(w) (my_lease[w] > 0 || in_doubt[w] -> LEASE : 0)
#endif

#ifdef NOT_BY_RENEWAL
#define puts_back_by_renewal(w) in_doubt[w]
#else
#define puts_back_by_renewal(w) true
#endif

/*
 * After a lease that has expired was put back, the next renewal comes a third
 * of the lease later: all others have renewed theirs by then.
 */
#define is_behind(v, w) (v != w && at[v] == running && unseen[v])
#define is_last(w) (!is_behind(0, w) && !is_behind(1, w) && !is_behind(2, w))
#define may_renew(w) (in_doubt[w] || (!renewed[w] && \
    (is_last(w) || owner != w || lease > 0)))

inline renew(w)
{
    if
    :: record == absent && !puts_back_by_renewal(w) -> beaten[w] = false
    :: (record == absent && puts_back_by_renewal(w)) ||
            (record != absent && owner != w && gives_way(w)) ->
        beaten[w] = (ticks_of(w) == 0);
        write(w, pending, ticks_of(w));
        my_lease[w] = LEASE;
        printf("worker %d renews its lease and puts back its record\n", w)
    :: record == pending && owner == w ->
        lease = LEASE;
        my_lease[w] = LEASE;
        beaten[w] = false
    :: record != absent && ((owner == w && record != pending) ||
            (owner != w && !gives_way(w))) ->
        beaten[w] = (attempt >= my_attempt[w]);
        printf("worker %d cannot renew its lease\n", w)
    fi;
    renewed[w] = true;
    lives[w] = LEASE;
    unseen[w] = false;
    in_doubt[w] = false
}


/* How it ended; of the answer to a run, may_replace is true. */
inline settle(w, may_replace)
{
    if
    :: record == absent || owner == w || gives_way(w) ||
            (may_replace && outcome[w] == completed) ->
        if
        :: record == completed && owner == w
        :: record == completed && owner != w && outcome[w] == unknown
        :: else ->
            write(w, outcome[w], 0);
            printf("worker %d stores its outcome\n", w)
        fi;
        at[w] = stored
    :: else ->
        at[w] = over;
        printf("worker %d finds the record of another\n", w)
    fi;
    in_doubt[w] = false
}


/* Nobody has run it: an earlier attempt is unknown again. */
inline give_back(w)
{
    if
    :: record == pending && owner == w && attempt == 1 ->
        record = absent;
        owner = NOBODY;
        attempt = 0;
        lease = 0;
        printf("worker %d withdraws its claim\n", w)
    :: record == pending && owner == w && attempt > 1 ->
        record = unknown;
        attempt--;
        lease = 0;
        printf("worker %d withdraws its claim, the outcome is unknown\n", w)
    :: else
    fi;
    at[w] = over
}


proctype worker(byte me)
{
    do
    :: atomic { at[me] == idle && gate_is_open && may_run -> claim(me) }

    :: atomic { at[me] == idle && gate_is_open && record == completed ->
        assert(may_replay);
        at[me] = over }

#ifndef NO_RENEWAL
    :: atomic { at[me] == running && !still[me] && may_renew(me) ->
        renew(me) }
#endif

    /* The application answers. */
    :: atomic { at[me] == running && !still[me] ->
        outcome[me] = completed;
        answered[me] = is_in_time(me);
        printf("worker %d has the answer of the application\n", me);
        settle(me, gives_way_to_answer(me)) }
#ifdef LATE
    :: atomic { at[me] == running && !still[me] ->
        outcome[me] = completed;
        ended_by_right[me] = (is_in_time(me) && late_counts);
        answered[me] = (ended_by_right[me] && was_told);
        at[me] = late;
        printf("worker %d has an answer, which is not stored yet\n", me) }
#endif
    :: atomic { at[me] == running && !still[me] ->
        outcome[me] = unknown;
        printf("worker %d gets no answer\n", me);
        settle(me, false) }

    :: atomic { at[me] == late ->
        answered[me] = ended_by_right[me];
        settle(me, false) }

    /* What it has stored is put back. */
    :: atomic { at[me] == stored && in_doubt[me] -> settle(me, false) }

    :: atomic { at[me] == returning -> give_back(me) }

    /* A process that is stopped, or a machine that stands still. */
    :: atomic { at[me] == running && !still[me] && !in_doubt[me] &&
            may_stand_still ->
        still[me] = true;
        printf("worker %d stands still\n", me) }
    :: atomic { still[me] ->
        still[me] = false;
        printf("worker %d goes on\n", me) }
    od
}


#define has_renewed(w) (at[w] != running || renewed[w] || still[w])

#ifdef NO_RENEWAL
#define may_tick true
#else
#define may_tick (has_renewed(0) && has_renewed(1) && has_renewed(2) && \
    gate_is_open)
#endif

#define count_down(x) x = (x > 0 -> x - 1 : 0)

#ifdef NO_RENEWAL
#define goes_on(w) lives[w] = (still[w] -> lives[w] : LEASE)
#else
#define goes_on(w) skip
#endif


proctype world()
{
    byte i;

    do
    :: atomic { may_tick ->
        count_down(lease);
        for (i : 0 .. WORKERS - 1) {
            count_down(my_lease[i]);
            count_down(lives[i]);
            goes_on(i);
            renewed[i] = false
        }
        printf("time goes by, a third of the lease\n") }

#ifdef LOSS
    :: atomic { loss_left ->
        loss_left = false;
        record = absent;
        owner = NOBODY;
        attempt = 0;
        lease = 0;
        for (i : 0 .. WORKERS - 1) {
            in_doubt[i] = (at[i] == running || at[i] == late ||
                at[i] == stored)
        }
        printf("the server restarts, empty\n") }
#endif
#ifdef FLUSH
    /* What was stored is forgotten: that is not promised. */
    :: atomic { loss_left && !still[0] && !still[1] && !still[2] ->
        loss_left = false;
        record = absent;
        owner = NOBODY;
        attempt = 0;
        lease = 0;
        for (i : 0 .. WORKERS - 1) {
            unseen[i] = (at[i] == running);
            answered[i] = false
        }
        printf("the server forgets everything, and nobody notices\n") }
#endif
    od
}


init
{
    atomic {
        byte i;

        record = absent;
        for (i : 0 .. WORKERS - 1) {
            at[i] = idle;
            outcome[i] = absent
        }

        run worker(0);
        run worker(1);
        run worker(2);
        run world()
    }
}
