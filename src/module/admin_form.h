#pragma once

#include "contract/query.h"
#include "ngx.h"

#include <charconv>
#include <optional>

namespace idempotency {

/* Fields of a query string or of an urlencoded body, decoded. */
class admin_form {
public:
    /* False: no memory, or more fields than an administrator needs. */
    bool parse(ngx_pool_t *pool, std::string_view text);

    /* The first of that name. */
    std::optional<std::string_view> find(std::string_view name) const;

    /* The value, or what stands for it where it is missing. */
    std::string_view get(std::string_view name,
                         std::string_view otherwise = {}) const
    {
        return find(name).value_or(otherwise);
    }

    std::span<const query_field> fields() const { return fields_; }

private:
    std::span<query_field> fields_;
};


template <class T>
bool
read_number(std::string_view text, T &out)
{
    const char *end = text.data() + text.size();
    std::from_chars_result parsed = std::from_chars(text.data(), end, out);

    return parsed.ec == std::errc() && parsed.ptr == end;
}

}
