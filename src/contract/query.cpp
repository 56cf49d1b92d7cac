#include "contract/query.h"

#include "contract/ascii.h"

#include <algorithm>

namespace idempotency {

namespace {

std::string_view decode(std::string_view text, char *&out);

}


std::size_t
count_query_fields(std::string_view text)
{
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '&'))
           + 1;
}


void
read_query_fields(std::string_view text, std::span<query_field> fields,
                  std::span<char> room)
{
    char *out = room.data();

    for (query_field &f : fields) {
        std::string_view pair = text.substr(0, text.find('&'));
        std::size_t equals = std::min(pair.find('='), pair.size());

        f.name = decode(pair.substr(0, equals), out);
        f.value = decode(pair.substr(std::min(equals + 1, pair.size())), out);
        text.remove_prefix(std::min(pair.size() + 1, text.size()));
    }
}


namespace {

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
