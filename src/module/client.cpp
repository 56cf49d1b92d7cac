#include "module/client.h"

#include "module/context.h"
#include "module/counting.h"

namespace idempotency {

namespace {

void look_for_client(ngx_http_request_t *r);
bool has_left(ngx_http_request_t *r);
void let_go(context &ctx);
bool has_frames_under_way(ngx_http_request_t *r);
void outlast_quic_close(ngx_http_request_t *r);
void start_abort_timer(context &ctx);
void end_run(ngx_event_t *event);
void write_to_client(ngx_http_request_t *r);

}


void
ignore_client(ngx_http_upstream_conf_t &conf)
{
    conf.ignore_client_abort = 1;

    /*
     * With the response in a file, nginx would be done with the upstream and
     * the rest of it would wait for the client, out of our sight.
     */
    conf.max_temp_file_size = 0;

#if (nginx_version >= 1029000)
    conf.pass_early_hints = 0;
#endif
}


/* As limit_req does: a client that leaves frees its place. */
bool
watch_client(ngx_http_request_t *r)
{
    ngx_event_t *rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        return false;
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    return true;
}


/* The body was read by the gate, so there is nothing left to read. */
void
stop_watching_client(ngx_http_request_t *r)
{
    if (r->upstream->cleanup == nullptr) {
        return;
    }

    r->read_event_handler = look_for_client;
    outlast_quic_close(r);

    /* nginx tells the one that may write, which need not be the subrequest. */
    if (r->main->read_event_handler == ngx_http_block_reading) {
        r->main->read_event_handler = look_for_client;
    }

    if (!r->upstream->header_sent) {
        r->write_event_handler = ngx_http_request_empty_handler;
    }

    /* It may have left before anybody looked. */
    if (r->connection->read->ready || r->connection->error) {
        look_for_client(r);
    }
}


void
stop_abort_timer(context &ctx)
{
    ctx.run.client.abort.stop();
}


void
outlast_slow_client(context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    if (r->upstream != nullptr && r->upstream->cleanup != nullptr
        && r->write_event_handler != write_to_client && !ctx.conf->dry_run)
    {
        ctx.run.client.write_event_handler = r->write_event_handler;
        r->write_event_handler = write_to_client;
    }
}


void
client_left(context &ctx)
{
    ngx_connection_t *c = ctx.request->connection;

    ngx_log_error(
        NGX_LOG_INFO, c->log, 0,
        "idempotency: client disconnected, the request continues until "
        "its outcome is stored");

    count_client_gone(ctx);
    ctx.run.client.gone = true;
    ctx.request->keepalive = 0;
    c->error = 1;

    let_go(ctx);
    start_abort_timer(ctx);
}


void
drop_unsent(context &ctx, ngx_chain_t *in)
{
    let_go(ctx);
    consume(in);
}


/* What was passed on and is not sent yet must be let go when nobody reads. */
void
note_passed(context &ctx, ngx_chain_t *in)
{
    ngx_pool_t *pool = ctx.request->pool;
    ngx_chain_t **ll = &ctx.run.client.unsent;

    while (*ll != nullptr) {
        ngx_chain_t *cl = *ll;

        if (ngx_buf_size(cl->buf) != 0) {
            ll = &cl->next;
            continue;
        }

        *ll = cl->next;
        ngx_free_chain(pool, cl);
    }

    for (/* void */; in != nullptr; in = in->next) {

        if (ngx_buf_size(in->buf) == 0) {
            continue;
        }

        ngx_chain_t *cl = ngx_alloc_chain_link(pool);

        if (cl == nullptr) {
            return;
        }

        cl->buf = in->buf;
        cl->next = nullptr;
        *ll = cl;
        ll = &cl->next;
    }
}


namespace {

/* Its leaving ends nothing, but the time begins that the run has left. */
void
look_for_client(ngx_http_request_t *r)
{
    if (!has_left(r)) {
        ngx_http_block_reading(r);
        return;
    }

    r->read_event_handler = ngx_http_block_reading;
    count_client_gone(*find_context(r->main));
    start_abort_timer(*find_context(r->main));
}


bool
has_left(ngx_http_request_t *r)
{
    ngx_connection_t *c = r->connection;
    char byte;

    if (c->error || c->read->pending_eof) {
        return true;
    }

#if (NGX_HTTP_V2)
    if (r->stream != nullptr) {
        return false;
    }
#endif

#if (NGX_HTTP_V3)
    /* Its socket is that of all clients. */
    if (c->quic != nullptr) {
        return c->read->error || c->write->error;
    }
#endif

#if (NGX_HAVE_EPOLLRDHUP)
    /* The system tells it, see pending_eof: it need not be asked. */
    if ((ngx_event_flags & NGX_USE_EPOLL_EVENT) && ngx_use_epoll_rdhup) {
        return false;
    }
#endif

    ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK);

    return n == 0 || (n == -1 && ngx_socket_errno != NGX_EAGAIN);
}


/*
 * Nobody will ever make room: what stands still for that must go on.  Frames
 * of HTTP/2 that have begun their way go to the end of it, as others follow
 * them on the same connection; nginx calls again when they are gone.
 */
void
let_go(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    ngx_connection_t *c = r->connection;

    if (has_frames_under_way(r)) {
        return;
    }

    c->write->ready = 1;
    c->write->delayed = 0;
    c->buffered = 0;

    /* Once: whoever gave them will use them again. */
    consume(ctx.run.client.unsent);
    ctx.run.client.unsent = nullptr;
}


bool
has_frames_under_way([[maybe_unused]] ngx_http_request_t *r)
{
#if (NGX_HTTP_V2)
    return r->stream != nullptr && r->stream->queued != 0;
#else
    return false;
#endif
}


#if (NGX_HTTP_V3)

/*
 * The QUIC connection is closed and wants its streams to end, which nginx does
 * by ending their requests.  It waits for those that do not.
 */
void
handle_stream_event(ngx_event_t *event)
{
    auto *c = static_cast<ngx_connection_t *>(event->data);
    auto *r = static_cast<ngx_http_request_t *>(c->data);
    context *ctx = find_context(r->main);
    client_state &client = ctx->run.client;

    /* worker_shutdown_timeout closes all connections, and means it. */
    bool must_leave = ngx_exiting && !c->read->error;

    if (!c->close || must_leave || ctx->at != stage::running) {
        client.event_handler(event);
        return;
    }

    ngx_http_set_log_request(c->log, r);
    c->close = 0;
    c->error = 1;

    if (ctx->request->write_event_handler == write_to_client) {
        client_left(*ctx);
        client.write_event_handler(ctx->request);

    } else {
        look_for_client(ctx->request);
    }

    ngx_http_run_posted_requests(c);
}


void
outlast_quic_close(ngx_http_request_t *r)
{
    ngx_connection_t *c = r->connection;

    if (c->quic == nullptr || c->read->handler == handle_stream_event) {
        return;
    }

    find_context(r->main)->run.client.event_handler = c->read->handler;
    c->read->handler = handle_stream_event;
    c->write->handler = handle_stream_event;
}

#else

void
outlast_quic_close(ngx_http_request_t *)
{}

#endif


void
start_abort_timer(context &ctx)
{
    own_event &abort = ctx.run.client.abort;

    if (ctx.at != stage::running || ctx.conf->abort_timeout == 0
        || ctx.conf->dry_run || abort.event.timer_set)
    {
        return;
    }

    abort.init(&ctx, end_run, ctx.request->connection->log);
    ngx_add_timer(&abort.event, ctx.conf->abort_timeout);
}


/* The upstream is let go first: nginx may do more with the request. */
void
end_run(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);
    ngx_http_request_t *r = ctx->request;
    ngx_connection_t *c = r->connection;

    if (ctx->at != stage::running) {
        return;
    }

    ngx_http_set_log_request(c->log, r);
    ngx_log_error(NGX_LOG_WARN, c->log, 0,
                  "idempotency: client disconnected %M s ago, the request is "
                  "ended (\"idempotency_abort_timeout\")",
                  ctx->conf->abort_timeout / 1000);

    c->error = 1;

    if (r->upstream != nullptr && r->upstream->cleanup != nullptr) {
        r->main->count++;
        (*r->upstream->cleanup)(r);
    }

    end_run_with_response(r);
    ngx_http_finalize_request(r, NGX_HTTP_CLIENT_CLOSED_REQUEST);
    ngx_http_run_posted_requests(c);
}


/* In place of the upstream's: it would end the exchange for a slow client. */
void
write_to_client(ngx_http_request_t *r)
{
    context *ctx = find_context(r);
    ngx_event_t *wev = r->connection->write;

    if (wev->timedout && ctx->at == stage::running) {
        wev->timedout = 0;

        if (!ctx->run.client.gone) {
            client_left(*ctx);
        }
    }

    if (ctx->run.client.gone) {
        let_go(*ctx);
    }

    ctx->run.client.write_event_handler(r);
}

}

}
