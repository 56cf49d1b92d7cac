#include "module/run_log.h"

#include "module/context.h"

namespace idempotency {

run_log::run_log(const context &ctx)
    : log_(ctx.request->connection->log), action_(log_->action)
{
    log_->action = nullptr;
}


run_log::~run_log()
{
    log_->action = action_;
}

}
