#include "module/admin_log.h"

#include <algorithm>

namespace idempotency {

namespace {

ngx_str_t variable(ngx_http_request_t *r, std::string_view name);
ngx_str_t printable(ngx_pool_t *pool, const ngx_str_t &text);

}


/* Who it was: a user, a certificate, or at least the client's address. */
void
log_act(ngx_http_request_t *r, const logged_act &what)
{
    ngx_str_t user = variable(r, "remote_user");
    ngx_str_t act = str(what.act);
    ngx_str_t result = str(what.result);

    if (user.len == 0) {
        user = variable(r, "ssl_client_s_dn");
    }

    if (user.len == 0) {
        ngx_str_set(&user, "-");
    }

    user = printable(r->pool, user);

    ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                  "idempotency: administrator \"%V\" at %V: %V record %V in "
                  "store \"%V\": %V",
                  &user, &r->connection->addr_text, &act, &what.id,
                  &what.store, &result);
}


void
log_refusal(ngx_http_request_t *r, const ngx_str_t &id,
            const admin_refusal &refusal)
{
    ngx_str_t server = str(refusal.server);
    ngx_str_t command = str(refusal.command);
    ngx_str_t reply = str(refusal.reply);
    ngx_str_t page = str(refusal.page);

    reply = printable(r->pool, reply);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "idempotency: record %V: Redis at \"%V\" refused the script "
                  "\"%V\" of an administrator: the reply is \"%V\", see %V",
                  &id, &server, &command, &reply, &page);
}


namespace {

ngx_str_t
variable(ngx_http_request_t *r, std::string_view name)
{
    ngx_str_t text = str(name);
    ngx_uint_t hash = ngx_hash_key(text.data, text.len);
    ngx_http_variable_value_t *v = ngx_http_get_variable(r, &text, hash);

    if (v == nullptr || v->not_found) {
        return ngx_string("");
    }

    return {v->len, v->data};
}


/* A client may have chosen it: it must not look like a line of the log. */
ngx_str_t
printable(ngx_pool_t *pool, const ngx_str_t &text)
{
    auto copy = make_array<u_char>(pool, text.len);

    if (copy.data() == nullptr) {
        return ngx_string("-");
    }

    std::transform(text.data, text.data + text.len, copy.begin(),
                   [](u_char c) {
                       bool plain = c >= 0x20 && c < 0x7f && c != '"';

                       return plain ? c : static_cast<u_char>('?');
                   });

    return {text.len, copy.data()};
}

}

}
