#include "contract/json_finder.h"

#include "contract/ascii.h"
#include "contract/json_tokens.h"

#include <algorithm>
#include <charconv>

namespace idempotency {

namespace {

constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
constexpr std::size_t word_bits = 64;

bool is_plain(char c);

}


json_finder::json_finder(std::span<json_target> targets, std::span<char> token)
    : targets_(targets), token_(token), any_next_(true)
{
    for (json_target &target : targets_) {
        target.next = true;
    }
}


void
json_finder::feed(std::string_view piece)
{
    const char *at = piece.data();
    const char *end = at + piece.size();

    while (at != end) {
        switch (state_) {

        case state::string: at = read_string(at, end); break;

        case state::minus:
        case state::zero:
        case state::digits:
        case state::point:
        case state::fraction:
        case state::exponent_mark:
        case state::exponent_sign:
        case state::exponent: at = read_number(at, end); break;

        case state::failed:
        case state::no_memory: return;

        default: step(*at++); at_++;
        }
    }
}


json_text
json_finder::finish()
{
    /* Only its end tells that a number was all of the text. */
    if (depth_ == 0 && is_whole(state_)) {
        return json_text::complete;
    }

    switch (state_) {

    case state::behind_document: return json_text::complete;
    case state::start: return at_ == 0 ? json_text::empty : json_text::broken;
    case state::no_memory: return json_text::no_memory;
    default: return json_text::broken;
    }
}


void
json_finder::step(char c)
{
    switch (state_) {

    case state::escape:
    case state::hex_digit: step_escape(c); return;

    case state::literal: step_literal(c); return;

    case state::start:
        if (at_ == 0 && c == byte_order_mark[0]) {
            state_ = state::mark;
            return;
        }

        break;

    case state::mark:
        state_ = c != byte_order_mark[at_]           ? state::failed
                 : at_ + 1 == byte_order_mark.size() ? state::value
                                                     : state::mark;
        return;

    default: break;
    }

    if (!is_json_space(c)) {
        step_between(c);
    }
}


/* A byte outside of strings, numbers and words. */
void
json_finder::step_between(char c)
{
    switch (state_) {

    case state::first_value:
        if (c == ']') {
            end_container(c);
            return;
        }

        [[fallthrough]];

    case state::start:
    case state::value: step_value(c); return;

    case state::first_name:
        if (c == '}') {
            end_container(c);
            return;
        }

        [[fallthrough]];

    case state::name:
        if (c == '"') {
            begin_string(true);
            return;
        }

        break;

    case state::colon:
        if (c == ':') {
            state_ = state::value;
            return;
        }

        break;

    case state::behind_value:
        if (c != ',') {
            end_container(c);
            return;
        }

        state_ = in_object() ? state::name : state::value;
        return;

    default: break;
    }

    state_ = state::failed;
}


void
json_finder::step_value(char c)
{
    begin_value(c);

    switch (c) {

    case '{':
    case '[': begin_container(c == '{'); return;

    case '"': begin_string(false); return;

    case 't': literal_ = "rue"; break;
    case 'f': literal_ = "alse"; break;
    case 'n': literal_ = "ull"; break;

    case '-': state_ = state::minus; return;
    case '0': state_ = state::zero; return;

    default: state_ = is_digit(c) ? state::digits : state::failed; return;
    }

    state_ = state::literal;
}


void
json_finder::step_literal(char c)
{
    if (c != literal_.front()) {
        state_ = state::failed;
        return;
    }

    literal_.remove_prefix(1);

    if (literal_.empty()) {
        end_value(at_ + 1);
    }
}


void
json_finder::step_escape(char c)
{
    capture(&c, &c + 1);

    if (state_ == state::escape) {
        count_ = 0;
        state_ = c == 'u'                     ? state::hex_digit
                 : is_one_of(c, "\"\\/bfnrt") ? state::string
                                              : state::failed;
        return;
    }

    if (!is_hex(c)) {
        state_ = state::failed;

    } else if (++count_ == 4) {
        state_ = state::string;
    }
}


/* Up to the end of the string, or to its next escape. */
const char *
json_finder::read_string(const char *at, const char *end)
{
    const char *stop = std::find_if_not(at, end, is_plain);

    at_ += static_cast<std::size_t>(stop - at);

    if (stop == end) {
        capture(at, stop);
        return stop;
    }

    if (*stop == '"') {
        capture(at, stop);
        end_string();

    } else if (*stop == '\\') {
        capture(at, stop + 1);
        escaped_ = true;
        state_ = state::escape;

    } else {
        state_ = state::failed;
    }

    at_++;
    return stop + 1;
}


/* Up to the byte behind the number, which is not taken. */
const char *
json_finder::read_number(const char *at, const char *end)
{
    for (/* void */; at != end; at++, at_++) {
        state next = continued(state_, *at);

        if (next != state::failed) {
            state_ = next;
            continue;
        }

        if (!is_whole(state_)) {
            state_ = state::failed;
            return end;
        }

        end_value(at_);
        return at;
    }

    return at;
}


/* The state of a number that goes on with c; failed: it does not. */
json_finder::state
json_finder::continued(state number, char c)
{
    bool digit = is_digit(c);
    bool mark = c == 'e' || c == 'E';

    switch (number) {

    case state::minus:
        return c == '0' ? state::zero : digit ? state::digits : state::failed;

    case state::digits:
        if (digit) {
            return state::digits;
        }

        [[fallthrough]];

    case state::zero:
        return c == '.' ? state::point
               : mark   ? state::exponent_mark
                        : state::failed;

    case state::fraction:
        if (mark) {
            return state::exponent_mark;
        }

        [[fallthrough]];

    case state::point: return digit ? state::fraction : state::failed;

    case state::exponent_mark:
        if (c == '+' || c == '-') {
            return state::exponent_sign;
        }

        [[fallthrough]];

    default: return digit ? state::exponent : state::failed;
    }
}


bool
json_finder::is_whole(state number)
{
    return number == state::zero || number == state::digits
           || number == state::fraction || number == state::exponent;
}


/* A value that begins with c is not yet counted in depth_. */
void
json_finder::begin_value(char c)
{
    bool container = c == '{' || c == '[';

    if (depth_ != 0 && depth_ == watched_ && !in_object()) {
        match_element();
    }

    if (!any_next_) {
        return;
    }

    any_next_ = false;

    for (json_target &target : targets_) {
        if (!target.next) {
            continue;
        }

        target.next = false;

        if (target.pointer.segments.size() == depth_) {
            target.first = c;
            target.place.at = at_;
            target.inside = true;
            any_inside_ = true;

        } else if (container) {
            target.open = depth_ + 1;
            watched_ = depth_ + 1;
            element_ = 0;
        }
    }
}


/* The value has ended before this place in the text. */
void
json_finder::end_value(std::size_t end)
{
    state_ = depth_ == 0 ? state::behind_document : state::behind_value;

    if (!any_inside_) {
        return;
    }

    any_inside_ = false;

    for (json_target &target : targets_) {
        if (target.inside && target.pointer.segments.size() == depth_) {
            target.inside = false;
            target.place.size = end - target.place.at;
            target.found = json_target::result::found;
        }

        any_inside_ |= target.inside;
    }
}


void
json_finder::begin_container(bool object)
{
    std::size_t word = depth_ / word_bits;
    std::uint64_t bit = std::uint64_t{1} << depth_ % word_bits;

    if (depth_ == max_depth) {
        state_ = state::failed;
        return;
    }

    if (word >= levels_.size() + deeper_.size() && !deeper_.push(0)) {
        state_ = state::no_memory;
        return;
    }

    std::uint64_t &levels = word < levels_.size()
                                ? levels_[word]
                                : deeper_[word - levels_.size()];

    levels = object ? levels | bit : levels & ~bit;
    depth_++;
    state_ = object ? state::first_name : state::first_value;
}


void
json_finder::end_container(char c)
{
    if (c != (in_object() ? '}' : ']')) {
        state_ = state::failed;
        return;
    }

    if (depth_ == watched_) {
        leave_path();
    }

    depth_--;
    end_value(at_ + 1);
}


/* The container that ends now is on the path of a target. */
void
json_finder::leave_path()
{
    watched_--;

    for (json_target &target : targets_) {
        if (target.open != depth_) {
            continue;
        }

        target.open = watched_;

        if (watched_ == 0) {
            continue;
        }

        /* If it was an element of an array, its index is the segment. */
        std::string_view index = target.pointer.segments[watched_ - 1];

        element_ = 0;
        std::from_chars(index.data(), index.data() + index.size(), element_);
        element_++;
    }
}


bool
json_finder::in_object() const
{
    std::size_t level = depth_ - 1;
    std::size_t word = level / word_bits;
    std::uint64_t levels = word < levels_.size()
                               ? levels_[word]
                               : deeper_[word - levels_.size()];

    return (levels >> level % word_bits & 1) != 0;
}


void
json_finder::begin_string(bool is_name)
{
    state_ = state::string;
    is_name_ = is_name;
    token_size_ = 0;
    overflow_ = false;
    escaped_ = false;
    capturing_ = is_name && depth_ == watched_;

    if (is_name || !any_inside_) {
        return;
    }

    for (const json_target &target : targets_) {
        capturing_ |= target.inside && !target.out.empty()
                      && target.pointer.segments.size() == depth_;
    }
}


void
json_finder::end_string()
{
    if (is_name_) {
        state_ = state::colon;

        if (capturing_) {
            match_name();
        }

        return;
    }

    if (capturing_) {
        keep_text();
    }

    end_value(at_ + 1);
}


void
json_finder::match_name()
{
    std::string_view name;

    /* Half of a surrogate pair is in no segment. */
    if (!captured(name)) {
        return;
    }

    for (json_target &target : targets_) {
        if (target.open == depth_
            && target.pointer.segments[depth_ - 1] == name) {
            follow(target);
        }
    }
}


void
json_finder::match_element()
{
    std::array<char, 20> digits;
    auto end = std::to_chars(digits.begin(), digits.end(), element_++).ptr;
    std::string_view index(digits.data(),
                           static_cast<std::size_t>(end - digits.data()));

    for (json_target &target : targets_) {
        if (target.open == depth_
            && target.pointer.segments[depth_ - 1] == index) {
            follow(target);
        }
    }
}


/* The next value is what the target's segment at this depth names. */
void
json_finder::follow(json_target &target)
{
    if (target.reached >= depth_) {
        target.found = json_target::result::repeated;
        return;
    }

    target.reached = depth_;
    target.next = true;
    any_next_ = true;
}


void
json_finder::capture(const char *at, const char *end)
{
    auto size = static_cast<std::size_t>(end - at);

    if (!capturing_) {
        return;
    }

    if (size > token_.size() - token_size_) {
        overflow_ = true;
        return;
    }

    std::copy(at, end, token_.data() + token_size_);
    token_size_ += size;
}


/* False: the token was too long, or has half of a surrogate pair. */
bool
json_finder::captured(std::string_view &text)
{
    char *end = token_.data() + token_size_;

    if (overflow_) {
        return false;
    }

    if (escaped_) {
        end = unescape_json(token_.data(), token_.data(), end);

        if (end == nullptr) {
            return false;
        }
    }

    text = {token_.data(), static_cast<std::size_t>(end - token_.data())};
    return true;
}


/* The string that ends now is the value of a target, or of several. */
void
json_finder::keep_text()
{
    std::string_view text;
    bool readable = captured(text);

    for (json_target &target : targets_) {
        if (!target.inside || target.pointer.segments.size() != depth_) {
            continue;
        }

        target.readable = readable && text.size() <= target.out.size();

        if (target.readable) {
            std::copy(text.begin(), text.end(), target.out.data());
            target.text = {target.out.data(), text.size()};
        }
    }
}


namespace {

/* What a string has besides its end and escapes. */
bool
is_plain(char c)
{
    return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\';
}

}

}
