#include "store/memory_store.h"

#include <openssl/rand.h>

namespace idempotency {

namespace {

constexpr std::string_view prefix = "idempotency:";

ngx_int_t init_shm_zone(ngx_shm_zone_t *shm, void *data);
bool has_zone(ngx_cycle_t *cycle, const ngx_str_t &name);
bool has_file(ngx_cycle_t *cycle, const ngx_str_t &path);

}


store *
make_memory_store(ngx_conf_t *cf, const ngx_str_t &name,
                  const memory_settings &how)
{
    ngx_str_t zone_name;

    /* Zones of all modules share one space of names. */
    zone_name.len = prefix.size() + name.len;
    zone_name.data = static_cast<u_char *>(
        ngx_pnalloc(cf->pool, zone_name.len));

    if (zone_name.data == nullptr) {
        return nullptr;
    }

    ngx_memcpy(ngx_cpymem(zone_name.data, prefix.data(), prefix.size()),
               name.data, name.len);

    /* The smallest that nginx has, where the records are in a file. */
    std::size_t size = how.file.len != 0 ? 8 * ngx_pagesize : how.size;

    ngx_shm_zone_t *shm = ngx_shared_memory_add(cf, &zone_name, size,
                                                &ngx_http_idempotency_module);

    if (shm == nullptr) {
        return nullptr;
    }

    auto *made = make<memory_store>(cf->pool, cf->cycle, shm, how);

    shm->init = init_shm_zone;
    shm->data = made;

    return made;
}


/* On reload, while the zones of the configuration before are still there. */
void
say_dropped_zones(ngx_cycle_t *cycle)
{
    auto *before = const_cast<ngx_cycle_t *>(ngx_cycle);

    if (ngx_test_config || ngx_is_init_cycle(before)) {
        return;
    }

    each<ngx_shm_zone_t>(before->shared_memory, [&](ngx_shm_zone_t &shm) {
        if (shm.tag != &ngx_http_idempotency_module
            || !view(shm.shm.name).starts_with(prefix)
            || has_zone(cycle, shm.shm.name))
        {
            return;
        }

        auto *gone = static_cast<memory_store *>(shm.data);
        std::size_t records = gone->count();

        if (records == 0 || has_file(cycle, gone->file())) {
            return;
        }

        if (gone->is_on_file()) {
            ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                          "idempotency: zone \"%V\" is not in the new "
                          "configuration, its %uz record%s in the file "
                          "\"%V\": retries of these requests run again",
                          &shm.shm.name, records,
                          records == 1 ? " stays" : "s stay", &gone->file());
            return;
        }

        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "idempotency: zone \"%V\" is not in the new "
                      "configuration, its %uz record%s dropped: retries of "
                      "these requests run again",
                      &shm.shm.name, records, records == 1 ? " is" : "s are");
    });
}


namespace {

ngx_int_t
init_shm_zone(ngx_shm_zone_t *shm, void *data)
{
    return static_cast<memory_store *>(shm->data)->init_zone(
        static_cast<memory_store *>(data));
}


bool
has_zone(ngx_cycle_t *cycle, const ngx_str_t &name)
{
    bool found = false;

    each<ngx_shm_zone_t>(cycle->shared_memory, [&](ngx_shm_zone_t &shm) {
        found = found || view(shm.shm.name) == view(name);
    });

    return found;
}


bool
has_file(ngx_cycle_t *cycle, const ngx_str_t &path)
{
    bool found = false;

    each<ngx_shm_zone_t>(cycle->shared_memory, [&](ngx_shm_zone_t &shm) {
        if (shm.tag == &ngx_http_idempotency_module
            && view(shm.shm.name).starts_with(prefix))
        {
            auto *there = static_cast<memory_store *>(shm.data);

            found = found
                    || (there->is_on_file()
                        && view(there->file()) == view(path));
        }
    });

    return found;
}

}


memory_store::~memory_store()
{
    if (file_ != nullptr) {
        file_->release();
    }
}


ngx_int_t
memory_store::init_zone(memory_store *old)
{
    pool_ = reinterpret_cast<ngx_slab_pool_t *>(shm_->shm.addr);

    if (old != nullptr && old->is_on_file() != is_on_file()) {
        return refuse_change(is_on_file() ? "get" : "lose");
    }

    return is_on_file() ? init_file(old) : init_memory(old);
}


ngx_int_t
memory_store::refuse_change(const char *what)
{
    ngx_log_error(NGX_LOG_EMERG, shm_->shm.log, 0,
                  "idempotency: zone \"%V\" cannot %s a file on reload, its "
                  "records would be lost: restart nginx or rename the store",
                  &shm_->shm.name, what);
    return NGX_ERROR;
}


ngx_int_t
memory_store::init_file(memory_store *old)
{
    auto *core = reinterpret_cast<ngx_core_conf_t *>(
        ngx_get_conf(cycle_->conf_ctx, ngx_core_module));
    bool root = geteuid() == 0;
    zone_file_settings how{
        .path = reinterpret_cast<const char *>(settings_.file.data),
        .size = settings_.size,
        .owner = root ? core->user : geteuid(),
        .group = root ? core->group : getegid(),
        .older = zone::conversions(),
    };
    zone_file_error e;
    zone_file_report found;
    ngx_shm_zone_t *other = find_predecessor();

    if (old == nullptr && other != nullptr
        && other->tag == &ngx_http_idempotency_module
        && !static_cast<memory_store *>(other->data)->is_on_file())
    {
        return refuse_change("get");
    }

    if (old != nullptr && view(old->settings_.file) != how.path) {
        ngx_log_error(NGX_LOG_EMERG, shm_->shm.log, 0,
                      "idempotency: zone \"%V\" cannot change its file from "
                      "\"%V\" to \"%V\" on reload, its records would be "
                      "lost: restart nginx or rename the store",
                      &shm_->shm.name, &old->settings_.file, &settings_.file);
        return NGX_ERROR;
    }

    /* The store of another build is not to be looked into. */
    if (old == nullptr && other != nullptr && !zone_file::is_in_use(how.path))
    {
        ngx_log_error(NGX_LOG_EMERG, shm_->shm.log, 0,
                      "idempotency: zone \"%V\" has another file than "
                      "\"%V\", or none, and cannot change it on reload, its "
                      "records would be lost: restart nginx or rename the "
                      "store",
                      &shm_->shm.name, &settings_.file);
        return NGX_ERROR;
    }

    if (ngx_test_config) {

        if (zone_file::test(how, e)) {
            return NGX_OK;
        }

    } else if (old != nullptr && old->settings_.size == settings_.size) {
        file_ = old->file_;
        file_->retain();

    } else {
        file_ = zone_file::open(how, e, found);
    }

    if (file_ != nullptr) {
        zone_ = file_->records();
        say_opened(found);
        return NGX_OK;
    }

    if (e.size != 0) {
        ngx_log_error(NGX_LOG_EMERG, shm_->shm.log, 0,
                      "idempotency: file \"%V\" of a store of %uz bytes "
                      "cannot be used, it has %uz bytes: %s",
                      &settings_.file, settings_.size, e.size, e.reason);
        return NGX_ERROR;
    }

    ngx_log_error(NGX_LOG_EMERG, shm_->shm.log, e.code,
                  "idempotency: file \"%V\" cannot be used: %s",
                  &settings_.file, e.reason);

    return NGX_ERROR;
}


void
memory_store::say_opened(const zone_file_report &found)
{
    const zone_damage &damage = found.damage;

    if (found.created) {
        ngx_log_error(NGX_LOG_NOTICE, shm_->shm.log, 0,
                      "idempotency: file \"%V\" created", &settings_.file);
    }

    if (found.converted) {
        ngx_log_error(NGX_LOG_NOTICE, shm_->shm.log, 0,
                      "idempotency: file \"%V\" converted to the layout of "
                      "this build, %uz records",
                      &settings_.file, damage.records);
    }

    if (found.grown) {
        ngx_log_error(NGX_LOG_NOTICE, shm_->shm.log, 0,
                      "idempotency: file \"%V\" has %uz bytes now",
                      &settings_.file, settings_.size);
    }

    if (found.write_failed) {
        ngx_log_error(NGX_LOG_ERR, shm_->shm.log, 0,
                      "idempotency: file \"%V\" could not be written to the "
                      "disk before this start: records of that time may be "
                      "lost, and their requests can run again",
                      &settings_.file);
    }

    if (damage.lost != 0 || damage.without_response != 0) {
        ngx_log_error(NGX_LOG_ERR, shm_->shm.log, 0,
                      "idempotency: file \"%V\" was damaged, as by a loss of "
                      "power: %uz records are lost, %uz have lost their "
                      "response, %uz are intact",
                      &settings_.file, damage.lost, damage.without_response,
                      damage.records - damage.without_response);
    }
}


ngx_int_t
memory_store::init_memory(memory_store *old)
{
    if (old != nullptr) {
        zone_ = old->zone_;
        return NGX_OK;
    }

    ngx_shm_zone_t *other = find_predecessor();

    if (other != nullptr && other->tag == &ngx_http_idempotency_module
        && static_cast<memory_store *>(other->data)->is_on_file())
    {
        return refuse_change("lose");
    }

    if (other != nullptr && other->shm.size != shm_->shm.size) {
        ngx_log_error(NGX_LOG_EMERG, shm_->shm.log, 0,
                      "idempotency: zone \"%V\" cannot change its size from "
                      "%uz to %uz bytes on reload, its records would be lost: "
                      "restart nginx or rename the store to start with an "
                      "empty zone",
                      &shm_->shm.name, other->shm.size, shm_->shm.size);
        return NGX_ERROR;
    }

    if (other != nullptr) {
        ngx_log_error(NGX_LOG_EMERG, shm_->shm.log, 0,
                      "idempotency: zone \"%V\" was created by another build "
                      "of the module, its records would be lost on reload: "
                      "restart nginx or rename the store to start with an "
                      "empty zone",
                      &shm_->shm.name);
        return NGX_ERROR;
    }

    if (format() != NGX_OK) {
        ngx_log_error(NGX_LOG_EMERG, shm_->shm.log, 0,
                      "idempotency: zone \"%V\" cannot be initialized, "
                      "%uz bytes may be too small",
                      &shm_->shm.name, shm_->shm.size);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/*
 * On reload nginx silently gives new memory to a zone of another size, or of
 * another build of the module.
 */
ngx_shm_zone_t *
memory_store::find_predecessor() const
{
    ngx_shm_zone_t *found = nullptr;

    each<ngx_shm_zone_t>(const_cast<ngx_cycle_t *>(ngx_cycle)->shared_memory,
                         [&](ngx_shm_zone_t &other) {
                             if (view(other.shm.name) == view(shm_->shm.name))
                             {
                                 found = &other;
                             }
                         });

    return found;
}


ngx_int_t
memory_store::format()
{
    std::uint64_t seed;

    /* One piece, all there is: a zone manages its memory itself. */
    std::size_t size = pool_->pfree << ngx_pagesize_shift;
    void *region = ngx_slab_alloc(pool_, size);

    if (region == nullptr
        || RAND_bytes(reinterpret_cast<unsigned char *>(&seed), sizeof(seed))
               != 1)
    {
        return NGX_ERROR;
    }

    zone_ = zone::format(region, size, seed);
    pool_->data = region;

    return zone_ != nullptr ? NGX_OK : NGX_ERROR;
}

}
