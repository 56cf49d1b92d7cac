#include "contract/pointer.h"

#include <algorithm>

namespace idempotency {

namespace {

char escaped(std::string_view text, std::size_t at);

}


std::size_t
count_segments(std::string_view text)
{
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '/'));
}


bool
parse_pointer(std::string_view text, std::span<std::string_view> segments,
              std::span<char> storage, std::size_t &count)
{
    count = 0;

    if (text.empty() || text.front() != '/'
        || segments.size() < count_segments(text)
        || storage.size() < text.size())
    {
        return false;
    }

    std::size_t begin = 0;
    std::size_t end = 0;

    for (std::size_t i = 1; i < text.size(); i++) {
        char c = text[i];

        if (c == '/') {
            segments[count++] = {storage.data() + begin, end - begin};
            begin = end;
            continue;
        }

        if (c == '~') {
            c = escaped(text, i++);

            if (c == 0) {
                return false;
            }
        }

        storage[end++] = c;
    }

    segments[count++] = {storage.data() + begin, end - begin};
    return true;
}


bool
has_wildcard(const json_pointer &pointer)
{
    return std::find(pointer.segments.begin(), pointer.segments.end(), "*")
           != pointer.segments.end();
}


namespace {

/* The character that "~0" or "~1" stands for; 0: it is no escape. */
char
escaped(std::string_view text, std::size_t at)
{
    if (at + 1 >= text.size()) {
        return 0;
    }

    switch (text[at + 1]) {
    case '0': return '~';
    case '1': return '/';
    default: return 0;
    }
}

}

}
