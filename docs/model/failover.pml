/*
 * One key, two hosts, a master with two replicas.  Everything that may happen
 * between them in any order: claim, WAIT, run, outcome, take-back, expiry of
 * the lease, loss of the master, failover to a replica that lags behind, a
 * host that dies, a network that is cut in two.
 *
 * Each protection is there unless its macro takes it away: NO_TOKEN, NO_HOLD,
 * NO_PUT_BACK, NO_OUTCOMES, NO_REPLACE, NO_GRACE, NO_SECOND_GRACE, NO_FENCE, and
 * WAIT_N below 2.  Each fault is there if its macro puts it there: FAILOVERS,
 * CRASH, CUT, FORGET, RESTARTS, UNSYNCED, REFUSES.  SPLIT looks for grants of two masters instead of
 * runs of two hosts.  README.md tells what follows from which.
 */

#ifndef WAIT_N
#define WAIT_N 0        /* replicas that must have a claim before it counts */
#endif

#ifndef FAILOVERS
#define FAILOVERS 1
#endif

#ifndef FORGET
#define FORGET 0        /* how often the master restarts without its data */
#endif

#ifndef RESTARTS
#define RESTARTS 0      /* how often a replica restarts without its data */
#endif

#define SERVERS 3
#define HOSTS 2
#define TRIES 2         /* requests with this key that each host gets */
#define NOWHERE 9

mtype = { absent, pending, unknown, completed };        /* a record */
mtype = { idle, claiming, answered, running, settling, returning };

/* The record as each server has it, and whom the server replicates. */
mtype record[SERVERS];
byte owner[SERVERS];
byte follows[SERVERS];
bool up_to_date[SERVERS];       /* has all that its master has */
bool synced[SERVERS];           /* has had it once */
bool down[SERVERS];             /* answers no more */
bool far[SERVERS];              /* on the other side of the cut */

byte master;                    /* whom the Sentinels name */
byte generation;                /* of the master's memory */
bool refuses;                   /* the master accepts no writes */

byte link[HOSTS];               /* the server that a host talks to */
byte knows[HOSTS];              /* the generation it has greeted */
bool dead[HOSTS];
bool cut_off[HOSTS];            /* on the far side */
bool unconfirmed[HOSTS];        /* no majority for three checks */
bool in_doubt[HOSTS];           /* what it wanted to put back was refused */

/* Runs in flight, or that have had an effect.  More than one is the error. */
byte effects;

byte failovers_left = FAILOVERS;
byte forgets_left = FORGET;
byte restarts_left = RESTARTS;

#define reachable(h, s) (!down[s] && cut_off[h] == far[s])
#define connected(h) (link[h] != NOWHERE && reachable(h, link[h]) && \
    (cut_off[h] || knows[h] == generation))

/* All hosts that can have greeted the master, and put back what they have. */
#ifdef NO_SECOND_GRACE
#define settled_in(h) (dead[h] || cut_off[h] || knows[h] == generation)
#else
#define settled_in(h) (dead[h] || cut_off[h] || \
    (knows[h] == generation && !in_doubt[h]))
#endif
#define all_settled_in (settled_in(0) && settled_in(1))


#define writable(s) (s != master || !refuses)

inline write(s, what, whose)
{
    record[s] = what;
    owner[s] = whose;
    up_to_date[0] = false;
    up_to_date[1] = false;
    up_to_date[2] = false
}


/* A replica that hears its master copies what it has. */
#define hears(r) (follows[r] != r && !down[r] && !down[follows[r]] && \
    far[r] == far[follows[r]] && !up_to_date[r])

inline replicate(r)
{
    record[r] = record[follows[r]];
    owner[r] = owner[follows[r]];
    up_to_date[r] = true;
    synced[r] = true;
    printf("server %d copies server %d\n", r, follows[r])
}


#define copies(r, s) (r != s && follows[r] == s && up_to_date[r])
#define replicas_of(s) (copies(0, s) + copies(1, s) + copies(2, s))

#ifdef NO_TOKEN
#define owns(s, token) (record[s] != absent)
#else
#define owns(s, token) (owner[s] == token && record[s] != absent)
#endif

#ifdef NO_GRACE
#define may_claim(me) (connected(me) && writable(link[me]))
#else
#define may_claim(me) (connected(me) && writable(link[me]) && \
    !in_doubt[me] && (link[me] != master || all_settled_in))
#endif

#ifdef NO_HOLD
#define may_run(s) (record[s] == absent || record[s] == unknown)
#else
#define may_run(s) (record[s] == absent)
#endif


/*
 * What Redis may have lost is put back under the same token: created, or in
 * the place of a claim that was gone from the old master but is still in the
 * copy.  An outcome is never replaced.
 */
#ifdef NO_REPLACE
#define may_put_back (record[master] == absent)
#else
#define may_put_back (record[master] != completed)
#endif

inline put_back()
{
#ifndef NO_PUT_BACK
    if
    :: may_put_back && at == running ->
        write(master, pending, token);
        printf("host %d puts back its claim\n", me)
#ifndef NO_OUTCOMES
    :: may_put_back && at != running && outcome != 0 ->
        write(master, completed, outcome);
        printf("host %d puts back its outcome\n", me)
#endif
    :: else
    fi
#else
    skip
#endif
}


proctype host(byte me)
{
    mtype at = idle;
    byte tries;
    byte token;         /* of the claim under way */
    byte outcome;       /* the token of what has run here, and counts */

    do
    /* A request: SET NX, which tells at once what is there. */
    :: atomic { at == idle && tries < TRIES && may_claim(me) ->
        tries++;
        token = me * TRIES + tries;
        if
        :: may_run(link[me]) ->
            write(link[me], pending, token);
            at = claiming;
            printf("host %d claims the key in server %d\n", me, link[me])
        :: else         /* 409, or a replay */
        fi }

    /* WAIT has seen enough replicas: the reply is on its way. */
    :: atomic { at == claiming && connected(me) &&
            replicas_of(link[me]) >= WAIT_N ->
        at = answered;
        printf("server %d grants it to host %d\n", link[me], me) }

    /* Or it has not, or no reply came: 503. */
    :: atomic { at == claiming ->
        at = returning;
        printf("host %d answers 503\n", me) }

    /* The reply is read, perhaps long after it was sent. */
    :: atomic { at == answered ->
        if
#ifndef NO_FENCE
        :: unconfirmed[me] -> at = returning
#endif
        :: else ->
#ifdef SPLIT
            assert(link[me] == master || !all_settled_in);
#else
            assert(effects == 0);
#endif
            effects++;
            at = running;
            printf("host %d RUNS the request\n", me)
        fi }

    /* What the application says, or that it says nothing. */
    :: atomic { at == running ->
        outcome = token;
        at = settling;
        printf("host %d has the answer of the application\n", me) }
    :: atomic { at == running ->
        effects--;
        at = returning;
        printf("host %d: the application has refused\n", me) }

    :: atomic { at == settling && connected(me) && writable(link[me]) ->
        if
        :: owns(link[me], token) || record[link[me]] == absent ->
            write(link[me], completed, token);
            printf("host %d stores the outcome in server %d\n", me, link[me])
        :: else
        fi;
        at = idle }

    /*
     * Taken back, or released.  The reply may be lost: then once more, at
     * any time.
     */
    :: atomic { at == returning && connected(me) && writable(link[me]) ->
        if
        :: owns(link[me], token) && record[link[me]] != completed ->
            write(link[me], absent, 0);
            printf("host %d frees the key in server %d\n", me, link[me])
        :: else
        fi;
        if
        :: at = idle
        :: skip
        fi }

    /* The link breaks: unread replies are gone. */
    :: atomic { link[me] != NOWHERE && !cut_off[me] &&
            (link[me] != master || knows[me] != generation) ->
        link[me] = NOWHERE;
        if
        :: at == claiming || at == answered -> at = returning
        :: else
        fi }

    /* A new one, to whom the Sentinels name. */
    :: atomic { link[me] == NOWHERE && reachable(me, master) ->
        if
        :: refuses -> in_doubt[me] = true
        :: else -> put_back(); in_doubt[me] = false
        fi;
        link[me] = master;
        unconfirmed[me] = false;
        knows[me] = generation;
        printf("host %d connects to server %d\n", me, master) }

    /* What was refused is sent again until it is accepted. */
    :: atomic { in_doubt[me] && connected(me) && link[me] == master &&
            !refuses ->
        put_back();
        in_doubt[me] = false }

#ifdef CRASH
    :: atomic { !dead[1 - me] ->
        dead[me] = true;
        printf("host %d dies\n", me);
        break }
#endif
    od
}


inline promote(r)
{
    failovers_left--;
    generation++;
    printf("server %d takes the place of server %d\n", r, master);
    down[master] = !far[master];
    master = r;
#ifdef REFUSES
    refuses = true;
    printf("server %d has no replicas yet and accepts no writes\n", r);
#endif
    for (i : 0 .. SERVERS - 1) {
        if
        :: !far[i] -> follows[i] = r; up_to_date[i] = false
        :: else
        fi
    }
}


inline return_as_replica(s)
{
    down[s] = false;
    synced[s] = false;
    printf("server %d comes back as a replica\n", s)
}


/* A host that is cut off has lost its majority before another is elected. */
#ifdef NO_FENCE
#define fenced true
#else
#define fenced (!cut_off[0] || unconfirmed[0])
#endif

#ifdef UNSYNCED
#define may_follow(r) (r != master && !down[r] && !far[r])
#else
#define may_follow(r) (r != master && !down[r] && !far[r] && synced[r])
#endif


proctype world()
{
    byte i;

    do
    /* Replication, whenever it gets there. */
    :: atomic { hears(0) -> replicate(0) }
    :: atomic { hears(1) -> replicate(1) }
    :: atomic { hears(2) -> replicate(2) }

    :: atomic { refuses ->
        refuses = false;
        printf("server %d accepts writes\n", master) }

    /* The lease expires, whatever its owner is doing. */
    :: atomic { record[master] == pending ->
        write(master, unknown, owner[master]);
        printf("the lease has expired\n") }

    /* The master is lost.  Any replica may be the next. */
    :: atomic { failovers_left > 0 && fenced && may_follow(0) -> promote(0) }
    :: atomic { failovers_left > 0 && fenced && may_follow(1) -> promote(1) }
    :: atomic { failovers_left > 0 && fenced && may_follow(2) -> promote(2) }

    /* The old one comes back as a replica, with what it had. */
    :: atomic { down[0] && !far[0] -> return_as_replica(0) }
    :: atomic { down[1] && !far[1] -> return_as_replica(1) }
    :: atomic { down[2] && !far[2] -> return_as_replica(2) }

    /* A replica restarts without its data, and begins to copy again. */
    :: atomic { restarts_left > 0 && master != 2 && !down[2] ->
        restarts_left--;
        record[2] = absent;
        up_to_date[2] = false;
        synced[2] = false;
        printf("server 2 restarts as an empty replica\n") }

    /* The master is back at once, with what its disk had: nothing. */
    :: atomic { forgets_left > 0 && !far[master] ->
        forgets_left--;
        generation++;
        write(master, absent, 0);
        printf("server %d restarts, empty\n", master) }

#ifdef CUT
    /* The old master, one host and perhaps a replica are cut off. */
    :: atomic { failovers_left > 0 && !cut_off[0] && master == 0 ->
        far[0] = true;
        cut_off[0] = true;
        printf("server 0 and host 0 are cut off\n");
        if
        :: far[1] = true; printf("and with them server 1\n")
        :: skip
        fi }
    :: atomic { cut_off[0] && !unconfirmed[0] ->
        unconfirmed[0] = true;
        printf("host 0 has no majority\n") }
#endif
    od
}


init
{
    atomic {
        byte i;

        for (i : 0 .. SERVERS - 1) {
            record[i] = absent;
            up_to_date[i] = true;
            synced[i] = true
        }

        run host(0);
        run host(1);
        run world()
    }
}
