#include "store/redis_link.h"

#include <algorithm>

namespace idempotency {

namespace {

constexpr ngx_msec_t first_delay = 100;
constexpr ngx_msec_t longest_delay = 2000;

constexpr std::uint64_t slowest_rate = 2048; /* bytes in a millisecond */
constexpr std::uint64_t most_patience = 5000;


bool
is_past(ngx_msec_t deadline)
{
    return static_cast<ngx_msec_int_t>(deadline - ngx_current_msec) <= 0;
}


unanswered
fate_of(const command &c, std::uint64_t written)
{
    return written > c.begin ? unanswered::lost : unanswered::not_sent;
}

}


void
redis_link::start()
{
    log_ = *ngx_cycle->log;

    ngx_queue_init(&commands_);
    flush_.init(this, on_flush, &log_);
    deadline_.init(this, on_deadline, &log_);
    retry_.init(this, on_retry, &log_);
    retry_.event.cancelable = 1;

    open();
}


void
redis_link::stop()
{
    flush_.stop();
    retry_.stop();
    close(false);
    answer_all(fate_of);

    if (spare_ != nullptr) {
        ngx_free(spare_);
        spare_ = nullptr;
    }
}


redis_link *
redis_link::of(ngx_event_t *event)
{
    return static_cast<redis_link *>(
        static_cast<ngx_connection_t *>(event->data)->data);
}


void
redis_link::open()
{
    retry_.stop();

    connect_deadline_ = ngx_current_msec + settings_.connect_timeout;

    if (attempts_ == 0 || !resolve()) {
        connect();
    }
}


/* True: the addresses come later.  Those of the start are used until then. */
bool
redis_link::resolve()
{
    ngx_resolver_t *resolver = settings_.core->resolver;

    if (settings_.host.len == 0 || resolver == nullptr
        || resolver->connections.nelts == 0)
    {
        return false;
    }

    ngx_resolver_ctx_t *ctx = ngx_resolve_start(resolver, nullptr);

    if (ctx == nullptr || ctx == NGX_NO_RESOLVER) {
        return false;
    }

    ctx->name = settings_.host;
    ctx->handler = on_resolved;
    ctx->data = this;
    ctx->timeout = settings_.connect_timeout / 2 + 1;

    state_ = state::resolving;
    resolving_ = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        resolving_ = nullptr;
        return false;
    }

    arm();
    return true;
}


void
redis_link::take_addresses(const ngx_resolver_ctx_t *ctx)
{
    std::size_t count = std::min<std::size_t>(ctx->naddrs, found_.size());

    for (std::size_t i = 0; i < count; i++) {
        const ngx_resolver_addr_t &from = ctx->addrs[i];
        address &to = found_[i];

        ngx_memcpy(&to.sockaddr, from.sockaddr, from.socklen);
        to.length = from.socklen;
        ngx_inet_set_port(&to.sockaddr.sockaddr, settings_.port);
    }

    found_count_ = count;
}


void
redis_link::on_resolved(ngx_resolver_ctx_t *ctx)
{
    auto *self = static_cast<redis_link *>(ctx->data);

    if (ctx->state == NGX_OK && ctx->naddrs != 0) {
        self->take_addresses(ctx);
    }

    self->resolving_ = nullptr;
    ngx_resolve_name_done(ctx);
    self->connect();
}


/*
 * nginx would log every attempt, but the owner logs what changes.  Only why
 * TLS fails nobody else can tell.
 */
void
redis_link::hush()
{
    log_.log_level = ngx_cycle->log->log_level;

    if (!(log_.log_level & NGX_LOG_DEBUG_EVENT)
        && (settings_.ssl == nullptr || down_))
    {
        log_.log_level = NGX_LOG_ALERT;
    }
}


void
redis_link::connect()
{
    peer_ = {};
    hush();
    connect_deadline_ = ngx_current_msec + settings_.connect_timeout;

    if (found_count_ != 0) {
        address &to = found_[attempts_ % found_count_];

        peer_.sockaddr = &to.sockaddr.sockaddr;
        peer_.socklen = to.length;

    } else {
        ngx_addr_t &to =
            settings_.addresses[attempts_ % settings_.address_count];

        peer_.sockaddr = to.sockaddr;
        peer_.socklen = to.socklen;
    }

    peer_.name = &settings_.name;
    peer_.get = ngx_event_get_peer;
    peer_.log = &log_;
    peer_.log_error = NGX_ERROR_ERR;
    peer_.so_keepalive = 1;

    ngx_int_t rc = ngx_event_connect_peer(&peer_);

    if (rc != NGX_OK && rc != NGX_AGAIN) {
        fail("connect() failed", ngx_socket_errno, true);
        return;
    }

    state_ = state::connecting;
    connection_ = peer_.connection;
    connection_->data = this;
    connection_->log = &log_;
    connection_->read->handler = on_read;
    connection_->write->handler = on_write;
    connection_->pool = ngx_create_pool(1024, &log_);
    reader_ = redisReaderCreate();

    if (connection_->pool == nullptr || reader_ == nullptr) {
        fail("no memory", 0, true);
        return;
    }

    arm();

    if (rc == NGX_OK) {
        connected();
    }
}


void
redis_link::connected()
{
    int err = 0;
    socklen_t length = sizeof(err);

    if (getsockopt(connection_->fd, SOL_SOCKET, SO_ERROR, &err, &length) == -1)
    {
        err = ngx_socket_errno;
    }

    if (err != 0) {
        fail("connect() failed", err, true);
        return;
    }

    if (connection_->tcp_nodelay == NGX_TCP_NODELAY_UNSET) {
        ngx_tcp_nodelay(connection_);
    }

    needs_claim_script = false;

    if (settings_.ssl != nullptr) {
        start_tls();

    } else {
        greet();
    }
}


/*
 * How long nothing may happen.  Large commands need their time, most of it in
 * the buffers of this and other machines, where it cannot be seen.
 */
ngx_msec_t
redis_link::patience() const
{
    std::uint64_t in_flight = 0;

    if (busy()) {
        in_flight = appended_ - command_at(ngx_queue_head(&commands_)).begin;
    }

    return settings_.timeout
           + ngx_min(in_flight / slowest_rate, most_patience);
}


/* When something has to be done at the latest; false: never. */
bool
redis_link::next_due(ngx_msec_t &due)
{
    bool opening = state_ != state::ready && state_ != state::closed;

    due = opening ? connect_deadline_ : progress_ + patience();
    for_command_ = false;

    for (ngx_queue_t *q = ngx_queue_head(&commands_);
         q != ngx_queue_sentinel(&commands_); q = ngx_queue_next(q))
    {
        const command &c = command_at(q);

        if (!c.told) {
            for_command_ = static_cast<ngx_msec_int_t>(c.deadline - due) <= 0;
            due = for_command_ ? c.deadline : due;
            break;
        }
    }

    return opening || busy();
}


/*
 * Moves the timer only when it is to be earlier, as on_deadline() looks anew;
 * no command is due before the one that set it.
 */
void
redis_link::arm()
{
    ngx_msec_t due;

    deadline_.event.cancelable = !busy();

    if ((for_command_ && deadline_.event.timer_set) || !next_due(due)) {
        return;
    }

    if (deadline_.event.timer_set) {
        if (static_cast<ngx_msec_int_t>(due - deadline_.event.timer.key) >= 0)
        {
            return;
        }

        ngx_del_timer(&deadline_.event);
    }

    ngx_msec_int_t left = static_cast<ngx_msec_int_t>(due - ngx_current_msec);

    ngx_add_timer(&deadline_.event, static_cast<ngx_msec_t>(ngx_max(left, 1)));
}


void
redis_link::on_deadline(ngx_event_t *event)
{
    own_event::owner_of<redis_link>(event)->overdue();
}


void
redis_link::overdue()
{
    if (state_ == state::ready) {

        if (busy() && is_past(progress_ + patience())) {
            fail("it did not answer in time", NGX_ETIMEDOUT, true);
            return;
        }

        tell_slow();

    } else if (state_ != state::closed) {

        if (is_past(connect_deadline_)) {
            fail("it could not be connected to in time", NGX_ETIMEDOUT, true);
            return;
        }

        if (busy() && is_past(command_at(ngx_queue_head(&commands_)).deadline))
        {
            fail_waiting();
        }
    }

    arm();
}


/* The server works, but not fast enough for these. */
void
redis_link::tell_slow()
{
    ngx_connection_t *c = connection_;
    ngx_queue_t *q = ngx_queue_head(&commands_);

    /* Who is told may bring the link down, and all commands with it. */
    while (connection_ == c && q != ngx_queue_sentinel(&commands_)) {
        command &slow = command_at(q);

        q = ngx_queue_next(q);

        if (!is_past(slow.deadline)) {
            return;
        }

        if (!slow.told) {
            slow.told = true;
            slow.slow(slow);
        }
    }
}


void
redis_link::answer_all(unanswered (*why)(const command &, std::uint64_t))
{
    ngx_queue_t all;
    std::uint64_t written = written_;

    /* The rest was thrown away. */
    written_ = appended_;

    /* Who is told that its command has failed may give another one. */
    ngx_queue_init(&all);
    ngx_queue_add(&all, &commands_);
    ngx_queue_init(&commands_);

    while (!ngx_queue_empty(&all)) {
        command &c = command_at(ngx_queue_head(&all));

        ngx_queue_remove(&c.queue);
        c.answered(c, nullptr, why(c, written));
    }
}


/* The attempt goes on, but who waits for it has waited long enough. */
void
redis_link::fail_waiting()
{
    free_until(nullptr);
    down_ = true;
    owner_.link_down(*this, "it could not be connected to in time",
                     NGX_ETIMEDOUT);
    answer_all(
        [](const command &, std::uint64_t) { return unanswered::not_sent; });
}


void
redis_link::give_up(const char *why)
{
    fail(why, 0, true);
}


/*
 * Commands in flight may still be executed by a server that stands still; it
 * is told by a reset that nobody wants to know, and nothing of them is left
 * to be sent again by this host's kernel.
 */
void
redis_link::fail(const char *why, ngx_err_t err, bool down)
{
    bool was_down = down_;
    bool idle = !busy();

    close(true);
    down_ = down_ || down;

    if (down && !was_down) {
        owner_.link_down(*this, why, err);

    } else if (!was_down && !idle && ngx_time() >= next_complaint_) {
        next_complaint_ = ngx_time() + 10;

        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, err,
                      "idempotency: redis \"%V\": %s before it had answered",
                      &settings_.name, why);
    }

    try_later();
    attempts_++;

    answer_all(fate_of);
}


void
redis_link::try_later()
{
    ngx_msec_t delay = 1;

    if (attempts_ != 0 || down_) {
        delay = first_delay << ngx_min(attempts_, 6u);
        delay = ngx_min(delay, longest_delay);
        delay += static_cast<ngx_msec_t>(ngx_random()) % (delay / 2);
    }

    retry_.stop();
    ngx_add_timer(&retry_.event, delay);
}


void
redis_link::on_retry(ngx_event_t *event)
{
    auto *self = own_event::owner_of<redis_link>(event);

    if (self->state_ == state::closed) {
        self->open();
    }
}


void
redis_link::close(bool reset)
{
    ngx_connection_t *c = connection_;

    state_ = state::closed;
    connection_ = nullptr;
    starved_ = false;
    unparsed_ = 0;
    deadline_.stop();
    free_until(nullptr);

    if (resolving_ != nullptr) {
        ngx_resolve_name_done(resolving_);
        resolving_ = nullptr;
    }

    if (reader_ != nullptr) {
        redisReaderFree(reader_);
        reader_ = nullptr;
    }

    if (c == nullptr) {
        return;
    }

    if (reset) {
        linger at_once = {1, 0};

        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }

#if (NGX_SSL)
    if (c->ssl != nullptr) {
        c->ssl->no_wait_shutdown = 1;
        c->ssl->no_send_shutdown = 1;
        ngx_ssl_shutdown(c);
    }
#endif

    if (c->pool != nullptr) {
        ngx_destroy_pool(c->pool);
    }

    ngx_close_connection(c);
}

}
