#include "module/headers.h"

namespace idempotency {

unsigned
find_header(ngx_http_request_t *r, const ngx_str_t &name, ngx_str_t &value)
{
    unsigned found = 0;

    each_field(r->headers_in.headers, [&](ngx_table_elt_t &h) {
        if (h.key.len == name.len
            && ngx_strncmp(h.lowcase_key, name.data, name.len) == 0
            && found++ == 0)
        {
            value = h.value;
        }
    });

    return found;
}


/* Not application/grpc-web, which has its trailers in its body. */
bool
is_grpc_type(std::string_view type)
{
    constexpr std::string_view grpc = "application/grpc";

    return same_name(type.substr(0, grpc.size()), grpc)
           && (type.size() == grpc.size() || type[grpc.size()] == '+'
               || type[grpc.size()] == ';');
}


/* Also its forms: -text, +proto, -text+proto. */
bool
is_grpc_web_type(std::string_view type)
{
    constexpr std::string_view web = "application/grpc-web";

    return same_name(type.substr(0, web.size()), web);
}


bool
is_event_stream(std::string_view type)
{
    return same_name(type.substr(0, type.find_first_of("; ")),
                     "text/event-stream");
}

}
