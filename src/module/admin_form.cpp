#include "module/admin_form.h"

#include "contract/ascii.h"

#include <algorithm>

namespace idempotency {

namespace {

constexpr std::size_t field_limit = 256;

std::string_view decode(std::string_view text, char *&out);

}


bool
admin_form::parse(ngx_pool_t *pool, std::string_view text)
{
    auto count = static_cast<std::size_t>(
                     std::count(text.begin(), text.end(), '&'))
                 + 1;
    auto room = make_array<char>(pool, text.size());

    fields_ = make_array<form_field>(pool, count);

    if (count > field_limit || room.data() == nullptr
        || fields_.data() == nullptr) {
        return false;
    }

    char *out = room.data();

    for (form_field &f : fields_) {
        std::string_view pair = text.substr(0, text.find('&'));
        std::size_t equals = std::min(pair.find('='), pair.size());

        f.name = decode(pair.substr(0, equals), out);
        f.value = decode(pair.substr(std::min(equals + 1, pair.size())), out);
        text.remove_prefix(std::min(pair.size() + 1, text.size()));
    }

    return true;
}


std::optional<std::string_view>
admin_form::find(std::string_view name) const
{
    for (const form_field &f : fields_) {
        if (f.name == name) {
            return f.value;
        }
    }

    return std::nullopt;
}


namespace {

/* What is no escape stands for itself. */
std::string_view
decode(std::string_view text, char *&out)
{
    char *start = out;

    for (std::size_t i = 0; i < text.size(); i++) {
        char c = text[i];

        if (c == '+') {
            c = ' ';

        } else if (c == '%' && i + 2 < text.size() && is_hex(text[i + 1])
                   && is_hex(text[i + 2]))
        {
            c = static_cast<char>(hex_value(text[i + 1]) * 16
                                  + hex_value(text[i + 2]));
            i += 2;
        }

        *out++ = c;
    }

    return {start, static_cast<std::size_t>(out - start)};
}

}

}
