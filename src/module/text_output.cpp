#include "module/text_output.h"

namespace idempotency {

namespace {

constexpr std::size_t buffer_size = 8192;

}


text_output &
text_output::operator<<(std::string_view text)
{
    if (!grow(text.size())) {
        return *this;
    }

    ngx_buf_t *b = last_->buf;

    b->last = ngx_cpymem(b->last, text.data(), text.size());
    size_ += static_cast<off_t>(text.size());

    return *this;
}


text_output &
text_output::operator<<(std::uint64_t number)
{
    u_char text[NGX_INT64_LEN];
    u_char *end = ngx_sprintf(text, "%uL", number);

    return *this << std::string_view(reinterpret_cast<char *>(text),
                                     static_cast<std::size_t>(end - text));
}


void
text_output::seconds(std::uint64_t ms)
{
    *this << ms / 1000;

    if (ms % 1000 == 0) {
        return;
    }

    u_char text[4];

    ngx_sprintf(text, ".%03uL", ms % 1000);

    std::string_view fraction(reinterpret_cast<char *>(text), sizeof(text));

    *this << fraction.substr(0, fraction.find_last_not_of('0') + 1);
}


void
text_output::json_string(std::string_view text)
{
    ngx_str_t in = str(text);
    std::size_t size = text.size() + ngx_escape_json(nullptr, in.data, in.len);

    *this << "\"";

    if (grow(size)) {
        ngx_buf_t *b = last_->buf;

        b->last = reinterpret_cast<u_char *>(
            ngx_escape_json(b->last, in.data, in.len));
        size_ += static_cast<off_t>(size);
    }

    *this << "\"";
}


void
text_output::prometheus_string(std::string_view text)
{
    *this << "\"";

    for (const char &c : text) {
        if (c == '\\' || c == '"') {
            *this << "\\";
        }

        *this << (c == '\n' ? std::string_view("\\n")
                            : std::string_view(&c, 1));
    }

    *this << "\"";
}


ngx_chain_t *
text_output::finish()
{
    if (!grow(0)) {
        return nullptr;
    }

    last_->buf->last_buf = 1;
    last_->buf->last_in_chain = 1;
    last_->next = nullptr;

    return first_;
}


bool
text_output::grow(std::size_t size)
{
    if (failed_) {
        return false;
    }

    if (last_ != nullptr
        && static_cast<std::size_t>(last_->buf->end - last_->buf->last)
               >= size)
    {
        return true;
    }

    ngx_chain_t *cl = ngx_alloc_chain_link(pool_);
    ngx_buf_t *b = ngx_create_temp_buf(pool_, ngx_max(size, buffer_size));

    if (cl == nullptr || b == nullptr) {
        failed_ = true;
        return false;
    }

    cl->buf = b;
    cl->next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = cl;
    last_ = cl;

    return true;
}

}
