#include "contract/json_workspace.h"

#include <algorithm>
#include <array>

namespace idempotency {

namespace {

/* What reorder() takes: so many members, so many bytes of them. */
constexpr std::uint32_t few = 16;
constexpr std::uint32_t small = 512;


/* Gathers pieces, as each call of the hasher costs more than most of them. */
class gatherer {
public:
    explicit gatherer(hasher &hash) : hash_(hash) {}
    ~gatherer() { flush(); }

    gatherer(const gatherer &) = delete;
    gatherer &operator=(const gatherer &) = delete;

    void add(const char *from, std::size_t size)
    {
        if (size > limit - size_) {
            flush();

            if (size > limit) {
                hash_.bytes(from, size);
                return;
            }
        }

        copy_wide(buffer_.data() + size_, from, size);
        size_ += size;
    }

private:
    static constexpr std::size_t limit = 4096;

    void flush()
    {
        hash_.bytes(buffer_.data(), size_);
        size_ = 0;
    }

    hasher &hash_;
    std::size_t size_ = 0;
    std::array<char, limit + wide> buffer_;
};


bool in_order(const char *form, std::span<const json_member> members);
bool reorder(json_workspace &space, std::span<const json_member> members,
             std::uint32_t &end);
json_shape &shape_for(json_workspace &space,
                      std::span<const json_member> members);
bool rank(json_shape &shape, std::span<const json_member> members);
bool is_shape(const json_shape &shape, std::span<const json_member> members);
bool note_order(json_workspace &space, std::span<json_member> members,
                std::uint32_t end);
void list(std::span<const json_member> members, std::uint32_t end,
          json_segment *segments);
bool sort(const char *form, std::span<json_member> members);
int compare_names(const char *form, const json_member &a,
                  const json_member &b);
void add_in_order(json_workspace &space, gatherer &out, std::uint32_t at,
                  std::uint32_t end, std::uint32_t object);

}


json_result
order_members(json_workspace &space, std::uint32_t object, std::uint32_t first,
              std::uint32_t &end)
{
    std::uint32_t count = space.members.size() - first;
    std::span<json_member> members(space.members.data() + first, count);
    bool last = space.objects.size() == object + 1;

    space.members.resize(first);

    if (in_order(space.form.data(), members)
        || (last && count <= few && end - members[0].at <= small
            && reorder(space, members, end)))
    {
        /* Those in it may need it to be found. */
        if (last) {
            space.objects.resize(object);
        }

        return json_result::ok;
    }

    if (!space.segments.room(std::size_t{count} * 2)) {
        return json_result::no_memory;
    }

    space.objects[object] = {space.objects[object].at, end,
                             space.objects.size(), space.segments.size(),
                             count};

    return note_order(space, members, end) ? json_result::ok
                                           : json_result::not_json;
}


namespace {

/* Whether none is left out, and each comes before the next. */
bool
in_order(const char *form, std::span<const json_member> members)
{
    for (std::size_t i = 0; i < members.size(); i++) {
        if (members[i].object == UINT32_MAX) {
            return false;
        }

        if (i == 0 || members[i - 1].prefix < members[i].prefix) {
            continue;
        }

        if (members[i - 1].prefix > members[i].prefix
            || compare_names(form, members[i - 1], members[i]) >= 0)
        {
            return false;
        }
    }

    return true;
}


/*
 * Puts few and small members in order on the spot.  That moves them again for
 * each object around them, but only as long as those are small as well.
 */
bool
reorder(json_workspace &space, std::span<const json_member> members,
        std::uint32_t &end)
{
    char *form = space.form.data();
    json_shape &shape = shape_for(space, members);
    std::array<char, small + wide> copy;
    std::uint32_t begin = members[0].at;

    if (!rank(shape, members)) {
        return false;
    }

    std::memcpy(copy.data(), form + begin, end - begin);

    char *out = form + begin;

    for (std::size_t i = 0; i < members.size(); i++) {
        std::size_t from = shape.which[i];
        std::uint32_t at = members[from].at;
        std::uint32_t next = from + 1 < members.size() ? members[from + 1].at
                                                       : end;

        if (members[from].object != UINT32_MAX) {
            copy_wide(out, copy.data() + (at - begin), next - at);
            out += next - at;
        }
    }

    end = static_cast<std::uint32_t>(out - form);
    return true;
}


/* Where those would be whose first name and count are these. */
json_shape &
shape_for(json_workspace &space, std::span<const json_member> members)
{
    std::uint64_t mixed = (members[0].prefix + members.size())
                          * 0x9e3779b97f4a7c15;

    return space.shapes[(mixed >> 32) % space.shapes.size()];
}


/*
 * Which member comes at which place.  False: the prefixes of their names do
 * not tell.
 */
bool
rank(json_shape &shape, std::span<const json_member> members)
{
    std::uint32_t taken = 0;

    if (is_shape(shape, members)) {
        return true;
    }

    for (std::size_t i = 0; i < members.size(); i++) {
        std::uint64_t prefix = members[i].prefix;
        std::uint32_t place = 0;

        for (const json_member &other : members) {
            place += other.prefix < prefix;
        }

        shape.prefixes[i] = prefix;
        shape.which[place] = static_cast<std::uint8_t>(i);
        taken |= 1U << place;
    }

    bool told = taken == (1U << members.size()) - 1;

    shape.count = told ? members.size() : 0;
    return told;
}


/* Whether these names, or such as cannot be told from them, were seen last. */
bool
is_shape(const json_shape &shape, std::span<const json_member> members)
{
    if (shape.count != members.size()) {
        return false;
    }

    for (std::size_t i = 0; i < members.size(); i++) {
        if (shape.prefixes[i] != members[i].prefix) {
            return false;
        }
    }

    return true;
}


/* Notes the order of members for later.  There is room for twice as many. */
bool
note_order(json_workspace &space, std::span<json_member> members,
           std::uint32_t end)
{
    json_segment *ordered = space.segments.end();
    json_segment *listed = ordered + members.size();

    list(members, end, listed);

    for (std::size_t i = 0; i < members.size(); i++) {
        members[i].object = static_cast<std::uint32_t>(i);
    }

    if (!sort(space.form.data(), members)) {
        return false;
    }

    for (std::size_t i = 0; i < members.size(); i++) {
        ordered[i] = listed[members[i].object];
    }

    space.segments.resize(space.segments.size() + members.size());
    return true;
}


/* The members one after the other as they are in the form. */
void
list(std::span<const json_member> members, std::uint32_t end,
     json_segment *segments)
{
    for (std::size_t i = members.size(); i-- > 0;) {
        const json_member &m = members[i];
        bool counts = m.object != UINT32_MAX;

        segments[i] = {m.at, counts ? end - m.at : 0, m.object};
        end = m.at;
    }
}


bool
sort(const char *form, std::span<json_member> members)
{
    std::sort(members.begin(), members.end(),
              [form](const json_member &a, const json_member &b) {
                  return a.prefix != b.prefix ? a.prefix < b.prefix
                                              : compare_names(form, a, b) < 0;
              });

    return std::adjacent_find(members.begin(), members.end(),
                              [form](const auto &a, const auto &b) {
                                  return a.prefix == b.prefix
                                         && compare_names(form, a, b) == 0;
                              })
           == members.end();
}


int
compare_names(const char *form, const json_member &a, const json_member &b)
{
    return string_in_form(form + a.at).compare(string_in_form(form + b.at));
}

}


void
hash_json(json_workspace &space, hasher &hash)
{
    if (space.segments.size() == 0) {
        hash.bytes(space.form.data(), space.form.size());
        return;
    }

    gatherer out(hash);

    add_in_order(space, out, 0, space.form.size(), 0);
}


namespace {

/*
 * A part of the form with the objects in it put in order, of which object is
 * the first that may be there.
 */
void
add_in_order(json_workspace &space, gatherer &out, std::uint32_t at,
             std::uint32_t end, std::uint32_t object)
{
    const char *form = space.form.data();
    const json_object *objects = space.objects.data();
    std::uint32_t count = space.objects.size();

    while (object < count && objects[object].at < end) {
        const json_object o = objects[object];

        if (o.count == 0) {
            object++;
            continue;
        }

        out.add(form + at, o.at + 1 - at);

        const json_segment *segment = space.segments.data() + o.segments;

        for (std::uint32_t i = o.count; i > 0; i--, segment++) {
            const json_segment s = *segment;

            if (s.object >= count || objects[s.object].at >= s.at + s.size) {
                out.add(form + s.at, s.size);

            } else {
                add_in_order(space, out, s.at, s.at + s.size, s.object);
            }
        }

        at = o.end;
        object = o.next;
    }

    out.add(form + at, end - at);
}

}

}
