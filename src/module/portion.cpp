#include "module/portion.h"

namespace idempotency {

namespace {

/* The upstream's own filters of what it reads, behind ours. */
struct guarded_filters {
    ngx_http_upstream_t *upstream;
    void *data;
    void *pipe_data;
    ngx_int_t (*init)(void *data);
    ngx_int_t (*filter)(void *data, ssize_t bytes);
    ngx_event_pipe_input_filter_pt pipe_filter;
    bool failed;
};


ngx_int_t init_filters(void *data);
ngx_int_t break_off(guarded_filters &own);
ngx_int_t filter(void *data, ssize_t bytes);
ngx_int_t pipe_filter(ngx_event_pipe_t *p, ngx_buf_t *b);

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


/*
 * FastCGI marks the end of a response, yet nginx takes the end of the
 * connection for it too.
 */
bool
has_end(const ngx_http_upstream_t *u)
{
    if (u->input_filter_init == init_filters
        && static_cast<guarded_filters *>(u->input_filter_ctx)->failed)
    {
        return false;
    }

    if (view(u->schema) != "fastcgi://" || u->headers_in.content_length_n >= 0)
    {
        return true;
    }

    return u->buffering ? u->pipe->upstream_done : u->length == 0;
}


/* From a header filter: nginx is about to set up what reads the body. */
bool
break_off_on_error(ngx_http_request_t *r)
{
    ngx_http_upstream_t *u = r->upstream;

    if (u == nullptr || u->cleanup == nullptr
        || u->input_filter_init == nullptr
        || u->input_filter_init == init_filters)
    {
        return true;
    }

    auto *own = make<guarded_filters>(r->pool);

    if (own == nullptr) {
        return false;
    }

    own->upstream = u;
    own->init = u->input_filter_init;
    own->data = u->input_filter_ctx;
    u->input_filter_init = init_filters;
    u->input_filter_ctx = own;

    if (u->pipe != nullptr) {
        own->pipe_data = u->pipe->input_ctx;
        u->pipe->input_ctx = own;
    }

    return true;
}


namespace {

/* The upstream chooses its filters here, by the kind of response. */
ngx_int_t
init_filters(void *data)
{
    auto *own = static_cast<guarded_filters *>(data);
    ngx_http_upstream_t *u = own->upstream;

    ngx_int_t rc = own->init(u->buffering ? own->pipe_data : own->data);

    own->filter = u->input_filter;
    u->input_filter = filter;

    if (u->pipe != nullptr) {
        own->pipe_filter = u->pipe->input_filter;
        u->pipe->input_filter = pipe_filter;
    }

    return rc == NGX_ERROR ? break_off(*own) : rc;
}


/*
 * Without a pipe the header has promised a body, and the stream has ended with
 * it.  nginx would wait for more; told that all is there, it ends the
 * response, and has_end() knows better.
 */
ngx_int_t
break_off(guarded_filters &own)
{
    ngx_http_upstream_t *u = own.upstream;

    if (u->buffering) {
        u->pipe->upstream_error = 1;
        u->pipe->length = 1;

    } else {
        u->length = 0;
    }

    own.failed = true;

    return NGX_OK;
}


ngx_int_t
filter(void *data, ssize_t bytes)
{
    auto *own = static_cast<guarded_filters *>(data);

    if (own->failed || own->filter(own->data, bytes) != NGX_ERROR) {
        return NGX_OK;
    }

    own->failed = true;
    own->upstream->error = 1;
    own->upstream->length = 1;

    return NGX_OK;
}


ngx_int_t
pipe_filter(ngx_event_pipe_t *p, ngx_buf_t *b)
{
    auto *own = static_cast<guarded_filters *>(p->input_ctx);

    if (own->failed) {
        return NGX_OK;
    }

    p->input_ctx = own->pipe_data;
    ngx_int_t rc = own->pipe_filter(p, b);
    p->input_ctx = own;

    return rc == NGX_ERROR ? break_off(*own) : rc;
}

}

}
