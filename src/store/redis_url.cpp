#include "store/redis_url.h"

#include "contract/ascii.h"

#include <algorithm>

namespace idempotency {

namespace {

constexpr std::string_view plain = "redis://";
constexpr std::string_view tls = "rediss://";
constexpr std::string_view socket = "redis+unix:";


struct scheme {
    std::string_view name;
    redis_kind kind;
    bool tls;
};


constexpr scheme schemes[] = {
    {plain, redis_kind::single, false},
    {tls, redis_kind::single, true},
    {"redis+sentinel://", redis_kind::sentinel, false},
    {"rediss+sentinel://", redis_kind::sentinel, true},
    {"redis+cluster://", redis_kind::cluster, false},
    {"rediss+cluster://", redis_kind::cluster, true},
};


const scheme *scheme_of(std::string_view text);
const char *parse_socket(std::string_view rest, redis_url &url);
const char *parse_path(std::string_view path, redis_url &url);
const char *parse_server(std::string_view rest, redis_url &url);
const char *parse_credentials(std::string_view text, redis_url &url);
bool is_db(std::string_view text);
bool is_escaped(std::string_view text);

}


bool
is_redis_url(std::string_view text)
{
    return text.starts_with(socket) || scheme_of(text) != nullptr;
}


const char *
parse_redis_url(std::string_view text, redis_url &url)
{
    if (text.starts_with(socket)) {
        return parse_socket(text.substr(socket.size()), url);
    }

    const scheme &s = *scheme_of(text);

    url.kind = s.kind;
    url.tls = s.tls;

    return parse_server(text.substr(s.name.size()), url);
}


namespace {

/* Null: none of ours. */
const scheme *
scheme_of(std::string_view text)
{
    for (const scheme &s : schemes) {
        if (text.starts_with(s.name)) {
            return &s;
        }
    }

    return nullptr;
}


const char *
parse_socket(std::string_view rest, redis_url &url)
{
    constexpr std::string_view db = "?db=";
    std::size_t question = rest.find('?');

    url.path = rest.substr(0, question);

    if (!url.path.starts_with('/') || url.path.size() == 1) {
        return "the path of the socket must be absolute, for example "
               "\"redis+unix:/run/redis.sock\"";
    }

    if (question == std::string_view::npos) {
        return nullptr;
    }

    rest.remove_prefix(question);

    if (!rest.starts_with(db) || !is_db(rest.substr(db.size()))) {
        return "only \"?db=NUMBER\" may follow the path of the socket";
    }

    url.db = rest.substr(db.size());
    return nullptr;
}


const char *
parse_server(std::string_view rest, redis_url &url)
{
    std::size_t at = rest.rfind('@');

    if (at != std::string_view::npos) {
        const char *wrong = parse_credentials(rest.substr(0, at), url);

        if (wrong != nullptr) {
            return wrong;
        }

        rest.remove_prefix(at + 1);
    }

    std::size_t slash = rest.find('/');

    url.host = rest.substr(0, slash);

    if (url.host.empty()) {
        return "the address has no host";
    }

    rest = slash == std::string_view::npos ? "" : rest.substr(slash + 1);

    return parse_path(rest, url);
}


/* What follows the host, without the slash. */
const char *
parse_path(std::string_view path, redis_url &url)
{
    if (url.kind == redis_kind::sentinel) {
        std::size_t slash = path.find('/');

        url.service = path.substr(0, slash);
        path = slash == std::string_view::npos ? "" : path.substr(slash + 1);

        if (url.service.empty()) {
            return "the name of the master must follow the Sentinels, for "
                   "example \"redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/"
                   "mymaster\"";
        }
    }

    if (path.empty()) {
        return nullptr;
    }

    if (url.kind == redis_kind::cluster) {
        return "a cluster has database 0 only, nothing may follow its hosts";
    }

    url.db = path;

    return is_db(url.db) ? nullptr
                         : "only the number of a database may follow the "
                           "host, for example \"redis://127.0.0.1:6379/0\"";
}


const char *
parse_credentials(std::string_view text, redis_url &url)
{
    std::size_t colon = text.find(':');

    if (colon == std::string_view::npos) {
        return "\"@\" must follow \"user:password\" or \":password\"";
    }

    if (!is_escaped(text)) {
        return "in user and password, \"%\" must be followed by two "
               "hexadecimal digits";
    }

    url.user = text.substr(0, colon);
    url.password = text.substr(colon + 1);

    if (url.password.empty()) {
        return "the password is empty";
    }

    return nullptr;
}


/* Redis numbers its databases. */
bool
is_db(std::string_view text)
{
    return !text.empty() && text.size() <= 5
           && std::all_of(text.begin(), text.end(),
                          [](char c) { return is_digit(c); });
}


bool
is_escaped(std::string_view text)
{
    for (std::size_t i = 0; i < text.size(); i++) {
        if (text[i] == '%'
            && (text.size() - i < 3 || !is_hex(text[i + 1])
                || !is_hex(text[i + 2])))
        {
            return false;
        }
    }

    return true;
}

}

}
