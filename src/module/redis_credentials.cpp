#include "module/redis_words.h"

namespace idempotency {

namespace {

constexpr std::size_t longest_password = 4096;

bool read_sentinel_credentials(ngx_conf_t *cf, redis_settings &settings,
                               const redis_words &words);
bool decode(ngx_conf_t *cf, std::string_view text, ngx_str_t &out);
bool read_password(ngx_conf_t *cf, const redis_settings &settings,
                   ngx_str_t name, ngx_str_t &out);

}


bool
read_credentials(ngx_conf_t *cf, redis_settings &settings,
                 const redis_words &words)
{
    link_settings &link = settings.link;

    if (!decode(cf, words.url.user, link.user)
        || !decode(cf, words.url.password, link.password))
    {
        return false;
    }

    if (words.user.len != 0 && words.url.user.data() != nullptr) {
        return wrong(cf, settings,
                     "the address has a user already, remove \"user\"");
    }

    if (words.password_file.len != 0 && !words.url.password.empty()) {
        return wrong(cf, settings,
                     "the address has a password already, remove "
                     "\"password_file\"");
    }

    if (words.user.len != 0) {
        link.user = words.user;
    }

    if (words.password_file.len != 0
        && !read_password(cf, settings, words.password_file, link.password))
    {
        return false;
    }

    if (link.user.len != 0 && link.password.len == 0) {
        return wrong(cf, settings,
                     "\"user\" requires a password, set "
                     "\"password_file\"");
    }

    return read_sentinel_credentials(cf, settings, words);
}


namespace {

/* Sentinels have users of their own. */
bool
read_sentinel_credentials(ngx_conf_t *cf, redis_settings &settings,
                          const redis_words &words)
{
    link_settings &link = settings.sentinels.link;

    link.user = words.sentinel_user;

    if (words.sentinel_password_file.len != 0
        && !read_password(cf, settings, words.sentinel_password_file,
                          link.password))
    {
        return false;
    }

    return link.user.len == 0 || link.password.len != 0
           || wrong(cf, settings,
                    "\"sentinel_user\" requires a password, set "
                    "\"sentinel_password_file\"");
}


bool
decode(ngx_conf_t *cf, std::string_view text, ngx_str_t &out)
{
    auto copy = make_array<u_char>(cf->pool, text.size());

    if (copy.data() == nullptr) {
        return false;
    }

    u_char *to = copy.data();
    u_char *from = str(text).data;

    ngx_unescape_uri(&to, &from, text.size(), 0);
    out = {static_cast<std::size_t>(to - copy.data()), copy.data()};

    return true;
}


/* Reads a small file, without the newline at its end. */
bool
read_password(ngx_conf_t *cf, const redis_settings &settings, ngx_str_t name,
              ngx_str_t &out)
{
    if (ngx_conf_full_name(cf->cycle, &name, 1) != NGX_OK) {
        return false;
    }

    ngx_fd_t fd = ngx_open_file(name.data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);
    auto text = make_array<u_char>(cf->pool, longest_password);

    if (fd == NGX_INVALID_FILE || text.data() == nullptr) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "idempotency store \"%V\": cannot open "
                           "password_file \"%V\"",
                           &settings.name, &name);
        return false;
    }

    ssize_t n = ngx_read_fd(fd, text.data(), text.size());

    ngx_close_file(fd);

    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) {
        n--;
    }

    if (n <= 0 || n == static_cast<ssize_t>(text.size())) {
        return wrong(cf, settings,
                     "\"password_file\" must contain one password and nothing "
                     "else");
    }

    out = {static_cast<std::size_t>(n), text.data()};
    return true;
}

}

}
