#include "module/directives.h"

namespace idempotency {

namespace {

constexpr ngx_msec_t shortest_lease = 100;

ngx_conf_enum_t key_formats[] = {
    {ngx_string("any"), 0},
    {ngx_string("uuid"), 1},
    {ngx_null_string, 0},
};

ngx_conf_enum_t fingerprint_modes[] = {
    {ngx_string("auto"), static_cast<ngx_uint_t>(fingerprint_mode::automatic)},
    {ngx_string("raw"), static_cast<ngx_uint_t>(fingerprint_mode::raw)},
    {ngx_string("off"), static_cast<ngx_uint_t>(fingerprint_mode::off)},
    {ngx_null_string, 0},
};

ngx_conf_enum_t unknown_outcomes[] = {
    {ngx_string("hold"), 0},
    {ngx_string("release"), 1},
    {ngx_null_string, 0},
};

ngx_conf_enum_t store_failures[] = {
    {ngx_string("reject"), 0},
    {ngx_string("pass"), 1},
    {ngx_null_string, 0},
};

ngx_conf_enum_t replay_modes[] = {
    {ngx_string("response"), 0},
    {ngx_string("empty"), 1},
    {ngx_null_string, 0},
};

ngx_conf_enum_t log_levels[] = {
    {ngx_string("info"), NGX_LOG_INFO},
    {ngx_string("notice"), NGX_LOG_NOTICE},
    {ngx_string("warn"), NGX_LOG_WARN},
    {ngx_string("error"), NGX_LOG_ERR},
    {ngx_null_string, 0},
};

char *
set_choice(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    auto &slot = field_of<ngx_uint_t>(conf, cmd);
    ngx_str_t &value = arguments(cf)[0];
    auto *choices = static_cast<ngx_conf_enum_t *>(cmd->post);

    if (slot != NGX_CONF_UNSET_UINT) {
        return duplicate;
    }

    for (ngx_conf_enum_t *c = choices; c->name.len != 0; c++) {
        if (view(c->name) == view(value)) {
            slot = c->value;
            return NGX_CONF_OK;
        }
    }

    u_char text[128];
    u_char *p = text;

    for (ngx_conf_enum_t *c = choices; c->name.len != 0; c++) {
        p = ngx_slprintf(p, text + sizeof(text), "%s\"%V\"",
                         c == choices ? "" : " or ", &c->name);
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" in \"%V\" directive, it must be "
                       "%*s",
                       &value, &cmd->name, static_cast<size_t>(p - text),
                       text);
    return failed;
}


char *
set_time(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    auto &slot = field_of<ngx_msec_t>(conf, cmd);
    ngx_str_t &value = arguments(cf)[0];

    if (slot != NGX_CONF_UNSET_MSEC) {
        return duplicate;
    }

    ngx_int_t time = ngx_parse_time(&value, 0);

    if (time == NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid time \"%V\" in \"%V\" directive, write a "
                           "number with a unit, e.g. \"500ms\", \"30s\" or "
                           "\"5m\"",
                           &value, &cmd->name);
        return failed;
    }

    slot = static_cast<ngx_msec_t>(time);
    return NGX_CONF_OK;
}


char *
set_lease(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char *rv = set_time(cf, cmd, conf);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    if (field_of<ngx_msec_t>(conf, cmd) < shortest_lease) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"idempotency_lease\" must be at least \"%Mms\"",
                           shortest_lease);
        return failed;
    }

    return NGX_CONF_OK;
}


char *
set_size(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    auto &slot = field_of<std::size_t>(conf, cmd);
    ngx_str_t &value = arguments(cf)[0];

    if (slot != NGX_CONF_UNSET_SIZE) {
        return duplicate;
    }

    ssize_t size = ngx_parse_size(&value);

    if (size == NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid size \"%V\" in \"%V\" directive, write "
                           "e.g. \"64k\" or \"1m\"",
                           &value, &cmd->name);
        return failed;
    }

    slot = static_cast<std::size_t>(size);
    return NGX_CONF_OK;
}


char *
set_replay_header(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    ngx_str_t &value = arguments(cf)[0];

    if (conf->replay_header.data != nullptr) {
        return duplicate;
    }

    if (view(value) == "off") {
        ngx_str_set(&conf->replay_header, "");
        return NGX_CONF_OK;
    }

    if (!is_header_name(view(value))) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid header name \"%V\" in "
                           "\"idempotency_replay_header\" directive, write a "
                           "name, or \"off\"",
                           &value);
        return failed;
    }

    conf->replay_header = value;
    return NGX_CONF_OK;
}


char *check_header_lists(ngx_conf_t *cf, const location_conf *conf);


char *
set_header_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_array_t *names = open_list<ngx_str_t>(
        cf, field_of<ngx_array_t *>(conf, cmd));

    if (names == nullptr) {
        return failed;
    }

    for (ngx_str_t &name : arguments(cf)) {

        if (!is_header_name(view(name))) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid header name \"%V\" in \"%V\" "
                               "directive, write e.g. \"X-Trace-Id\"",
                               &name, &cmd->name);
            return failed;
        }

        if (!append(names, name)) {
            return failed;
        }
    }

    return check_header_lists(cf, static_cast<location_conf *>(conf));
}


/* On one level the two lists contradict each other; a lower one may. */
char *
check_header_lists(ngx_conf_t *cf, const location_conf *conf)
{
    if (conf->hide_headers == NGX_CONF_UNSET_PTR
        || conf->pass_headers == NGX_CONF_UNSET_PTR)
    {
        return NGX_CONF_OK;
    }

    for (const ngx_str_t &name : arguments(cf)) {

        if (has_name(conf->hide_headers, name)
            && has_name(conf->pass_headers, name)) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "header \"%V\" is in "
                               "\"idempotency_hide_header\" and in "
                               "\"idempotency_pass_header\": remove it from "
                               "one of them",
                               &name);
            return failed;
        }
    }

    return NGX_CONF_OK;
}


constexpr ngx_uint_t anywhere = NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF
                                | NGX_HTTP_LOC_CONF;

}


ngx_command_t commands[] = {

    {ngx_string("idempotency_store"), NGX_HTTP_MAIN_CONF | NGX_CONF_2MORE,
     set_store, NGX_HTTP_MAIN_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency"), anywhere | NGX_CONF_TAKE1, set_idempotency,
     NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_scope"), anywhere | NGX_CONF_1MORE, set_scope,
     NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_scope_route"), anywhere | NGX_CONF_1MORE,
     set_scope_route, NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_key"), anywhere | NGX_CONF_1MORE, set_key,
     NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_key_length"), anywhere | NGX_CONF_TAKE1,
     set_key_length, NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_key_format"), anywhere | NGX_CONF_TAKE1,
     set_choice, NGX_HTTP_LOC_CONF_OFFSET, offsetof(location_conf, key_uuid),
     key_formats},

    {ngx_string("idempotency_first_sent"), anywhere | NGX_CONF_TAKE1,
     set_first_sent, NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_methods"), anywhere | NGX_CONF_1MORE, set_methods,
     NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_strict_methods"), anywhere | NGX_CONF_FLAG,
     ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, strict_methods), nullptr},

    {ngx_string("idempotency_required"), anywhere | NGX_CONF_FLAG,
     ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, required), nullptr},

    {ngx_string("idempotency_bypass"), anywhere | NGX_CONF_1MORE, set_bypass,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(location_conf, bypass), nullptr},

    {ngx_string("idempotency_dry_run"), anywhere | NGX_CONF_FLAG,
     ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, dry_run), nullptr},

    {ngx_string("idempotency_fingerprint"), anywhere | NGX_CONF_TAKE1,
     set_choice, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, fingerprint), fingerprint_modes},

    {ngx_string("idempotency_fingerprint_include"), anywhere | NGX_CONF_1MORE,
     set_pointers, NGX_HTTP_LOC_CONF_OFFSET, offsetof(location_conf, include),
     nullptr},

    {ngx_string("idempotency_fingerprint_exclude"), anywhere | NGX_CONF_1MORE,
     set_pointers, NGX_HTTP_LOC_CONF_OFFSET, offsetof(location_conf, exclude),
     nullptr},

    {ngx_string("idempotency_jsonrpc"), anywhere | NGX_CONF_FLAG,
     ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, jsonrpc), nullptr},

    {ngx_string("idempotency_ttl"), anywhere | NGX_CONF_1MORE, set_ttl,
     NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_unknown_status"), anywhere | NGX_CONF_1MORE,
     set_unknown_status, NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_unknown_outcome"), anywhere | NGX_CONF_TAKE1,
     set_choice, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, release_unknown), unknown_outcomes},

    {ngx_string("idempotency_lease"), anywhere | NGX_CONF_TAKE1, set_lease,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(location_conf, lease), nullptr},

    {ngx_string("idempotency_abort_timeout"), anywhere | NGX_CONF_TAKE1,
     set_time, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, abort_timeout), nullptr},

    {ngx_string("idempotency_wait"), anywhere | NGX_CONF_TAKE1, set_time,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(location_conf, wait), nullptr},

    {ngx_string("idempotency_retry_after"), anywhere | NGX_CONF_TAKE1,
     set_time, NGX_HTTP_LOC_CONF_OFFSET, offsetof(location_conf, retry_after),
     nullptr},

    {ngx_string("idempotency_store_failure"), anywhere | NGX_CONF_TAKE1,
     set_choice, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, pass_store_failure), store_failures},

    {ngx_string("idempotency_replay"), anywhere | NGX_CONF_TAKE1, set_choice,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(location_conf, replay_empty),
     replay_modes},

    {ngx_string("idempotency_replay_header"), anywhere | NGX_CONF_TAKE1,
     set_replay_header, NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_hide_header"), anywhere | NGX_CONF_1MORE,
     set_header_names, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, hide_headers), nullptr},

    {ngx_string("idempotency_pass_header"), anywhere | NGX_CONF_1MORE,
     set_header_names, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, pass_headers), nullptr},

    {ngx_string("idempotency_max_response"), anywhere | NGX_CONF_TAKE1,
     set_size, NGX_HTTP_LOC_CONF_OFFSET, offsetof(location_conf, max_response),
     nullptr},

    {ngx_string("idempotency_hold"), anywhere | NGX_CONF_FLAG,
     ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, hold), nullptr},

    {ngx_string("idempotency_app_control"), anywhere | NGX_CONF_FLAG,
     ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(location_conf, app_control), nullptr},

    {ngx_string("idempotency_error"), anywhere | NGX_CONF_TAKE2, set_error,
     NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_error_body"), anywhere | NGX_CONF_2MORE,
     set_error_body, NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_docs"), anywhere | NGX_CONF_TAKE1, set_docs,
     NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_log_level"), anywhere | NGX_CONF_TAKE1,
     set_choice, NGX_HTTP_LOC_CONF_OFFSET, offsetof(location_conf, log_level),
     log_levels},

    {ngx_string("idempotency_admin"), NGX_HTTP_LOC_CONF | NGX_CONF_NOARGS,
     set_admin, NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_status_zone"),
     NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF | NGX_CONF_TAKE1, set_status_zone,
     NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    {ngx_string("idempotency_status"),
     NGX_HTTP_LOC_CONF | NGX_CONF_NOARGS | NGX_CONF_TAKE1, set_status,
     NGX_HTTP_LOC_CONF_OFFSET, 0, nullptr},

    ngx_null_command,
};

}
