#include "store/redis_link.h"

#include "store/redis_tls.h"

namespace idempotency {

namespace {

constexpr ngx_msec_t first_delay = 100;


unanswered
fate_of(const command &c, std::uint64_t sent)
{
    return sent > c.position ? unanswered::lost : unanswered::not_sent;
}


unanswered
never_sent(const command &, std::uint64_t)
{
    return unanswered::not_sent;
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
    idle_.init(this, on_idle, &log_);
    idle_.event.cancelable = 1;

    open();
}


void
redis_link::stop()
{
    flush_.stop();
    retry_.stop();
    close(false);
    answer_all(fate_of);
    output_.free_memory();
    load_.reset();
    report_load();
}


void
redis_link::stay_down()
{
    ngx_queue_init(&commands_);
    down_ = true;
}


void
redis_link::inherit(memory_doubt doubt)
{
    doubt_ = ngx_max(doubt_, doubt);
}


/* A worker that is shutting down has closed its idle connections. */
void
redis_link::wake()
{
    if (state_ == state::closed && !retry_.event.timer_set) {
        open();
    }
}


void
redis_link::give_up(const char *why)
{
    fail(why, 0, true);
}


void
redis_link::reconnect(const char *why)
{
    fail(why, 0, false);
}


void
redis_link::open()
{
    retry_.stop();

    state_ = state::routing;
    connect_deadline_ = ngx_current_msec + settings_.connect_timeout;
    route_.find(*this, failures_);

    if (state_ == state::routing) {
        arm();
    }
}


void
redis_link::route_failed(const char *why)
{
    fail(why, 0, true);
}


void
redis_link::route_found(const endpoint &where)
{
    ngx_peer_connection_t peer = {};
    ngx_str_t name = route_.name();

    quieten_log();
    connect_deadline_ = ngx_current_msec + settings_.connect_timeout;
    certificate_ = where.certificate;

    peer.sockaddr = where.address;
    peer.socklen = where.length;
    peer.name = &name;
    peer.get = ngx_event_get_peer;
    peer.log = &log_;
    peer.log_error = NGX_ERROR_ERR;
    peer.so_keepalive = 1;

    ngx_int_t rc = ngx_event_connect_peer(&peer);

    if (rc != NGX_OK && rc != NGX_AGAIN) {
        fail("cannot connect", ngx_socket_errno, true);
        return;
    }

    if (!prepare(peer.connection)) {
        fail("not enough memory for a connection", 0, true);
        return;
    }

    arm();

    if (rc == NGX_OK) {
        connected();
    }
}


/*
 * nginx would log every failed attempt; the owner logs only changes of state.
 * The reason why TLS fails is known to nginx alone, so its first line stays.
 */
void
redis_link::quieten_log()
{
    log_.log_level = ngx_cycle->log->log_level;

    if (!(log_.log_level & NGX_LOG_DEBUG_EVENT)
        && (settings_.ssl == nullptr || down_))
    {
        log_.log_level = NGX_LOG_ALERT;
    }
}


bool
redis_link::prepare(ngx_connection_t *c)
{
    state_ = state::connecting;
    connection_ = c;

    c->data = this;
    c->log = &log_;
    c->read->handler = on_read;
    c->write->handler = on_write;
    c->pool = ngx_create_pool(1024, &log_);
    reader_ = redisReaderCreate();

    return c->pool != nullptr && reader_ != nullptr;
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
        fail("cannot connect", err, true);
        return;
    }

    if (connection_->tcp_nodelay == NGX_TCP_NODELAY_UNSET) {
        ngx_tcp_nodelay(connection_);
    }

    if (settings_.ssl == nullptr) {
        greet();
        return;
    }

    const char *wrong = start_tls(connection_, settings_.ssl, certificate_,
                                  on_tls);

    if (wrong != nullptr) {
        fail(wrong, 0, true);
    }
}


void
redis_link::on_tls(ngx_connection_t *c)
{
    auto *self = static_cast<redis_link *>(c->data);
    const char *wrong = check_tls(c, self->certificate_,
                                  self->settings_.tls_verify);

    if (wrong != nullptr) {
        self->fail(wrong, 0, true);
        return;
    }

    c->read->handler = on_read;
    c->write->handler = on_write;
    self->greet();
}


void
redis_link::greet()
{
    state_ = state::greeting;

    if (!greeting_.send(connection_, settings_, route_,
                        owner_.lists_records())) {
        fail("the connection broke during login", 0, true);
        return;
    }

    /* Bytes that arrived before our handlers were set raise no new event. */
    if (connection_->read->ready) {
        ngx_post_event(connection_->read, &ngx_posted_events);
    }
}


void
redis_link::opened()
{
    std::string_view policy = greeting_.eviction_policy();

    if (!policy.empty() && policy != "noeviction") {
        owner_.server_evicts(*this, policy);
    }

    if (const char *why = greeting_.list_refusal(); why != nullptr) {
        owner_.server_lists_nothing(*this, why);
    }

    bool lost = may_have_lost_memory();

    times_opened_++;
    identity_ = greeting_.identity();
    doubt_ = memory_doubt::none;
    state_ = state::ready;
    load_.reset();
    report_load();
    greeting_.forget_error();
    down_ = false;
    last_progress_ = ngx_current_msec;
    deadline_.stop();
    arm();

    if (lost) {
        gate.closed = true;
        output_.discard();
        answer_all(never_sent);
        owner_.memory_lost(*this);
    }

    if (!output_.empty()) {
        flush();
    }

    if (state_ == state::ready && !busy()) {
        drained();
    }

    owner_.link_up(*this);
}


/*
 * A server that does not tell who it is may be another each time.  The first
 * one of a worker can be taken as it is, unless it was not there at first.
 */
bool
redis_link::may_have_lost_memory() const
{
    const server_identity &now = greeting_.identity();

    if (!settings_.puts_back) {
        return false;
    }

    if (doubt_ == memory_doubt::always
        || (doubt_ == memory_doubt::if_promoted && greeting_.was_promoted()))
    {
        return true;
    }

    if (times_opened_ != 0) {
        return !now.is_known() || now != identity_;
    }

    return failures_ != 0;
}


bool
redis_link::has_same_server(const redis_link &other) const
{
    const server_identity &mine = identity_;
    const server_identity &theirs = other.identity_;

    if (!is_ready() || !other.is_ready() || !mine.is_known()) {
        return false;
    }

    return mine.process[0] != '\0' ? mine.process == theirs.process
                                   : mine == theirs;
}


/*
 * A server that hangs may still execute the commands in flight later.  A reset
 * tells it that nobody waits for them, and keeps this host's kernel from
 * sending them again.
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

    } else if (!was_down && !idle && ngx_time() >= next_warning_) {
        next_warning_ = ngx_time() + 10;

        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, err,
                      "idempotency: connection to Redis at \"%V\" lost while "
                      "commands waited for a reply: %s",
                      &name(), why);
    }

    try_later();
    failures_++;

    answer_all(fate_of);
}


/* The attempt to connect goes on, but commands do not wait any longer. */
void
redis_link::fail_waiting()
{
    output_.discard();
    down_ = true;
    owner_.link_down(*this, "could not connect in time", NGX_ETIMEDOUT);
    answer_all(never_sent);
}


void
redis_link::answer_all(unanswered (*why)(const command &, std::uint64_t))
{
    ngx_queue_t all;
    std::uint64_t sent = output_.sent();

    output_.skip_discarded();

    /* A callback may queue another command. */
    ngx_queue_init(&all);
    ngx_queue_add(&all, &commands_);
    ngx_queue_init(&commands_);
    in_flight_ = 0;

    while (!ngx_queue_empty(&all)) {
        command &c = command_at(ngx_queue_head(&all));
        owned_reply earlier(c.earlier);

        ngx_queue_remove(&c.queue);
        c.answered(c, nullptr, why(c, sent));
    }
}


void
redis_link::try_later()
{
    ngx_msec_t delay = 1;

    if (failures_ != 0 || down_) {
        delay = first_delay << ngx_min(failures_, 6u);
        delay = ngx_min(delay, settings_.longest_delay);
        delay += static_cast<ngx_msec_t>(ngx_random()) % (delay / 2 + 1);
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

    if (is_ready()) {
        lost_at_ = ngx_current_msec;
    }

    state_ = state::closed;
    connection_ = nullptr;
    unparsed_ = 0;
    deadline_.stop();
    idle_.stop();
    output_.discard();
    route_.cancel();

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

    close_tls(c);

    if (c->pool != nullptr) {
        ngx_destroy_pool(c->pool);
    }

    ngx_close_connection(c);
}

}
