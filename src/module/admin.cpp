#include "module/admin.h"

#include "contract/key.h"
#include "module/admin_answer.h"
#include "module/admin_form.h"
#include "module/admin_log.h"
#include "module/admin_response.h"
#include "module/directives.h"
#include "module/headers.h"

#include <openssl/rand.h>

namespace idempotency {

namespace {

/*
 * What an administrator wants, until it is answered.  Lives in the request's
 * pool; its cleanup tells the store that nobody waits any more.
 */
struct admin_request {
    ngx_http_request_t *request;
    admin_form form;
    named_store *store;
    record_id name;
    admin_waiter waiter;
    std::string_view act; /* empty: a look-up */
    bool is_list;
    bool in_call;
};


constexpr admin_error forged = {
    403, "header_missing",
    "Acts need the header \"X-Idempotency-Admin\" and must not come from a "
    "page of another site."};

constexpr admin_error too_large = {
    413, "too_large",
    "The body does not fit in memory. Raise \"client_body_buffer_size\" in "
    "this location."};

constexpr admin_error bad_form = {400, "bad_request",
                                  "The fields cannot be read."};

constexpr admin_error no_store = {
    400, "bad_request",
    "There is no such store. Name one with \"store=NAME\"."};

constexpr admin_error bad_id = {
    400, "bad_request",
    "Name the record with \"id=\", the value of $idempotency_id."};

constexpr admin_error bad_act = {
    400, "bad_request",
    "\"act\" must be \"find\", \"release\", \"complete\" or \"delete\"."};

constexpr admin_error nothing_asked = {
    400, "bad_request",
    "Write \"?unknown\" to list unknown outcomes, or \"?id=\" to look a "
    "record up."};

constexpr admin_error bad_response = {
    400, "bad_request",
    "\"complete\" needs \"status=\" from 200 to 599; each \"header=\" is "
    "\"Name: value\", but \"type=\" is the Content-Type; 204 and 304 have no "
    "\"body=\"; \"ttl=\" is in seconds."};

constexpr admin_error failed_request = {500, "internal_error",
                                        "The request failed."};


bool tell_page(ngx_conf_t *cf, const ngx_http_core_loc_conf_t &core);
void read_act(ngx_http_request_t *r);
bool is_forged(ngx_http_request_t *r);
void carry_out(ngx_http_request_t *r, std::string_view text, bool may_act);
const admin_error *start(admin_request &a, bool may_act);
named_store *find_store(const admin_request &a);
const admin_error *start_act(admin_request &a);
bool name_by_key(admin_request &a);
const admin_error *settle(admin_request &a, admin_act act);
void answered(admin_waiter &waiter, const admin_answer &answer);
void forget(void *data);

}


char *
set_admin(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    auto *core = static_cast<ngx_http_core_loc_conf_t *>(
        ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module));

    if (conf->admin) {
        return duplicate;
    }

    auto *main = static_cast<main_conf *>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module));

    conf->admin = true;
    main->has_admin = true;
    core->handler = administer;

    return tell_page(cf, *core) ? NGX_CONF_OK : failed;
}


std::string_view
admin_path(ngx_http_request_t *r)
{
    auto *main = static_cast<main_conf *>(
        ngx_http_get_module_main_conf(r, ngx_http_idempotency_module));
    auto *server = static_cast<ngx_http_core_srv_conf_t *>(
        ngx_http_get_module_srv_conf(r, ngx_http_core_module));

    for (const admin_location &known :
         elements<admin_location>(&main->admin_locations))
    {
        if (known.server == server) {
            return view(known.path);
        }
    }

    return {};
}


ngx_int_t
administer(ngx_http_request_t *r)
{
    if (r->method == NGX_HTTP_POST) {

        if (is_forged(r)) {
            ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                          "idempotency: administration refused: no "
                          "\"X-Idempotency-Admin\" header, or sent by a page "
                          "of another site");

            /* What is left of a broken body must not be the next request. */
            if (ngx_http_discard_request_body(r) != NGX_OK) {
                r->keepalive = 0;
            }

            r->main->count++;
            send_error(r, forged);
            return NGX_DONE;
        }

        ngx_int_t rc = ngx_http_read_client_request_body(r, read_act);

        return rc >= NGX_HTTP_SPECIAL_RESPONSE ? rc : NGX_DONE;
    }

    if (!(r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    ngx_int_t rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    r->main->count++;
    carry_out(r, view(r->args), false);

    return NGX_DONE;
}


namespace {

/* Only a location that has one address of its own can be led to. */
bool
tell_page(ngx_conf_t *cf, const ngx_http_core_loc_conf_t &core)
{
    if (core.named || core.noname || core.name.len == 0
        || core.name.data[0] != '/')
    {
        return true;
    }

#if (NGX_PCRE)
    if (core.regex != nullptr) {
        return true;
    }
#endif

    auto *main = static_cast<main_conf *>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module));
    auto *server = static_cast<ngx_http_core_srv_conf_t *>(
        ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module));

    return append(&main->admin_locations, admin_location{server, core.name});
}


/*
 * A page of another site cannot send this header without asking first, and
 * nobody here says yes.  The other two are a second lock on the same door.
 */
bool
is_forged(ngx_http_request_t *r)
{
    ngx_str_t value;

    if (find_header(r, ngx_string("x-idempotency-admin"), value) == 0) {
        return true;
    }

    if (find_header(r, ngx_string("sec-fetch-site"), value) != 0
        && view(value) != "same-origin" && view(value) != "none")
    {
        return true;
    }

    if (find_header(r, ngx_string("origin"), value) == 0) {
        return false;
    }

    std::string_view origin = view(value);
    std::size_t host = origin.find("://");

    return host == origin.npos || r->headers_in.host == nullptr
           || origin.substr(host + 3) != view(r->headers_in.host->value);
}


/* Of a chunked body there may be several. */
template <class F>
void
each_buf(ngx_http_request_t *r, F call)
{
    for (ngx_chain_t *cl = r->request_body->bufs; cl != nullptr; cl = cl->next)
    {
        call(*cl->buf);
    }
}


/* The fields of an act are in the body: a log has no business with them. */
void
read_act(ngx_http_request_t *r)
{
    std::size_t size = 0;

    if (r->request_body->temp_file != nullptr) {
        send_error(r, too_large);
        return;
    }

    each_buf(r, [&](const ngx_buf_t &b) {
        size += static_cast<std::size_t>(b.last - b.pos);
    });

    auto text = make_array<char>(r->pool, size);
    char *p = text.data();

    if (p == nullptr) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    each_buf(r, [&](const ngx_buf_t &b) { p = std::copy(b.pos, b.last, p); });

    carry_out(r, {text.data(), size}, true);
}


void
carry_out(ngx_http_request_t *r, std::string_view text, bool may_act)
{
    ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(r->pool,
                                                       sizeof(admin_request));

    if (cleanup == nullptr) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    auto *a = ::new (cleanup->data) admin_request{};

    a->request = r;
    a->waiter = {a, answered};

    const admin_error *error = a->form.parse(r->pool, text) ? nullptr
                                                            : &bad_form;

    /* An answer inside the call must not be the end of the request. */
    r->main->count++;
    a->in_call = true;

    if (error == nullptr) {
        error = start(*a, may_act);
    }

    if (error != nullptr) {
        send_error(r, *error);

    } else if (a->waiter.under_way != nullptr) {
        a->in_call = false;
        cleanup->handler = forget;
    }

    ngx_http_finalize_request(r, NGX_DONE);
}


/* Null: the store has been asked, and may have answered. */
const admin_error *
start(admin_request &a, bool may_act)
{
    a.store = find_store(a);

    if (a.store == nullptr) {
        return &no_store;
    }

    if (may_act) {
        return start_act(a);
    }

    std::optional<std::string_view> id = a.form.find("id");

    if (id) {
        if (!parse_id(*id, a.name)) {
            return &bad_id;
        }

        a.store->backend->look_up(a.name, a.waiter);
        return nullptr;
    }

    if (!a.form.find("unknown")) {
        return &nothing_asked;
    }

    std::uint64_t from = 0;

    if (!read_number(a.form.get("from", "0"), from)) {
        return &bad_form;
    }

    a.is_list = true;
    a.store->backend->list_unknown(from, a.waiter);
    return nullptr;
}


/* The only store there is need not be named. */
named_store *
find_store(const admin_request &a)
{
    auto *main = static_cast<main_conf *>(
        ngx_http_get_module_main_conf(a.request, ngx_http_idempotency_module));
    auto stores = elements<named_store *>(&main->stores);
    std::optional<std::string_view> name = a.form.find("store");

    if (!name) {
        return stores.size() == 1 ? stores[0] : nullptr;
    }

    auto found = std::find_if(stores.begin(), stores.end(),
                              [&](auto *s) { return view(s->name) == *name; });

    return found != stores.end() ? *found : nullptr;
}


const admin_error *
start_act(admin_request &a)
{
    std::string_view act = a.form.get("act");

    if (act == "find") {
        if (!name_by_key(a)) {
            return &bad_form;
        }

        a.store->backend->look_up(a.name, a.waiter);
        return nullptr;
    }

    if (act != "release" && act != "complete" && act != "delete") {
        return &bad_act;
    }

    if (!parse_id(a.form.get("id"), a.name)) {
        return &bad_id;
    }

    a.act = act;

    return settle(a, act == "release"    ? admin_act::release
                     : act == "complete" ? admin_act::complete
                                         : admin_act::remove);
}


/*
 * As the gate names a record.  A scope is given once for each of its values;
 * of the route, the parts that idempotency_scope_route has.
 */
bool
name_by_key(admin_request &a)
{
    std::array<std::string_view, scope_limit> scope;
    std::size_t count = 0;
    hasher hash;

    for (const query_field &f : a.form.fields()) {
        if (f.name == "scope") {
            if (count == scope.size()) {
                return false;
            }

            scope[count++] = f.value;
        }
    }

    route where = {a.form.find("host"), a.form.find("port"),
                   a.form.find("method"), a.form.find("path")};

    return a.form.find("key")
           && record_name(hash, {scope.data(), count}, where,
                          a.form.get("key"), a.name);
}


const admin_error *
settle(admin_request &a, admin_act act)
{
    admin_settlement how = {act, {}, default_ttl, {}, {}};
    encoded_response given;
    std::uint64_t seconds = default_ttl / 1000;

    if (act == admin_act::complete) {
        if (!encode_response(a.form, a.request->pool, given)
            || !read_number(a.form.get("ttl", "86400"), seconds)
            || seconds == 0 || seconds > UINT32_MAX)
        {
            return &bad_response;
        }

        how.ttl = seconds * 1000;
        how.response = {&given.whole, 1};
        how.summary = {&given.summary, 1};
    }

    if (RAND_bytes(how.owner.data(), static_cast<int>(how.owner.size())) != 1)
    {
        return &failed_request;
    }

    a.store->backend->settle_unknown(a.name, how, a.waiter);

    return nullptr;
}


void
answered(admin_waiter &waiter, const admin_answer &answer)
{
    auto *a = static_cast<admin_request *>(waiter.owner);
    ngx_http_request_t *r = a->request;
    ngx_connection_t *c = r->connection;
    bool in_call = a->in_call;
    const admin_error *error = error_for(answer.result);
    ngx_str_t id = a->is_list ? str("-") : id_of(r->pool, a->name);

    if (!a->act.empty()) {
        log_act(r, {a->act, id, a->store->name,
                    error == nullptr ? "done" : error->code});
    }

    if (answer.result == admin_result::refused) {
        log_refusal(r, id, answer.refusal);
        send_refusal(r, *error, answer.refusal);

    } else if (error != nullptr) {
        send_error(r, *error);

    } else if (!a->act.empty()) {
        send_done(r, id, a->act);

    } else {
        send_records(r, answer, a->is_list);
    }

    if (!in_call) {
        ngx_http_run_posted_requests(c);
    }
}


void
forget(void *data)
{
    auto *a = static_cast<admin_request *>(data);

    if (a->waiter.under_way != nullptr) {
        a->store->backend->forget(a->waiter);
    }
}

}

}
