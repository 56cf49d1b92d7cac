#include "json_check.h"

using namespace idempotency;

namespace {

/* The inverse of parse_pointer(). */
std::string
spelled(std::span<const std::string_view> segments)
{
    std::string text;

    for (std::string_view segment : segments) {
        text += '/';
        for (char c : segment) {
            text += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
        }
    }

    return text;
}

}


/* Lines that are pointers, as long as they begin with "/"; then a body. */
extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    static json_parser parser;
    std::string_view rest = text_of(data, size);
    std::vector<std::vector<std::string_view>> segments;
    std::vector<std::unique_ptr<char[]>> storage;
    std::vector<json_pointer> pointers;

    while (rest.starts_with('/') && pointers.size() < 70) {
        std::string_view text = rest.substr(0, rest.find('\n'));
        std::size_t count;

        rest.remove_prefix(std::min(text.size() + 1, rest.size()));
        segments.emplace_back(count_segments(text));
        storage.emplace_back(new char[text.size()]);

        if (!parse_pointer(text, segments.back(),
                           {storage.back().get(), text.size()}, count))
        {
            continue;
        }

        check(count == segments.back().size(), "all segments are there");
        check(spelled(segments.back()) == text, "no segment is lost");
        pointers.push_back({segments.back()});
    }

    auto document = oracle::reader(rest).document();
    auto most = std::min(pointers.size(), max_pointers);
    oracle::pointers all(pointers.data(), most);

    for (std::size_t split : {std::size_t{0}, most / 2, most}) {
        json_rules rules;

        rules.include = all.subspan(0, split);
        rules.exclude = all.subspan(split);

        auto got = canonical(parser, rest, rules);

        check(got.has_value() == document.has_value(), "rules accept no more");

        if (got) {
            check(*got
                      == digest_of(oracle::form_of(*document, rules.include,
                                                   rules.exclude)),
                  "both give the same form by rules");
        }
    }

    return 0;
}
