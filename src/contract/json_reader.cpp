#include "contract/json_reader.h"

namespace idempotency {

namespace {

char *put_size(char *out, std::size_t size);
inline std::uint64_t prefix_of(const char *name, std::size_t size);

}


json_result
read_json(json_workspace &space, std::string_view body,
          const json_rules &rules)
{
    json_tokens tokens;

    space.form.resize(0);
    space.members.resize(0);
    space.objects.resize(0);
    space.segments.resize(0);

    json_result scanned = space.scanner.scan(body, tokens);

    if (scanned != json_result::ok) {
        return scanned;
    }

    return json_reader(space, tokens, rules).document();
}


json_result
json_reader::document()
{
    cursor c = {nullptr, 0};
    bool counts = true;

    /* Few forms are longer than their text. */
    c = grow(c, tokens_[count_] + tokens_[count_] / 8 + 256);

    if (c.failed()) {
        return result_;
    }

    if (rules_.jsonrpc && token(c) == '[') {
        return json_result::not_json;
    }

    c = child(c, root(), 0, counts);

    if (c.failed()) {
        return result_;
    }

    if (c.next != count_) {
        return json_result::not_json;
    }

    if (!counts) {
        c.out = form_;
        *c.out++ = '?';
        space_.objects.resize(0);
        space_.segments.resize(0);
    }

    space_.form.resize(offset(c));
    return json_result::ok;
}


json_cursor
json_reader::value(cursor c, unsigned depth)
{
    if (c.next == count_) {
        return not_json();
    }

    const char *first = at(c.next++);

    return value_of(c, first, depth);
}


/* The value of the token that was taken last. */
inline json_cursor
json_reader::value_of(cursor c, const char *at, unsigned depth)
{
    switch (*at) {
    case '"': return string(c, at + 1, end_of_token(c) - 1);
    case '{': return object(c, depth + 1);
    case '[': return array(c, depth + 1);
    case 'n': return literal(c, at, "null");
    case 't': return literal(c, at, "true");
    case 'f': return literal(c, at, "false");
    default: return number(c, at);
    }
}


json_cursor
json_reader::object(cursor c, unsigned depth)
{
    return read_object(c, depth, [this, depth](cursor at_name) {
        cursor next = name_of_member(at_name);

        if (next.failed()) {
            return next;
        }

        const char *first = at(next.next++);

        /* Most are strings: these are not worth a call. */
        return *first == '"' ? string(next, first + 1, end_of_token(next) - 1)
                             : value_of(next, first, depth);
    });
}


json_cursor
json_reader::array(cursor c, unsigned depth)
{
    return read_array(c, depth, [this, depth](cursor next) {
        if (next.next == count_) {
            return not_json();
        }

        const char *first = at(next.next++);

        return value_of(next, first, depth);
    });
}


json_cursor
json_reader::literal(cursor c, const char *at, std::string_view word)
{
    if (std::string_view(at, end_of_token(c)) != word) {
        return not_json();
    }

    if (room(c, 1)) {
        *c.out++ = word.front();
    }

    return c;
}


json_cursor
json_reader::number(cursor c, const char *at)
{
    const char *end = end_of_token(c);

    if (!room(c, static_cast<std::size_t>(end - at) + number_room)) {
        return c;
    }

    c.out = write_number(c.out, at, end);
    return c.out == nullptr ? not_json() : c;
}


json_cursor
json_reader::begin_object(cursor c, json_opened &open)
{
    open.object = space_.objects.size();
    open.first = space_.members.size();

    if (!room(c, 1)) {
        return c;
    }

    if (!space_.objects.push({offset(c), 0, 0, 0, 0})) {
        return no_memory();
    }

    *c.out++ = '{';
    return c;
}


json_cursor
json_reader::begin_member(cursor c)
{
    return name_of_member(c);
}


/* Its name and the colon.  A value comes next, or there is an end. */
[[gnu::always_inline]] inline json_cursor
json_reader::name_of_member(cursor c)
{
    /* A name, a colon, a value, a brace: no less may be left. */
    if (count_ - c.next < 4) {
        return not_json();
    }

    const char *quote = at(c.next);
    const char *colon = at(c.next + 1);

    if (*quote != '"' || *colon != ':') {
        return not_json();
    }

    const char *end = before_space(colon) - 1;
    std::uint32_t start = offset(c);

    c.next += 2;
    c = string(c, quote + 1, end);

    if (c.failed()) {
        return c;
    }

    /* In the text it can be read earlier than in the form. */
    auto size = static_cast<std::size_t>(end - quote - 1);
    std::uint64_t prefix = prefix_of(quote + 1, size);

    if (size > wide || offset(c) != start + 1 + size) {
        std::string_view name = string_in_form(form_ + start);

        prefix = prefix_of(name.data(), name.size());
    }

    if (!space_.members.push({prefix, start, space_.objects.size()})) {
        return no_memory();
    }

    return c;
}


json_cursor
json_reader::end_object(cursor c, const json_opened &open)
{
    if (!room(c, 1)) {
        return c;
    }

    std::uint32_t end = offset(c);
    json_result ordered = order_members(space_, open.object, open.first, end);

    if (ordered != json_result::ok) {
        result_ = ordered;
        return not_json();
    }

    c.out = form_ + end;
    *c.out++ = '}';
    return c;
}


/*
 * A string between its quotes.  Most are short.  A backslash that comes behind
 * its end is taken for one in it, which costs time, but is not wrong.
 */
[[gnu::always_inline]] inline json_cursor
json_reader::string(cursor c, const char *at, const char *end)
{
    auto size = static_cast<std::size_t>(end - at);

    if (!room(c, size + 5)) {
        return c;
    }

    if (size > wide) {
        return long_string(c, at, size);
    }

    *c.out = static_cast<char>(0x80 | size);

    if (copy_block(c.out + 1, at, '\\')) {
        return escaped_string(c, at, size);
    }

    c.out += 1 + size;
    return c;
}


json_cursor
json_reader::long_string(cursor c, const char *at, std::size_t size)
{
    bool escaped = false;
    char *out = put_size(c.out, size);

    if (size < 0x80) {
        for (std::size_t i = 0; i < size; i += wide) {
            escaped |= copy_block(out + i, at + i, '\\');
        }

    } else {
        escaped = std::memchr(at, '\\', size) != nullptr;

        if (!escaped) {
            std::memcpy(out, at, size);
        }
    }

    if (escaped) {
        return escaped_string(c, at, size);
    }

    c.out = out + size;
    return c;
}


/* There is room.  How long the string gets shows at its end. */
json_cursor
json_reader::escaped_string(cursor c, const char *at, std::size_t size)
{
    char *from = c.out + 5;
    char *last = unescape_json(from, at, at + size);

    if (last == nullptr) {
        return not_json();
    }

    size = static_cast<std::size_t>(last - from);
    c.out = put_size(c.out, size);
    std::memmove(c.out, from, size);
    c.out += size;
    return c;
}


namespace {

char *
put_size(char *out, std::size_t size)
{
    if (size < 0x80) {
        *out++ = static_cast<char>(0x80 | size);
        return out;
    }

    *out++ = 's';

    for (unsigned shift = 0; shift < 32; shift += 8) {
        *out++ = static_cast<char>(size >> shift);
    }

    return out;
}


/*
 * The first eight bytes of a name, so that they compare as it does.  What is
 * behind it may be read.
 */
inline std::uint64_t
prefix_of(const char *name, std::size_t size)
{
    std::uint64_t prefix;

    std::memcpy(&prefix, name, sizeof(prefix));

    if constexpr (std::endian::native == std::endian::little) {
        prefix = __builtin_bswap64(prefix);
    }

    if (size >= sizeof(prefix)) {
        return prefix;
    }

    /* In two steps, as none can be as wide as the whole. */
    return prefix & ~(~std::uint64_t{0} >> 4 * size >> 4 * size);
}

}


json_cursor
json_reader::grow(cursor c, std::size_t size)
{
    std::size_t used = offset(c);

    space_.form.resize(used);

    if (!space_.form.room(size)) {
        return no_memory();
    }

    form_ = space_.form.data();
    limit_ = form_ + space_.form.capacity();
    c.out = form_ + used;
    return c;
}


json_cursor
json_reader::no_memory()
{
    result_ = json_result::no_memory;
    return {nullptr, 0};
}

}
