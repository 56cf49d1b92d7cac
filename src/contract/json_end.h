#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace idempotency {

/*
 * Tells whether a JSON text was cut off: fed with its bytes, in pieces, it
 * follows strings and brackets.  It knows every beginning of a document that
 * is not all of it, but for a number that stands alone.  What is no JSON is
 * not cut off.
 */
class json_end {
public:
    void feed(std::string_view bytes);

    /* There were no more bytes, and the document has not ended. */
    bool is_cut_off() const;

private:
    void take(char c);

    std::size_t depth_ = 0;
    bool in_string_ = false;
    bool escaped_ = false;
    bool no_json_ = false;
    std::array<char, 8> start_ = {}; /* the first of it, but for space */
    std::size_t seen_ = 0;
};

}
