#pragma once

#include "ngx.h"

namespace idempotency {

struct context;


/*
 * The log for a line about the end of a run.  nginx adds to a line what it
 * does at the time, such as "while sending to client", which is not why a run
 * ended.  For the lifetime of this object it does not.
 */
class run_log {
public:
    explicit run_log(const context &ctx);
    ~run_log();

    run_log(const run_log &) = delete;
    run_log &operator=(const run_log &) = delete;

    ngx_log_t *get() const { return log_; }

private:
    ngx_log_t *log_;
    char *action_;
};

}
