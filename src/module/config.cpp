#include "module/config_checks.h"
#include "module/directives.h"

namespace idempotency {

namespace {

ngx_str_t default_methods[] = {
    ngx_string("POST"),
    ngx_string("PUT"),
    ngx_string("PATCH"),
    ngx_string("DELETE"),
};

ngx_str_t default_hidden[] = {
    ngx_string("Set-Cookie"),
};

std::uint16_t default_unknown[] = {502, 504};


template <class T>
T *
unset()
{
    return static_cast<T *>(NGX_CONF_UNSET_PTR);
}


/* With room for one more: an array of none has no memory. */
template <class T>
ngx_array_t *
make_list(ngx_conf_t *cf, std::span<const T> values)
{
    ngx_array_t *list = ngx_array_create(cf->pool, values.size() + 1,
                                         sizeof(T));

    if (list == nullptr) {
        return nullptr;
    }

    for (const T &value : values) {
        *static_cast<T *>(ngx_array_push(list)) = value;
    }

    return list;
}


ngx_array_t *
default_keys(ngx_conf_t *cf)
{
    key_source source = {};
    ngx_str_set(&source.header, "idempotency-key");

    return make_list<key_source>(cf, {&source, 1});
}


/* Set-Cookie and what is hidden besides, unless it is passed. */
ngx_array_t *
hidden_headers(ngx_conf_t *cf, const location_conf *conf)
{
    ngx_array_t *hidden = ngx_array_create(cf->pool, 4, sizeof(ngx_str_t));

    if (hidden == nullptr) {
        return nullptr;
    }

    auto add = [&](const ngx_str_t &name) {
        return has_name(conf->pass_headers, name) || append(hidden, name);
    };

    auto hide = elements<ngx_str_t>(conf->hide_headers);

    if (!std::all_of(std::begin(default_hidden), std::end(default_hidden), add)
        || !std::all_of(hide.begin(), hide.end(), add))
    {
        return nullptr;
    }

    return hidden;
}


/* As it is written, since it is to be the same after a reload. */
bool
keep_condition(ngx_conf_t *cf, location_conf *conf)
{
    auto words = elements<ngx_str_t>(cf->args);
    ngx_str_t &text = conf->condition;

    if (words.empty() || view(words[0]) != "if") {
        return true;
    }

    for (ngx_str_t &word : words.subspan(1)) {
        text = format(cf->pool, text.len + word.len + 1, "%V %V", &text,
                      &word);

        if (text.data == nullptr) {
            return false;
        }
    }

    return true;
}


/* An if may be in another one, and nowhere else but in a location. */
bool
find_location_around(ngx_conf_t *cf, const location_conf *prev,
                     location_conf *conf)
{
    auto *core = static_cast<ngx_http_core_loc_conf_t *>(
        ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module));

    conf->around = core->noname ? prev->around : core;

    if (conf->condition.len != 0 && prev->condition.len != 0) {
        conf->condition = format(cf->pool,
                                 prev->condition.len + conf->condition.len + 1,
                                 "%V\n%V", &prev->condition, &conf->condition);
    }

    return conf->condition.len == 0 || conf->condition.data != nullptr;
}


char *
merge_lists(ngx_conf_t *cf, location_conf *prev, location_conf *conf)
{
    ngx_conf_merge_ptr_value(conf->scope, prev->scope, nullptr);
    ngx_conf_merge_ptr_value(conf->first_sent, prev->first_sent, nullptr);
    ngx_conf_merge_ptr_value(conf->bypass, prev->bypass, nullptr);
    ngx_conf_merge_ptr_value(conf->include, prev->include, nullptr);
    ngx_conf_merge_ptr_value(conf->exclude, prev->exclude, nullptr);
    ngx_conf_merge_ptr_value(conf->ttl, prev->ttl, nullptr);
    ngx_conf_merge_ptr_value(conf->errors, prev->errors, nullptr);
    ngx_conf_merge_ptr_value(conf->error_bodies, prev->error_bodies, nullptr);
    ngx_conf_merge_ptr_value(conf->keys, prev->keys, nullptr);
    ngx_conf_merge_ptr_value(conf->methods, prev->methods, nullptr);
    ngx_conf_merge_ptr_value(conf->unknown_status, prev->unknown_status,
                             nullptr);

    if (conf->keys == nullptr) {
        conf->keys = default_keys(cf);
    }

    if (conf->methods == nullptr) {
        conf->methods = make_list<ngx_str_t>(cf, default_methods);
    }

    if (conf->unknown_status == nullptr) {
        conf->unknown_status = make_list<std::uint16_t>(cf, default_unknown);
    }

    /* As proxy_hide_header: either list is inherited only as a whole. */
    ngx_conf_merge_ptr_value(conf->hide_headers, prev->hide_headers, nullptr);
    ngx_conf_merge_ptr_value(conf->pass_headers, prev->pass_headers, nullptr);

    conf->hidden = hidden_headers(cf, conf);

    if (conf->keys == nullptr || conf->methods == nullptr
        || conf->unknown_status == nullptr || conf->hidden == nullptr)
    {
        return failed;
    }

    return NGX_CONF_OK;
}

}


bool
has_error_page(const ngx_http_core_loc_conf_t *core, ngx_uint_t status)
{
    auto pages = elements<const ngx_http_err_page_t>(core->error_pages);

    return std::any_of(
        pages.begin(), pages.end(), [&](const ngx_http_err_page_t &page) {
            return page.status == static_cast<ngx_int_t>(status);
        });
}


outcome_rules
rules_of(const location_conf *conf)
{
    return {elements<const ttl_rule>(conf->ttl),
            elements<const std::uint16_t>(conf->unknown_status)};
}


void *
create_main_conf(ngx_conf_t *cf)
{
    auto *conf = make<main_conf>(cf->pool);

    if (conf == nullptr
        || ngx_array_init(&conf->stores, cf->pool, 2, sizeof(named_store *))
               != NGX_OK
        || ngx_array_init(&conf->upstreams, cf->pool, 4,
                          sizeof(guarded_upstream))
               != NGX_OK
        || ngx_array_init(&conf->admin_locations, cf->pool, 1,
                          sizeof(admin_location))
               != NGX_OK
        || ngx_array_init(&conf->locations, cf->pool, 16,
                          sizeof(merged_location))
               != NGX_OK
        || ngx_array_init(&conf->zones, cf->pool, 4, sizeof(counters *))
               != NGX_OK
        || ngx_array_init(&conf->counts, cf->pool, 2, sizeof(counters *))
               != NGX_OK)
    {
        return nullptr;
    }

    return conf;
}


char *
init_main_conf(ngx_conf_t *cf, void *conf)
{
    return define_stores(cf, static_cast<main_conf *>(conf));
}


void *
create_server_conf(ngx_conf_t *cf)
{
    auto *conf = make<server_conf>(cf->pool);

    if (conf == nullptr
        || ngx_array_init(&conf->names, cf->pool, 2, sizeof(ngx_str_t))
               != NGX_OK)
    {
        return nullptr;
    }

    return conf;
}


ngx_int_t
keep_server_names(ngx_conf_t *cf)
{
    auto *main = static_cast<ngx_http_core_main_conf_t *>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module));

    for (auto *server : elements<ngx_http_core_srv_conf_t *>(&main->servers)) {
        auto *conf = static_cast<server_conf *>(
            server->ctx->srv_conf[ngx_http_idempotency_module.ctx_index]);

        for (auto &name :
             elements<ngx_http_server_name_t>(&server->server_names)) {
            if (!append(&conf->names, name.name)) {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


void *
create_location_conf(ngx_conf_t *cf)
{
    auto *conf = make<location_conf>(cf->pool);

    if (conf == nullptr || !keep_condition(cf, conf)) {
        return nullptr;
    }

    conf->store = unset<named_store>();
    conf->status = NGX_CONF_UNSET_UINT;
    conf->scope = unset<ngx_array_t>();
    conf->scope_route = NGX_CONF_UNSET_UINT;
    conf->keys = unset<ngx_array_t>();
    conf->key_min = NGX_CONF_UNSET_SIZE;
    conf->key_max = NGX_CONF_UNSET_SIZE;
    conf->key_uuid = NGX_CONF_UNSET_UINT;
    conf->first_sent = unset<ngx_http_complex_value_t>();
    conf->methods = unset<ngx_array_t>();
    conf->strict_methods = NGX_CONF_UNSET;
    conf->required = NGX_CONF_UNSET;
    conf->bypass = unset<ngx_array_t>();
    conf->dry_run = NGX_CONF_UNSET;
    conf->fingerprint = NGX_CONF_UNSET_UINT;
    conf->include = unset<ngx_array_t>();
    conf->exclude = unset<ngx_array_t>();
    conf->jsonrpc = NGX_CONF_UNSET;
    conf->ttl = unset<ngx_array_t>();
    conf->unknown_status = unset<ngx_array_t>();
    conf->release_unknown = NGX_CONF_UNSET_UINT;
    conf->lease = NGX_CONF_UNSET_MSEC;
    conf->abort_timeout = NGX_CONF_UNSET_MSEC;
    conf->wait = NGX_CONF_UNSET_MSEC;
    conf->retry_after = NGX_CONF_UNSET_MSEC;
    conf->pass_store_failure = NGX_CONF_UNSET_UINT;
    conf->replay_empty = NGX_CONF_UNSET_UINT;
    conf->hide_headers = unset<ngx_array_t>();
    conf->pass_headers = unset<ngx_array_t>();
    conf->max_response = NGX_CONF_UNSET_SIZE;
    conf->hold = NGX_CONF_UNSET;
    conf->app_control = NGX_CONF_UNSET;
    conf->errors = unset<ngx_array_t>();
    conf->error_bodies = unset<ngx_array_t>();
    conf->log_level = NGX_CONF_UNSET_UINT;

    return conf;
}


char *
merge_location_conf(ngx_conf_t *cf, void *parent, void *child)
{
    auto *prev = static_cast<location_conf *>(parent);
    auto *conf = static_cast<location_conf *>(child);

    bool on_here = conf->store != NGX_CONF_UNSET_PTR;

    /* http{} is merged into others, but nothing into it. */
    warn_of_idle_pointers(cf, *prev);

    if (!find_location_around(cf, prev, conf)) {
        return failed;
    }

    if (conf->store == NGX_CONF_UNSET_PTR) {
        conf->store = prev->store == NGX_CONF_UNSET_PTR ? nullptr
                                                        : prev->store;
        conf->file = prev->file;
        conf->line = prev->line;
    }

    ngx_conf_merge_uint_value(conf->scope_route, prev->scope_route,
                              whole_route);
    ngx_conf_merge_size_value(conf->key_min, prev->key_min, 1);
    ngx_conf_merge_size_value(conf->key_max, prev->key_max, 255);
    ngx_conf_merge_uint_value(conf->key_uuid, prev->key_uuid, 0);
    ngx_conf_merge_value(conf->strict_methods, prev->strict_methods, 0);
    ngx_conf_merge_value(conf->required, prev->required, 0);
    ngx_conf_merge_value(conf->dry_run, prev->dry_run, 0);
    ngx_conf_merge_value(conf->jsonrpc, prev->jsonrpc, 0);
    ngx_conf_merge_uint_value(
        conf->fingerprint, prev->fingerprint,
        static_cast<ngx_uint_t>(fingerprint_mode::automatic));
    ngx_conf_merge_uint_value(conf->release_unknown, prev->release_unknown, 0);
    ngx_conf_merge_msec_value(conf->lease, prev->lease, 30000);
    ngx_conf_merge_msec_value(conf->abort_timeout, prev->abort_timeout,
                              10 * 60 * 1000);
    ngx_conf_merge_msec_value(conf->wait, prev->wait, 0);
    ngx_conf_merge_msec_value(conf->retry_after, prev->retry_after, 1000);
    ngx_conf_merge_uint_value(conf->pass_store_failure,
                              prev->pass_store_failure, 0);
    ngx_conf_merge_uint_value(conf->replay_empty, prev->replay_empty, 0);
    ngx_conf_merge_size_value(conf->max_response, prev->max_response,
                              1024 * 1024);
    ngx_conf_merge_value(conf->hold, prev->hold, 1);
    ngx_conf_merge_value(conf->app_control, prev->app_control, 1);
    ngx_conf_merge_str_value(conf->docs, prev->docs, "");
    ngx_conf_merge_uint_value(conf->log_level, prev->log_level, NGX_LOG_ERR);

    /* Set to an empty string, the header is off: that too is inherited. */
    if (conf->replay_header.data == nullptr) {
        conf->replay_header = prev->replay_header;
    }

    if (conf->replay_header.data == nullptr) {
        ngx_str_set(&conf->replay_header, "Idempotent-Replayed");
    }

    if (merge_lists(cf, prev, conf) != NGX_CONF_OK
        || merge_status_zone(cf, prev, conf) != NGX_CONF_OK)
    {
        return failed;
    }

    warn_of_idle_pointers(cf, *conf);

    return remember_location(cf, prev, conf, on_here) ? NGX_CONF_OK : failed;
}

}
