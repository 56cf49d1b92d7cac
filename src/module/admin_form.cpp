#include "module/admin_form.h"

namespace idempotency {

namespace {

constexpr std::size_t field_limit = 256;

}


bool
admin_form::parse(ngx_pool_t *pool, std::string_view text)
{
    std::size_t count = count_query_fields(text);

    if (count > field_limit) {
        return false;
    }

    auto room = make_array<char>(pool, text.size());

    fields_ = make_array<query_field>(pool, count);

    if (room.data() == nullptr || fields_.data() == nullptr) {
        return false;
    }

    read_query_fields(text, fields_, room);

    return true;
}


std::optional<std::string_view>
admin_form::find(std::string_view name) const
{
    for (const query_field &f : fields_) {
        if (f.name == name) {
            return f.value;
        }
    }

    return std::nullopt;
}

}
