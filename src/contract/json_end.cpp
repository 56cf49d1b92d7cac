#include "contract/json_end.h"

#include <algorithm>

namespace idempotency {

void
json_end::feed(std::string_view bytes)
{
    for (char c : bytes) {
        take(c);
    }
}


bool
json_end::is_cut_off() const
{
    if (no_json_) {
        return false;
    }

    if (in_string_ || depth_ != 0 || seen_ == 0) {
        return true;
    }

    std::string_view start(start_.data(), std::min(seen_, start_.size()));

    for (std::string_view word : {"true", "false", "null"}) {
        if (start.size() < word.size() && word.starts_with(start)) {
            return true;
        }
    }

    return false;
}


void
json_end::take(char c)
{
    if (in_string_) {
        in_string_ = escaped_ || c != '"';
        escaped_ = !escaped_ && c == '\\';
        return;
    }

    switch (c) {

    case ' ':
    case '\t':
    case '\r':
    case '\n': return;

    case '"': in_string_ = true; break;

    case '{':
    case '[': depth_++; break;

    case '}':
    case ']':
        if (depth_ == 0) {
            no_json_ = true;
            return;
        }

        depth_--;
        break;

    default: break;
    }

    if (seen_ < start_.size()) {
        start_[seen_] = c;
    }

    seen_++;
}

}
