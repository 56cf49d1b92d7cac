#include "contract/multipart.h"

#include "contract/ascii.h"

#include <algorithm>

namespace idempotency {

namespace {

constexpr std::string_view line_break = "\r\n";

}


void
multipart_hasher::start(std::string_view boundary)
{
    constexpr std::string_view before = "\r\n--";

    /* That it has no line break is what matching relies on. */
    if (!is_boundary(boundary)) {
        state_ = state::failed;
        return;
    }

    auto rest = std::copy(before.begin(), before.end(), delimiter_.begin());
    std::copy(boundary.begin(), boundary.end(), rest);

    delimiter_size_ = before.size() + boundary.size();
    matched_ = 0;
    count_ = 0;
    state_ = state::first_line;

    parts_.start("idempotency multipart 1");
}


bool
multipart_hasher::feed(std::string_view piece)
{
    while (!piece.empty()) {
        std::size_t taken = 1;

        switch (state_) {
        case state::header: taken = feed_header(piece); break;
        case state::content: taken = feed_content(piece); break;
        case state::failed:
        case state::no_memory: return false;
        default: step(piece.front());
        }

        piece.remove_prefix(taken);
    }

    return state_ != state::failed && state_ != state::no_memory;
}


multipart_result
multipart_hasher::finish(hasher &out)
{
    digest parts;
    state last = state_;

    state_ = state::failed;

    if (last == state::no_memory) {
        return multipart_result::no_memory;
    }

    if (last != state::closed && last != state::closed_end) {
        return multipart_result::not_multipart;
    }

    if (!parts_.finish(parts)) {
        return multipart_result::no_memory;
    }

    out.number(count_);
    out.bytes(parts.data(), parts.size());
    return multipart_result::ok;
}


void
multipart_hasher::step(char c)
{
    switch (state_) {
    case state::first_line:
        if (c == '\r') {
            state_ = state::first_lf;
            return;
        }

        state_ = state::first_boundary;
        [[fallthrough]];

    case state::first_boundary:
        if (c != dash_boundary()[matched_]) {
            state_ = state::failed;

        } else if (++matched_ == dash_boundary().size()) {
            state_ = state::delimited;
        }

        return;

    case state::first_lf: expect(c, '\n', state::first_boundary); return;
    case state::closing: expect(c, '-', state::closed); return;
    case state::closed_lf: expect(c, '\n', state::closed_end); return;
    case state::closed: step_closed(c); return;
    case state::closed_end: state_ = state::failed; return;
    default: step_delimited(c);
    }
}


void
multipart_hasher::expect(char c, char expected, state next)
{
    state_ = c == expected ? next : state::failed;
}


void
multipart_hasher::step_delimited(char c)
{
    if (state_ == state::delimited && c == '-') {
        state_ = state::closing;

    } else if (state_ == state::delimited_lf) {
        expect(c, '\n', state::header);
        header_size_ = 0;

    } else if (is_blank(c)) {
        state_ = state::delimited_end;

    } else {
        expect(c, '\r', state::delimited_lf);
    }
}


void
multipart_hasher::step_closed(char c)
{
    if (!is_blank(c)) {
        expect(c, '\r', state::closed_lf);
    }
}


std::size_t
multipart_hasher::feed_header(std::string_view piece)
{
    constexpr std::string_view end = "\r\n\r\n";
    std::size_t taken = 0;

    while (taken < piece.size()) {
        if (header_size_ == header_.size()) {
            state_ = state::failed;
            return taken;
        }

        char c = piece[taken++];

        header_[header_size_++] = c;

        if (c != '\n') {
            continue;
        }

        std::string_view header(header_.data(), header_size_);

        if (header.ends_with(end)) {
            if (read_header()) {
                start_content();
            } else {
                state_ = state::failed;
            }

            return taken;
        }
    }

    return taken;
}


/* The whole header is there, with the empty line after it. */
bool
multipart_hasher::read_header()
{
    std::string_view header(header_.data(), header_size_ - line_break.size());
    std::array<line, max_lines> lines;
    std::size_t count = 0;
    bool disposed = false;

    auto name = [&](const line &l) { return header.substr(l.at, l.name); };

    for (std::size_t at = 0; at < header.size(); count++) {
        std::size_t end = header.find(line_break, at);

        if (count == max_lines
            || !read_line(header.substr(at, end - at), at, lines[count]))
        {
            return false;
        }

        disposed |= name(lines[count]) == "content-disposition";
        at = end + line_break.size();
    }

    if (!disposed) {
        return false;
    }

    auto end = lines.begin() + static_cast<std::ptrdiff_t>(count);

    std::sort(lines.begin(), end, [&](const line &a, const line &b) {
        int order = name(a).compare(name(b));

        return order != 0 ? order < 0 : a.at < b.at;
    });

    parts_.number(count);

    for (auto l = lines.begin(); l != end; l++) {
        parts_.field(name(*l));
        parts_.field(header.substr(l->value_at, l->value));
    }

    return true;
}


bool
multipart_hasher::read_line(std::string_view text, std::size_t at, line &read)
{
    std::size_t colon = text.find(':');

    /* A boundary may look like a field, and a server may look for it first. */
    if (colon == text.npos || text.starts_with(dash_boundary())
        || !std::all_of(text.begin(), text.end(), is_field_char))
    {
        return false;
    }

    std::string_view name = text.substr(0, colon);

    if (name.empty() || !std::all_of(name.begin(), name.end(), is_token_char))
    {
        return false;
    }

    std::string_view value = trim_blanks(text.substr(colon + 1));
    auto begin = header_.begin() + static_cast<std::ptrdiff_t>(at);

    std::transform(name.begin(), name.end(), begin, to_lower);

    read.at = static_cast<std::uint16_t>(at);
    read.name = static_cast<std::uint16_t>(name.size());
    read.value_at = static_cast<std::uint16_t>(value.data() - header_.data());
    read.value = static_cast<std::uint16_t>(value.size());
    return true;
}


void
multipart_hasher::start_content()
{
    /* An own digest, as the length is not known beforehand. */
    content_.start("idempotency part 1");
    state_ = state::content;
    before_ = line_end::start;
    matched_ = 0;
}


/*
 * Most of a content is in no line that could be a boundary: it is looked
 * through for line ends, and what of the piece is content is hashed at once.
 */
std::size_t
multipart_hasher::feed_content(std::string_view piece)
{
    std::size_t held = pending();
    std::size_t at = 0;
    std::size_t cr = piece.find('\r');
    std::size_t lf = piece.find('\n');

    while (at < piece.size() && matched_ < dash_boundary().size()) {
        if (match_content(piece[at])) {
            at++;
            continue;
        }

        hash_held(held);
        held = 0;
        matched_ = 0;
        before_ = line_end::none;

        /* Each is looked for from the last one only: linear in all. */
        cr = cr < at ? piece.find('\r', at) : cr;
        lf = lf < at ? piece.find('\n', at) : lf;
        at = std::min({cr, lf, piece.size()});

        if (at < piece.size()) {
            before_ = at == cr ? line_end::cr : line_end::lf;
            at++;
        }
    }

    content_.bytes(piece.data(), at - (pending() - held));

    if (matched_ == dash_boundary().size()) {
        end_part();
    }

    return at;
}


/* Whether c goes on with what may be a boundary. */
bool
multipart_hasher::match_content(char c)
{
    if (before_ == line_end::none) {
        return false;
    }

    if (before_ == line_end::cr && matched_ == 0 && c == '\n') {
        before_ = line_end::crlf;
        return true;
    }

    if (c != dash_boundary()[matched_]) {
        return false;
    }

    matched_++;
    return true;
}


/* Pending bytes whose piece is gone: they are known without it. */
void
multipart_hasher::hash_held(std::size_t size)
{
    const char *held = delimiter_.data();

    switch (before_) {
    case line_end::start: held += 2; break;
    case line_end::lf: held += 1; break;

    case line_end::cr:
        if (size > 0) {
            content_.bytes(held, 1);
            size--;
        }

        held += 2;
        break;

    default: break;
    }

    content_.bytes(held, size);
}


/* How many of the last bytes are content only if no boundary follows. */
std::size_t
multipart_hasher::pending() const
{
    switch (before_) {
    case line_end::none: return 0;
    case line_end::start: return matched_;
    case line_end::crlf: return matched_ + 2;
    default: return matched_ + 1;
    }
}


void
multipart_hasher::end_part()
{
    digest content;

    if (before_ != line_end::crlf) {
        state_ = state::failed;
        return;
    }

    if (!content_.finish(content)) {
        state_ = state::no_memory;
        return;
    }

    parts_.bytes(content.data(), content.size());
    count_++;
    state_ = state::delimited;
}


std::string_view
multipart_hasher::dash_boundary() const
{
    return {delimiter_.data() + 2, delimiter_size_ - 2};
}

}
