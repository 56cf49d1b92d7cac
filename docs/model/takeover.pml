/*
 * One key, three hosts, and an application that can be asked what became of a
 * run.  An unknown outcome that was not executed may be run again: one host
 * takes over.  To ask and to take over are two steps, and a host can be slow
 * between them.
 *
 * The store loses nothing here, and each step in it is atomic.
 *
 * Protections that a macro takes away: NO_TOKEN_NAMED, NO_PROMISE, UNASKED.
 * README.md tells what follows from which.
 */

#define HOSTS 3
#define NOBODY 9

mtype = { absent, pending, unknown, completed };        /* the record */
mtype = { idle, asking, decided, sent, done };          /* a request */

/* A token is the number of its host: each host gets one request. */
mtype record;
byte owner = NOBODY;

mtype at[HOSTS];
byte may_replace[HOSTS];        /* the token that it was told of */

/* The application. */
bool executed[HOSTS];           /* by token */
bool refused[HOSTS];            /* it was promised that it never will be */
byte effects;


/* A take-over replaces the token that was asked about, and no other. */
#ifdef NO_TOKEN_NAMED
#define is_replaceable(w) (record == unknown)
#else
#define is_replaceable(w) (record == unknown && owner == may_replace[w])
#endif

#ifdef NO_PROMISE
#define promise(token) skip
#else
#define promise(token) refused[token] = true
#endif


proctype host(byte me)
{
    do
    :: atomic { at[me] == idle && record == absent ->
        record = pending;
        owner = me;
        at[me] = sent;
        printf("host %d claims the key and sends the request\n", me) }

    :: atomic { at[me] == idle && record == unknown ->
        may_replace[me] = owner;
        at[me] = asking;
        printf("host %d finds an unknown outcome of host %d\n", me, owner) }

    /* The application answers. */
    :: atomic { at[me] == asking && executed[may_replace[me]] ->
        if
        :: record == unknown && owner == may_replace[me] -> record = completed
        :: else
        fi;
        at[me] = done;
        printf("application tells host %d: executed\n", me) }
    :: atomic { at[me] == asking && !executed[may_replace[me]] ->
        promise(may_replace[me]);
        at[me] = decided;
        printf("application tells host %d: host %d has not executed it\n", me,
            may_replace[me]) }
#ifdef UNASKED
    :: atomic { at[me] == asking ->
        at[me] = decided;
        printf("host %d does not ask\n", me) }
#endif

    /* Perhaps long after that. */
    :: atomic { at[me] == decided && is_replaceable(me) ->
        printf("host %d takes over from host %d and sends the request\n", me,
            owner);
        record = pending;
        owner = me;
        at[me] = sent }
    :: atomic { at[me] == decided && !is_replaceable(me) ->
        at[me] = done;
        printf("host %d finds another record\n", me) }

    /* The response arrives and is stored, or the host is too slow for that. */
    :: atomic { at[me] == sent && executed[me] ->
        if
        :: owner == me -> record = completed
        :: else
        fi;
        at[me] = done;
        printf("host %d has the response\n", me) }
    od
}


proctype application()
{
    byte token;

    do
    :: atomic {
        if
        :: token = 0
        :: token = 1
        :: token = 2
        fi;
        if
        :: at[token] == sent && !executed[token] && !refused[token] ->
            printf("application EXECUTES the request of host %d\n", token);
            assert(effects == 0);
            effects++;
            executed[token] = true
        :: else
        fi }

    /* The lease expires: its host has died, or stands still. */
    :: atomic { record == pending ->
        record = unknown;
        printf("the lease of host %d has expired\n", owner) }
    od
}


init
{
    atomic {
        byte i;

        record = absent;
        for (i : 0 .. HOSTS - 1) {
            at[i] = idle;
            may_replace[i] = NOBODY
        }

        run host(0);
        run host(1);
        run host(2);
        run application()
    }
}
