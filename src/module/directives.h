#pragma once

#include "contract/ascii.h"
#include "contract/json.h"
#include "module/config.h"

#include <algorithm>

namespace idempotency {

/* What a directive's setter returns. */
inline char *const failed = static_cast<char *>(NGX_CONF_ERROR);
inline char *const duplicate = const_cast<char *>("is duplicate");


template <class T>
T &
field_of(void *conf, const ngx_command_t *cmd)
{
    return *reinterpret_cast<T *>(static_cast<char *>(conf) + cmd->offset);
}


inline std::span<ngx_str_t>
arguments(ngx_conf_t *cf)
{
    return elements<ngx_str_t>(cf->args).subspan(1);
}


/* The list behind a field, made when the level's first line is read. */
template <class T>
ngx_array_t *
open_list(ngx_conf_t *cf, ngx_array_t *&list)
{
    if (list == NGX_CONF_UNSET_PTR) {
        list = ngx_array_create(cf->pool, 4, sizeof(T));
    }

    return list;
}


inline conf_line
line_of(ngx_conf_t *cf)
{
    return {cf->conf_file->file.name, cf->conf_file->line};
}


/* Of the name of a variable. */
inline bool
is_variable_name(char c)
{
    return is_alphanumeric(c) || c == '_';
}


inline bool
has_name(const ngx_array_t *names, const ngx_str_t &name)
{
    auto all = elements<ngx_str_t>(names);

    return std::any_of(all.begin(), all.end(), [&](const ngx_str_t &n) {
        return same_name(view(n), view(name));
    });
}


inline bool
compile(ngx_conf_t *cf, ngx_str_t &text, ngx_http_complex_value_t &value)
{
    ngx_http_compile_complex_value_t ccv;

    ngx_memzero(&ccv, sizeof(ccv));
    ccv.cf = cf;
    ccv.value = &text;
    ccv.complex_value = &value;

    return ngx_http_compile_complex_value(&ccv) == NGX_OK;
}


inline bool
is_header_name(std::string_view name)
{
    constexpr std::string_view separators = "\"(),/:;<=>?@[\\]{}";

    return !name.empty() && std::all_of(name.begin(), name.end(), [&](char c) {
        return c > 0x20 && c < 0x7f
               && separators.find(c) == std::string_view::npos;
    });
}


using setter = char *(ngx_conf_t *, ngx_command_t *, void *);

/* store_directives.cpp */
setter set_store;
setter set_idempotency;
char *define_stores(ngx_conf_t *cf, main_conf *main);

/* memory_directives.cpp */
bool is_memory(const ngx_str_t &url);
store *open_memory_store(ngx_conf_t *cf, const ngx_str_t &name,
                         const ngx_str_t &url,
                         std::span<ngx_str_t> parameters);

/* redis_directives.cpp */
bool is_redis(const ngx_str_t &url);
store *open_redis_store(ngx_conf_t *cf, const ngx_str_t &name,
                        const ngx_str_t &url, std::span<ngx_str_t> parameters);

/* key_directives.cpp */
setter set_scope;
setter set_scope_route;
setter set_key;
setter set_key_length;
setter set_first_sent;
setter set_bypass;

/*
 * False, and told how to write it, where a name is meant that nginx ends
 * early: "$http_x-api-key" is "$http_x" and a text, which is never empty.
 */
bool names_are_whole(ngx_conf_t *cf, const ngx_str_t &text);
setter set_methods;
setter set_pointers;

/* admin.cpp */
setter set_admin;

/* status.cpp */
setter set_status_zone;
setter set_status;
char *merge_status_zone(ngx_conf_t *cf, location_conf *prev,
                        location_conf *conf);

/* outcome_directives.cpp */
setter set_ttl;
setter set_unknown_status;

/* error_directives.cpp */
setter set_error;
setter set_error_body;
setter set_docs;

}
