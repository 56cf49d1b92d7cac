#pragma once

/* The one place where nginx's headers enter C++. */

extern "C" {
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>
}

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

extern "C" ngx_module_t ngx_http_idempotency_module;

namespace idempotency {

/* An object in a pool; the pool's end is its end. */
template <class T, class... Args>
T *
make(ngx_pool_t *pool, Args &&...args)
{
    void *memory;

    if constexpr (std::is_trivially_destructible_v<T>) {
        memory = ngx_palloc(pool, sizeof(T));

        if (memory == nullptr) {
            return nullptr;
        }

    } else {
        ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(pool, sizeof(T));

        if (cleanup == nullptr) {
            return nullptr;
        }

        memory = cleanup->data;
        cleanup->handler = [](void *data) { static_cast<T *>(data)->~T(); };
    }

    return ::new (memory) T{std::forward<Args>(args)...};
}


template <class T>
std::span<T>
make_array(ngx_pool_t *pool, std::size_t count)
{
    static_assert(std::is_trivially_copyable_v<T>);

    /* An empty array has an address too: null means no memory. */
    void *memory = ngx_palloc(pool, count * sizeof(T) + (count == 0));

    if (memory == nullptr) {
        return {};
    }

    return {static_cast<T *>(memory), count};
}


template <class T>
bool
append(ngx_array_t *list, const T &value)
{
    auto *slot = static_cast<T *>(ngx_array_push(list));

    if (slot == nullptr) {
        return false;
    }

    *slot = value;
    return true;
}


template <class T>
std::span<T>
elements(const ngx_array_t *array)
{
    if (array == nullptr) {
        return {};
    }

    return {static_cast<T *>(array->elts), array->nelts};
}


inline std::string_view
view(const ngx_str_t &s)
{
    return {reinterpret_cast<const char *>(s.data), s.len};
}


/* nginx takes no pointer to const, though it does not write here either. */
inline ngx_str_t
str(std::string_view s)
{
    return {s.size(),
            reinterpret_cast<u_char *>(const_cast<char *>(s.data()))};
}


inline bool
same_name(std::string_view a, std::string_view b)
{
    return a.size() == b.size()
           && ngx_strncasecmp(str(a).data, str(b).data, a.size()) == 0;
}


template <class T, class F>
void
each(ngx_list_t &list, F call)
{
    for (ngx_list_part_t *part = &list.part; part != nullptr;
         part = part->next) {
        for (T &element : std::span(static_cast<T *>(part->elts), part->nelts))
        {
            call(element);
        }
    }
}


template <class F>
void
each_field(ngx_list_t &list, F call)
{
    each<ngx_table_elt_t>(list, call);
}


/* A string in a pool, as printf makes it; no data: no memory. */
template <class... Args>
ngx_str_t
format(ngx_pool_t *pool, std::size_t size, const char *text, Args... args)
{
    auto *p = static_cast<u_char *>(ngx_pnalloc(pool, size));

    if (p == nullptr) {
        return ngx_null_string;
    }

    u_char *end = ngx_snprintf(p, size, text, args...);

    return {static_cast<std::size_t>(end - p), p};
}


inline ngx_table_elt_t *
push_header(ngx_http_request_t *r, ngx_str_t name, ngx_str_t value)
{
    auto *h = static_cast<ngx_table_elt_t *>(
        ngx_list_push(&r->headers_out.headers));

    if (h != nullptr) {
        *h = {};
        h->hash = 1;
        h->key = name;
        h->value = value;
    }

    return h;
}


/* Marks buffers as sent. */
inline void
consume(ngx_chain_t *in)
{
    for (ngx_chain_t *cl = in; cl != nullptr; cl = cl->next) {
        cl->buf->pos = cl->buf->last;
        cl->buf->file_pos = cl->buf->file_last;
    }
}


/* Milliseconds until then, negative after it; nginx's clock wraps around. */
inline ngx_msec_int_t
time_left(ngx_msec_t when)
{
    return static_cast<ngx_msec_int_t>(when - ngx_current_msec);
}


inline bool
is_due(ngx_msec_t when)
{
    return time_left(when) <= 0;
}


/*
 * A timer or a posted event of our own.  nginx's debug log takes what an
 * event points to for a connection and prints its fd: the head of this struct
 * is laid out to bear that.
 */
struct own_event {
    void *owner;
    void *unused[2];
    ngx_socket_t fd;
    ngx_event_t event;

    void init(void *object, ngx_event_handler_pt handler, ngx_log_t *log)
    {
        ngx_memzero(&event, sizeof(event));
        owner = object;
        fd = static_cast<ngx_socket_t>(-1);
        event.data = this;
        event.handler = handler;
        event.log = log;
    }

    void stop()
    {
        if (event.timer_set) {
            ngx_del_timer(&event);
        }

        if (event.posted) {
            ngx_delete_posted_event(&event);
        }
    }

    template <class T>
    static T *owner_of(ngx_event_t *event)
    {
        return static_cast<T *>(static_cast<own_event *>(event->data)->owner);
    }
};

static_assert(std::is_standard_layout_v<own_event>);
static_assert(offsetof(own_event, fd) == offsetof(ngx_connection_t, fd));


/* A module of nginx that not every build has; null: this one does not. */
inline ngx_module_t *
find_http_module(ngx_cycle_t *cycle, std::string_view name)
{
    for (ngx_module_t **m = cycle->modules; *m != nullptr; m++) {
        if ((*m)->type == NGX_HTTP_MODULE && (*m)->name == name) {
            return *m;
        }
    }

    return nullptr;
}

}
