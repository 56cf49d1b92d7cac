#include "contract/accept.h"

#include "contract/ascii.h"

#include <algorithm>

namespace idempotency {

namespace {

/* How narrow a range is that covers a type. */
enum class fit : unsigned char { none, any, major, exact };

std::string_view cut(std::string_view &rest, char separator);
std::string_view trimmed(std::string_view s);
fit fit_of(std::string_view range, std::string_view type);
unsigned quality_in(std::string_view parameters);

}


unsigned
quality_of(std::string_view accept, std::string_view type)
{
    fit best = fit::none;
    unsigned quality = 0;

    while (!accept.empty()) {
        std::string_view rest = cut(accept, ',');
        fit found = fit_of(trimmed(cut(rest, ';')), type);

        if (found > best) {
            best = found;
            quality = quality_in(rest);
        }
    }

    return quality;
}


namespace {

/* What is before the separator; the rest is what comes after it. */
std::string_view
cut(std::string_view &rest, char separator)
{
    std::size_t end = std::min(rest.find(separator), rest.size());
    std::string_view first = rest.substr(0, end);

    rest.remove_prefix(std::min(end + 1, rest.size()));

    return first;
}


std::string_view
trimmed(std::string_view s)
{
    take_while(s, is_blank);

    while (!s.empty() && is_blank(s.back())) {
        s.remove_suffix(1);
    }

    return s;
}


fit
fit_of(std::string_view range, std::string_view type)
{
    if (same_but_for_case(range, type)) {
        return fit::exact;
    }

    if (range == "*/*") {
        return fit::any;
    }

    std::string_view major = type.substr(0, type.find('/') + 1);

    return range.ends_with("/*")
                   && same_but_for_case(range.substr(0, range.size() - 1),
                                        major)
               ? fit::major
               : fit::none;
}


/* 1, or a 0 or 1 with up to three digits after the point. */
unsigned
quality_in(std::string_view parameters)
{
    while (!parameters.empty()) {
        std::string_view p = trimmed(cut(parameters, ';'));

        if (!starts_with_but_for_case(p, "q=")) {
            continue;
        }

        p.remove_prefix(2);

        unsigned quality = p.starts_with('1') ? 1000 : 0;
        unsigned weight = 100;

        for (char c : p.substr(std::min<std::size_t>(p.size(), 2))) {
            if (!is_digit(c)) {
                break;
            }

            quality += static_cast<unsigned>(c - '0') * weight;
            weight /= 10;
        }

        return std::min(quality, 1000u);
    }

    return 1000;
}

}

}
