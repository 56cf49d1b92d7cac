#pragma once

/* The one place where nginx's headers enter C++. */

extern "C" {
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>
}

#include <cstddef>
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

    void *memory = ngx_palloc(pool, count * sizeof(T) + (count == 0));

    if (memory == nullptr) {
        return {};
    }

    return {static_cast<T *>(memory), count};
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


template <class Each>
void
each_field(ngx_list_t &list, Each each)
{
    for (ngx_list_part_t *part = &list.part; part != nullptr;
         part = part->next) {
        auto *h = static_cast<ngx_table_elt_t *>(part->elts);

        for (ngx_uint_t i = 0; i < part->nelts; i++) {
            each(h[i]);
        }
    }
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

}
