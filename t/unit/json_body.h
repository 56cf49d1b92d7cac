#pragma once

#include "contract/json.h"

#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/*
 * What the tests of JSON have in common.  A body is put into memory of just
 * its size and padding, and the padding is filled with what could be taken
 * for more of the body: a reader that goes beyond either is found out.
 */
class json_body {
public:
    explicit json_body(std::string_view text, char filler = '1')
        : memory_(new char[text.size() + idempotency::json_padding]),
          size_(text.size())
    {
        std::memcpy(memory_.get(), text.data(), text.size());
        std::memset(memory_.get() + size_, filler, idempotency::json_padding);
    }

    std::string_view view() const { return {memory_.get(), size_}; }

private:
    std::unique_ptr<char[]> memory_;
    std::size_t size_;
};


/* Pointers as the configuration would hold them. */
class pointer_list {
public:
    pointer_list(std::initializer_list<std::string_view> texts)
    {
        for (std::string_view text : texts) {
            auto &segments = segments_.emplace_back(
                idempotency::count_segments(text));
            auto &storage = storage_.emplace_back(text.size(), '\0');
            std::size_t count;

            if (idempotency::parse_pointer(text, segments, storage, count)) {
                pointers_.push_back({{segments.data(), count}});
            }
        }
    }

    operator std::span<const idempotency::json_pointer>() const
    {
        return pointers_;
    }

    const idempotency::json_pointer &operator[](std::size_t i) const
    {
        return pointers_[i];
    }

    std::size_t size() const { return pointers_.size(); }

private:
    std::list<std::vector<std::string_view>> segments_;
    std::list<std::string> storage_;
    std::vector<idempotency::json_pointer> pointers_;
};


/* A digest that can be compared and printed; other words where it is none. */
inline std::string
json_digest(idempotency::json_parser &parser, std::string_view body,
            const idempotency::json_rules &rules = {}, char filler = '1')
{
    using namespace idempotency;

    json_body padded(body, filler);
    hasher hash;
    digest d;

    hash.start("test");

    switch (canonical_json(parser, padded.view(), rules, hash)) {
    case json_result::ok: break;
    case json_result::not_json: return "not json";
    case json_result::no_memory: return "no memory";
    }

    if (!hash.finish(d)) {
        return "failed";
    }

    return {d.begin(), d.end()};
}
