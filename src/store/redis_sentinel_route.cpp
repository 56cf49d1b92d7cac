#include "store/redis_sentinel.h"

namespace idempotency {

void
sentinel_route::find(route_user &user, unsigned failures)
{
    user_ = &user;
    failures_ = failures;
    is_asking_ = true;
    master_ = {};
    group_.ask(*this, failures);
}


void
sentinel_route::cancel()
{
    if (is_asking_) {
        is_asking_ = false;
        group_.cancel(*this);
    }

    inner_.cancel();
}


void
sentinel_route::no_master_named(const char *why)
{
    is_asking_ = false;
    name_ = group_.settings().service;
    user_->route_failed(why);
}


void
sentinel_route::master_named(const master_address &master)
{
    is_asking_ = false;
    master_ = master;
    named_.set(master, server_);
    set_name();
    inner_.set_server(named_.location());
    inner_.find(*user_, failures_);
}


/* "mymaster" at "10.0.0.5:6379" is called mymaster at 10.0.0.5:6379. */
void
sentinel_route::set_name()
{
    u_char *end = ngx_snprintf(name_text_.data(), name_text_.size(),
                               "%V at %V", &group_.settings().service,
                               &named_.location().name);

    name_ = {static_cast<std::size_t>(end - name_text_.data()),
             name_text_.data()};
}

}
