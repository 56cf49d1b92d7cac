#pragma once

#include "ngx.h"

namespace idempotency {

struct context;


/* A subrequest of the main request that a filter below us has made. */
struct subrequest_below {
    ngx_http_request_t *request;
    subrequest_below *next;
};


/*
 * Whether a subrequest is under way that writes a part of the response beside
 * the content handler.  Those that filters below us have made (SSI, addition)
 * do not count: a replay passes these filters too, and they make them again.
 */
bool others_write(const context &ctx);

/* Whether this subrequest's output is such a part. */
bool writes_a_part(const context &ctx, ngx_http_request_t *sr);

/* What is written while a subrequest is under way is not all there is. */
void look_for_writers(context &ctx);

/* Others write too: no response that could be told again. */
void not_alone(context &ctx);

/*
 * After the response went on to the filters below, and nobody else wrote
 * before: what is under way now is theirs.  False: no memory.
 */
bool note_subrequests_below(context &ctx);


/*
 * While this lives, what the main request writes goes out before that of the
 * subrequests that are under way.
 */
class before_subrequests {
public:
    explicit before_subrequests(ngx_http_request_t *r);
    ~before_subrequests();

    before_subrequests(const before_subrequests &) = delete;
    before_subrequests &operator=(const before_subrequests &) = delete;

private:
    ngx_http_request_t *request_;
    ngx_http_postponed_request_t *postponed_;
    void *active_;
};

}
