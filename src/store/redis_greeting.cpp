#include "store/redis_link.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace idempotency {

namespace {

std::string_view
text_of(const redisReply &reply)
{
    return {reply.str, reply.len};
}


bool
is_error(const redisReply &reply, std::string_view prefix)
{
    return reply.type == REDIS_REPLY_ERROR
           && text_of(reply).starts_with(prefix);
}


/* For the log; overwritten by the next. */
const char *
told(const redisReply &reply)
{
    static char text[256];

    std::snprintf(text, sizeof(text), "it answers \"%.*s\"",
                  static_cast<int>(std::min<std::size_t>(reply.len, 200)),
                  reply.str);

    return text;
}


std::uint64_t
number_of(std::string_view text)
{
    std::uint64_t value = 0;

    std::from_chars(text.data(), text.data() + text.size(), value);

    return value;
}

}


#if (NGX_SSL)

void
redis_link::start_tls()
{
    ngx_connection_t *c = connection_;
    auto *name = reinterpret_cast<char *>(settings_.tls_name.data);

    if (ngx_ssl_create_connection(settings_.ssl, c, NGX_SSL_CLIENT) != NGX_OK
        || (!settings_.tls_address
            && SSL_set_tlsext_host_name(c->ssl->connection, name) == 0))
    {
        fail("TLS failed", 0, true);
        return;
    }

    if (ngx_ssl_handshake(c) == NGX_AGAIN) {
        c->ssl->handler = on_tls;
        return;
    }

    on_tls(c);
}


/* nginx looks for names only. */
bool
redis_link::is_for_name()
{
    if (!settings_.tls_address) {
        return ngx_ssl_check_host(connection_, &settings_.tls_name) == NGX_OK;
    }

    X509 *certificate = SSL_get_peer_certificate(connection_->ssl->connection);
    auto *name = reinterpret_cast<char *>(settings_.tls_name.data);
    bool same = certificate != nullptr
                && X509_check_ip_asc(certificate, name, 0) == 1;

    X509_free(certificate);

    return same;
}


const char *
redis_link::check_certificate()
{
    SSL *ssl = connection_->ssl->connection;
    static char text[256];

    if (!settings_.tls_verify) {
        return nullptr;
    }

    long result = SSL_get_verify_result(ssl);

    if (result != X509_V_OK) {
        std::snprintf(text, sizeof(text), "its certificate is not trusted: %s",
                      X509_verify_cert_error_string(result));
        return text;
    }

    if (!is_for_name()) {
        std::snprintf(text, sizeof(text), "its certificate is not for \"%s\"",
                      reinterpret_cast<char *>(settings_.tls_name.data));
        return text;
    }

    return nullptr;
}


void
redis_link::on_tls(ngx_connection_t *c)
{
    auto *self = static_cast<redis_link *>(c->data);

    if (!c->ssl->handshaked) {
        self->fail("the TLS handshake failed", 0, true);
        return;
    }

    const char *wrong = self->check_certificate();

    if (wrong != nullptr) {
        self->fail(wrong, 0, true);
        return;
    }

    c->read->handler = on_read;
    c->write->handler = on_write;
    self->greet();
}

#else

void
redis_link::start_tls()
{
    fail("nginx was built without TLS", 0, true);
}

#endif


bool
redis_link::add_step(step what, std::span<const std::string_view> arguments)
{
    std::array<const char *, 4> text;
    std::array<std::size_t, 4> sizes;
    char *formatted = nullptr;

    for (std::size_t i = 0; i < arguments.size(); i++) {
        text[i] = arguments[i].data();
        sizes[i] = arguments[i].size();
    }

    int size = static_cast<int>(
        redisFormatCommandArgv(&formatted, static_cast<int>(arguments.size()),
                               text.data(), sizes.data()));

    if (size < 0) {
        return false;
    }

    /* A connection that is new takes this much at once. */
    ssize_t sent = connection_->send(connection_,
                                     reinterpret_cast<u_char *>(formatted),
                                     static_cast<std::size_t>(size));
    redisFreeCommand(formatted);

    greeting_[greeting_size_++] = what;

    return sent == size;
}


/* Who we are, and what kind of server this is: all in one go. */
void
redis_link::greet()
{
    using words = std::initializer_list<std::string_view>;

    state_ = state::greeting;
    complaint_[0] = '\0';
    greeting_size_ = 0;
    greeted_ = 0;

    auto add = [this](step what, words arguments) {
        return add_step(what, {arguments.begin(), arguments.size()});
    };

    std::string_view user = view(settings_.user);
    std::string_view password = view(settings_.password);
    bool done = true;

    if (!user.empty()) {
        done = done && add(step::auth, {"AUTH", user, password});

    } else if (!password.empty()) {
        done = done && add(step::auth, {"AUTH", password});
    }

    if (view(settings_.db) != "0") {
        done = done && add(step::select, {"SELECT", view(settings_.db)});
    }

    done = done && add(step::name, {"CLIENT", "SETNAME", "idempotency"})
           && add(step::time, {"TIME"}) && add(step::role, {"ROLE"})
           && add(step::memory, {"INFO", "memory"});

    if (!done) {
        fail("the greeting could not be sent", 0, true);
        return;
    }

    /* What came before the events were ours would not be told again. */
    if (connection_->read->ready) {
        ngx_post_event(connection_->read, &ngx_posted_events);
    }
}


/* Null: fine, or of no importance. */
const char *
redis_link::take_greeting(const redisReply &reply)
{
    bool error = reply.type == REDIS_REPLY_ERROR;
    step what = greeting_[greeted_];

    if (error
        && (what == step::auth || what == step::select
            || is_error(reply, "NOAUTH")))
    {
        return told(reply);
    }

    /* A server that is about to close says why. */
    if (error && complaint_[0] == '\0') {
        ngx_cpystrn(
            reinterpret_cast<u_char *>(complaint_),
            reinterpret_cast<u_char *>(const_cast<char *>(told(reply))),
            sizeof(complaint_));
    }

    if (error) {
        return nullptr;
    }

    switch (what) {

    case step::role: return take_role(reply);

    case step::time: take_time(reply); break;

    case step::memory:
        if (reply.type == REDIS_REPLY_STRING) {
            take_memory(text_of(reply));
        }
        break;

    default: break;
    }

    return nullptr;
}


const char *
redis_link::take_role(const redisReply &reply)
{
    if (reply.type == REDIS_REPLY_ARRAY && reply.elements > 0
        && reply.element[0]->type == REDIS_REPLY_STRING
        && text_of(*reply.element[0]) == "slave")
    {
        return "it is a replica, which takes no writes";
    }

    return nullptr;
}


void
redis_link::take_time(const redisReply &reply)
{
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 2
        || reply.element[0]->type != REDIS_REPLY_STRING
        || reply.element[1]->type != REDIS_REPLY_STRING)
    {
        return;
    }

    server_time_ = number_of(text_of(*reply.element[0])) * 1000
                   + number_of(text_of(*reply.element[1])) / 1000;
    server_asked_ = ngx_current_msec;
}


void
redis_link::take_memory(std::string_view info)
{
    constexpr std::string_view field = "maxmemory_policy:";
    std::size_t at = info.find(field);

    if (at == std::string_view::npos) {
        return;
    }

    std::string_view policy = info.substr(at + field.size());

    policy = policy.substr(0, policy.find_first_of("\r\n"));

    if (policy != "noeviction") {
        owner_.server_evicts(*this, policy);
    }
}


/* A server that does not tell its time has the time of this host. */
std::uint64_t
redis_link::server_time() const
{
    if (server_time_ == 0) {
        return static_cast<std::uint64_t>(ngx_time()) * 1000;
    }

    return server_time_ + (ngx_current_msec - server_asked_);
}


void
redis_link::opened()
{
    state_ = state::ready;
    complaint_[0] = '\0';
    down_ = false;
    progress_ = ngx_current_msec;
    deadline_.stop();
    arm();

    if (out_ != nullptr) {
        flush();
    }

    if (state_ == state::ready && !busy()) {
        drained();
    }

    owner_.link_up(*this);
}

}
