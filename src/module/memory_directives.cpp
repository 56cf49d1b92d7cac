#include "module/directives.h"
#include "store/memory.h"

namespace idempotency {

namespace {

constexpr std::string_view scheme = "memory:";
constexpr ngx_msec_t shortest_interval = 10;

/* Which parameters were there. */
struct parameters_seen {
    bool file = false;
    bool sync = false;
};


bool set_parameter(ngx_conf_t *cf, const ngx_str_t &name,
                   const ngx_str_t &parameter, memory_settings &how,
                   parameters_seen &seen);
bool set_file(ngx_conf_t *cf, const ngx_str_t &name, std::string_view path,
              memory_settings &how);
bool set_sync(ngx_conf_t *cf, const ngx_str_t &name, std::string_view when,
              memory_settings &how);

}


bool
is_memory(const ngx_str_t &url)
{
    return view(url).starts_with(scheme);
}


store *
open_memory_store(ngx_conf_t *cf, const ngx_str_t &name, const ngx_str_t &url,
                  std::span<ngx_str_t> parameters)
{
    ngx_str_t text = str(view(url).substr(scheme.size()));
    off_t size = ngx_parse_offset(&text);
    memory_settings how = {};
    parameters_seen seen;

    if (size == NGX_ERROR || size < static_cast<off_t>(8 * ngx_pagesize)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid size \"%V\" of idempotency store \"%V\", "
                           "write e.g. \"memory:64m\", at least "
                           "\"memory:%uzk\"",
                           &text, &name, 8 * ngx_pagesize / 1024);
        return nullptr;
    }

    how.size = static_cast<std::size_t>(size);

    for (ngx_str_t &parameter : parameters) {

        if (!set_parameter(cf, name, parameter, how, seen)) {
            return nullptr;
        }
    }

    if (seen.sync && !seen.file) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"sync\" of idempotency store \"%V\" needs "
                           "\"file=PATH\": without a file there is no disk",
                           &name);
        return nullptr;
    }

    return make_memory_store(cf, name, how);
}


namespace {

bool
set_parameter(ngx_conf_t *cf, const ngx_str_t &name,
              const ngx_str_t &parameter, memory_settings &how,
              parameters_seen &seen)
{
    constexpr std::string_view file = "file=";
    constexpr std::string_view sync = "sync=";
    std::string_view text = view(parameter);
    bool is_file = text.starts_with(file) && text.size() > file.size();
    bool is_sync = text.starts_with(sync);

    if (!is_file && !is_sync) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown parameter \"%V\" of idempotency store "
                           "\"%V\", a memory store has only \"file=PATH\" "
                           "and \"sync=off|always|TIME\"",
                           &parameter, &name);
        return false;
    }

    if (is_file ? seen.file : seen.sync) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate parameter \"%V\" of idempotency store "
                           "\"%V\"",
                           &parameter, &name);
        return false;
    }

    (is_file ? seen.file : seen.sync) = true;

    return is_file ? set_file(cf, name, text.substr(file.size()), how)
                   : set_sync(cf, name, text.substr(sync.size()), how);
}


/* Two stores on one file would be one store, with two sets of rules. */
bool
set_file(ngx_conf_t *cf, const ngx_str_t &name, std::string_view path,
         memory_settings &how)
{
    auto *main = static_cast<main_conf *>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module));

    how.file = str(path);

    if (ngx_conf_full_name(cf->cycle, &how.file, 0) != NGX_OK) {
        return false;
    }

    for (named_store *other : elements<named_store *>(&main->stores)) {

        if (view(other->name) == view(name)) {
            other->zone_file = how.file;

        } else if (view(other->zone_file) == view(how.file)) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "file \"%V\" of idempotency store \"%V\" is "
                               "already used by store \"%V\"",
                               &how.file, &name, &other->name);
            return false;
        }
    }

    return true;
}


bool
set_sync(ngx_conf_t *cf, const ngx_str_t &name, std::string_view when,
         memory_settings &how)
{
    if (when == "off") {
        how.sync = sync_when::by_system;
        return true;
    }

    if (when == "always") {
        how.sync = sync_when::always;
        return true;
    }

    ngx_str_t text = str(when);
    ngx_int_t time = ngx_parse_time(&text, 0);

    if (time == NGX_ERROR || static_cast<ngx_msec_t>(time) < shortest_interval)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid \"sync=%V\" of idempotency store \"%V\", "
                           "write \"off\", \"always\" or a time such as "
                           "\"1s\", at least \"%Mms\"",
                           &text, &name, shortest_interval);
        return false;
    }

    how.sync = sync_when::at_intervals;
    how.sync_interval = static_cast<ngx_msec_t>(time);

    return true;
}

}

}
