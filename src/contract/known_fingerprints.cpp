#include "contract/known_fingerprints.h"

#include "contract/little_endian.h"

#include <algorithm>
#include <atomic>

namespace idempotency {

class known_fingerprints::hold {
public:
    explicit hold(group &g)
        : taken_(g.taken),
          got_(taken_.exchange(1, std::memory_order_acquire) == 0)
    {}

    ~hold()
    {
        if (got_) {
            taken_.store(0, std::memory_order_release);
        }
    }

    hold(const hold &) = delete;
    hold &operator=(const hold &) = delete;

    explicit operator bool() const { return got_; }

private:
    std::atomic_ref<std::uint32_t> taken_;
    bool got_;
};


bool
known_fingerprints::find(const byte_tag &tag, digest &fingerprint)
{
    group &g = group_of(tag);
    hold held(g);

    if (!held) {
        return false;
    }

    std::size_t used = std::min<std::size_t>(g.added, g.entries.size());

    for (std::size_t i = 0; i < used; i++) {
        if (g.entries[i].tag == tag) {
            fingerprint = g.entries[i].fingerprint;
            return true;
        }
    }

    return false;
}


void
known_fingerprints::add(const byte_tag &tag, const digest &fingerprint)
{
    group &g = group_of(tag);
    hold held(g);

    if (held) {
        g.entries[g.added++ % g.entries.size()] = {tag, fingerprint};
    }
}


known_fingerprints::group &
known_fingerprints::group_of(const byte_tag &tag)
{
    return groups_[get_little_endian<std::uint64_t>(tag.data())
                   % groups_.size()];
}

}
