#include "module/run_log.h"

#include "module/context.h"

namespace idempotency {

run_log::run_log(const context &ctx)
    : request_(ctx.request), log_(ctx.request->connection->log),
      shown_(static_cast<ngx_http_log_ctx_t *>(log_->data)),
      action_(log_->action), ended_(shown_->request == nullptr)
{
    log_->action = nullptr;

    if (ended_) {
        shown_->request = request_;
        shown_->current_request = request_;
        request_->request_line = ctx.request_line;
    }
}


run_log::~run_log()
{
    log_->action = action_;

    if (ended_) {
        shown_->request = nullptr;
        shown_->current_request = nullptr;
        request_->request_line.len = 0;
    }
}

}
