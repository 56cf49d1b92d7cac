#include "module/portion.h"

namespace idempotency {

namespace {

bool has_end(const ngx_http_upstream_t *u);

}


portion
measure(ngx_chain_t *in)
{
    portion p = {0, false, false, true};

    for (ngx_chain_t *cl = in; cl != nullptr; cl = cl->next) {
        ngx_buf_t *b = cl->buf;

        p.size += ngx_buf_size(b);
        p.last = p.last || b->last_buf;
        p.flush = p.flush || b->flush;
        p.in_memory = p.in_memory && (!b->in_file || ngx_buf_in_memory(b));
    }

    return p;
}


/* nginx flushes what came of a response that broke off, and says no more. */
bool
is_truncated(ngx_http_request_t *r, const portion &p)
{
    ngx_http_upstream_t *u = r->upstream;

    if (u == nullptr || !u->header_sent || u->cleanup != nullptr) {
        return false;
    }

    return p.last ? !has_end(u) : p.flush;
}


namespace {

/*
 * FastCGI marks the end of a response, yet nginx takes the end of the
 * connection for it too.
 */
bool
has_end(const ngx_http_upstream_t *u)
{
    if (view(u->schema) != "fastcgi://" || u->headers_in.content_length_n >= 0)
    {
        return true;
    }

    return u->buffering ? u->pipe->upstream_done : u->length == 0;
}

}

}
