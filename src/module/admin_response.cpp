#include "module/admin_response.h"

#include "contract/ascii.h"
#include "contract/record.h"
#include "module/directives.h"

namespace idempotency {

namespace {

bool read_head(const admin_form &form, response_head &head);
bool encode_whole(const admin_form &form, const response_head &head,
                  ngx_pool_t *pool, std::span<const std::uint8_t> &out);
bool encode_summary(const admin_form &form, const response_head &head,
                    ngx_pool_t *pool, std::span<const std::uint8_t> &out);
bool is_kept_header(const query_field &f);
bool read_header(const query_field &f, field &out);
bool is_field_value(std::string_view text);

}


bool
encode_response(const admin_form &form, ngx_pool_t *pool,
                encoded_response &out)
{
    response_head head;

    return read_head(form, head) && encode_whole(form, head, pool, out.whole)
           && encode_summary(form, head, pool, out.summary);
}


namespace {

bool
read_head(const admin_form &form, response_head &head)
{
    if (!read_number(form.get("status"), head.status) || head.status < 200
        || head.status > 599)
    {
        return false;
    }

    head.content_length = static_cast<std::int64_t>(form.get("body").size());
    head.content_type = form.get("type", "application/json");
    head.content_type_length = static_cast<std::uint16_t>(
        std::min(head.content_type.find(';'), head.content_type.size()));

    return encodable(head) && is_field_value(head.content_type);
}


bool
encode_whole(const admin_form &form, const response_head &head,
             ngx_pool_t *pool, std::span<const std::uint8_t> &out)
{
    std::string_view body = form.get("body");
    std::size_t size = encoded_size(head) + body.size();
    std::size_t headers = 0;
    field f;

    for (const query_field &given : form.fields()) {

        if (given.name != "header") {
            continue;
        }

        /* Its type is a field of the form. */
        if (!read_header(given, f) || !encodable(f)
            || same_name(f.name, "content-type"))
        {
            return false;
        }

        if (is_kept_header(given)) {
            size += encoded_size(f);
            headers++;
        }
    }

    auto bytes = make_array<std::uint8_t>(pool, size);

    if (bytes.data() == nullptr) {
        return false;
    }

    std::uint8_t *p = encode(bytes.data(), head, headers);

    for (const query_field &given : form.fields()) {

        if (is_kept_header(given) && read_header(given, f)) {
            p = encode(p, f);
        }
    }

    std::copy(body.begin(), body.end(), p);
    set_body(bytes.data(), body.size(), 0);
    out = bytes;

    /* A body that its status does not have, for one. */
    response_reader reader;

    return reader.open(out);
}


/* What is left out of any record is left out here, too. */
bool
is_kept_header(const query_field &f)
{
    field header;

    return f.name == "header" && read_header(f, header)
           && !is_never_kept(header.name);
}


/* It stays where a store drops the response to make room. */
bool
encode_summary(const admin_form &form, const response_head &head,
               ngx_pool_t *pool, std::span<const std::uint8_t> &out)
{
    response_head brief;
    field target = {};

    brief.status = head.status;

    for (const query_field &given : form.fields()) {
        field f;

        if (given.name == "header" && read_header(given, f)
            && same_name(f.name, "location"))
        {
            target = f;
        }
    }

    bool has_target = !target.name.empty();
    auto bytes = make_array<std::uint8_t>(
        pool, encoded_size(brief) + (has_target ? encoded_size(target) : 0));

    if (bytes.data() == nullptr) {
        return false;
    }

    std::uint8_t *p = encode(bytes.data(), brief, has_target);

    if (has_target) {
        encode(p, target);
    }

    out = bytes;

    return true;
}


bool
read_header(const query_field &f, field &out)
{
    std::size_t colon = f.value.find(':');

    if (colon == f.value.npos || !is_header_name(f.value.substr(0, colon))) {
        return false;
    }

    out.name = f.value.substr(0, colon);
    out.value = f.value.substr(colon + 1);
    out.value.remove_prefix(
        std::min(out.value.find_first_not_of(' '), out.value.size()));

    return is_field_value(out.value);
}


/* Nothing that could end the line. */
bool
is_field_value(std::string_view text)
{
    return std::all_of(text.begin(), text.end(), is_field_char);
}

}

}
