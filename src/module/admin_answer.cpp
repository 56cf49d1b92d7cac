#include "module/admin_answer.h"

#include "contract/ascii.h"
#include "module/status_page.h"

namespace idempotency {

namespace {

constexpr admin_error not_found = {404, "not_found",
                                   "There is no such record in this store."};

constexpr admin_error owner_lives = {
    409, "in_progress",
    "The request is being run, its owner will settle the record itself."};

constexpr admin_error not_unknown = {
    409, "not_unknown",
    "The outcome of this request is known. Only \"delete\" can remove it."};

constexpr admin_error no_room = {507, "no_room",
                                 "The store has no room for this response."};

constexpr admin_error unreadable = {409, "unreadable",
                                    "The record is damaged, or this version "
                                    "of the module cannot read it. Only "
                                    "\"delete\" can remove it."};

constexpr admin_error unreachable = {
    503, "store_unavailable",
    "There is no connection to the store, so nothing was changed. The error "
    "log says why."};

constexpr admin_error refused = {503, "store_unavailable",
                                 "The store refused."};

constexpr admin_error unavailable = {
    503, "store_unavailable",
    "The store did not answer in time. Look the record up before you try "
    "again: this act may have taken effect."};

std::string_view state_of(record_state state);
void send(ngx_http_request_t *r, text_output &out);
std::string_view join(ngx_pool_t *pool,
                      std::initializer_list<std::string_view> parts);

}


bool
parse_id(std::string_view text, record_id &name)
{
    if (text.size() != id_length) {
        return false;
    }

    for (std::size_t i = 0; i < name.size(); i++) {
        if (!is_hex(text[2 * i]) || !is_hex(text[2 * i + 1])) {
            return false;
        }

        name[i] = static_cast<std::uint8_t>(hex_value(text[2 * i]) * 16
                                            + hex_value(text[2 * i + 1]));
    }

    return true;
}


/* No data: no memory. */
ngx_str_t
id_of(ngx_pool_t *pool, const record_id &name)
{
    auto *text = static_cast<u_char *>(ngx_pnalloc(pool, id_length));

    if (text == nullptr) {
        return ngx_null_string;
    }

    ngx_hex_dump(text, const_cast<u_char *>(name.data()), name.size());

    return {id_length, text};
}


const admin_error *
error_for(admin_result result)
{
    switch (result) {
    case admin_result::done: return nullptr;
    case admin_result::not_found: return &not_found;
    case admin_result::owner_lives: return &owner_lives;
    case admin_result::not_unknown: return &not_unknown;
    case admin_result::no_room: return &no_room;
    case admin_result::unreadable: return &unreadable;
    case admin_result::unreachable: return &unreachable;
    case admin_result::refused: return &refused;
    default: return &unavailable;
    }
}


void
write_record(const admin_record &record, ngx_pool_t *pool, text_output &out)
{
    out << "{\"id\":";
    out.json_string(view(id_of(pool, record.name)));
    out << ",\"state\":\"" << state_of(record.state)
        << "\",\"attempt\":" << std::uint64_t{record.attempt}
        << ",\"age_seconds\":";
    out.seconds(record.age);
    out << ",\"remaining_seconds\":";

    if (record.remaining == forever) {
        out << "null";

    } else {
        out.seconds(record.remaining);
    }

    out << ",\"status\":";

    if (record.response_size != 0) {
        out << std::uint64_t{record.response_head[2]}
                   + std::uint64_t{record.response_head[3]} * 256;

    } else {
        out << "null";
    }

    out << ",\"response_bytes\":" << record.response_size << "}";
}


void
send_records(ngx_http_request_t *r, const admin_answer &answer, bool is_list)
{
    text_output out(r->pool);
    std::string_view comma;

    if (!is_list) {
        write_record(answer.records[0], r->pool, out);
        out << "\n";
        send(r, out);
        return;
    }

    out << "{\"unknown\":[";

    for (const admin_record &record : answer.records) {
        out << comma << "\n";
        write_record(record, r->pool, out);
        comma = ",";
    }

    out << "],\"next\":";

    if (answer.next != 0) {
        /* As text: it may be more than a number of JavaScript holds. */
        out << "\"" << answer.next << "\"";

    } else {
        out << "null";
    }

    out << "}\n";
    send(r, out);
}


void
send_done(ngx_http_request_t *r, const ngx_str_t &id, std::string_view act)
{
    text_output out(r->pool);

    out << "{\"id\":\"" << view(id) << "\",\"done\":\"" << act << "\"}\n";
    send(r, out);
}


void
send_refusal(ngx_http_request_t *r, const admin_error &error,
             const admin_refusal &refusal)
{
    std::string_view effect = refusal.had_no_effect
                                  ? "Nothing was changed."
                                  : "Look the record up before you try again: "
                                    "this act may have taken effect.";

    send_error(r, {error.status, error.code,
                   join(r->pool, {"Redis at \"", refusal.server,
                                  "\" refused the script \"", refusal.command,
                                  "\": \"", refusal.reply, "\". ", effect,
                                  " See ", refusal.page})});
}


void
send_error(ngx_http_request_t *r, const admin_error &error)
{
    text_output out(r->pool);

    out << "{\"error\":\"" << error.code << "\",\"detail\":";
    out.json_string(error.detail);
    out << "}\n";
    r->headers_out.status = error.status;
    send(r, out);
}


namespace {

std::string_view
state_of(record_state state)
{
    switch (state) {
    case record_state::pending: return "pending";
    case record_state::completed: return "completed";
    case record_state::not_kept: return "not_kept";
    default: return "unknown";
    }
}


void
send(ngx_http_request_t *r, text_output &out)
{
    ngx_chain_t *body = out.finish();

    ngx_http_finalize_request(
        r, send_whole(r, "application/json", body, out.size()));
}


/* Empty: no memory. */
std::string_view
join(ngx_pool_t *pool, std::initializer_list<std::string_view> parts)
{
    std::size_t size = 0;

    for (std::string_view part : parts) {
        size += part.size();
    }

    auto room = make_array<char>(pool, size);
    char *p = room.data();

    if (p == nullptr) {
        return {};
    }

    for (std::string_view part : parts) {
        p = std::copy(part.begin(), part.end(), p);
    }

    return {room.data(), size};
}

}

}
