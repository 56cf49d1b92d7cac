#include "contract/digest.h"

#include "contract/little_endian.h"

#include <openssl/evp.h>
#include <openssl/opensslv.h>

#include <cstring>

namespace idempotency {

namespace {

constexpr std::size_t most_kept = 64;

/* Of digests that have ended.  A process has one thread. */
std::array<EVP_MD_CTX *, most_kept> kept;
std::size_t kept_count;

const EVP_MD *sha256();
EVP_MD_CTX *borrow();
void give_back(EVP_MD_CTX *context);

}


void
framed::field(std::string_view value)
{
    number(value.size());
    bytes(value.data(), value.size());
}


void
framed::number(std::uint64_t value)
{
    std::array<std::uint8_t, 8> number;

    put_little_endian(number.data(), value);
    bytes(number.data(), number.size());
}


void
framed::bytes(const void *data, std::size_t size)
{
    if (size > gathered_.size() - held_) {
        flush();

        if (size > gathered_.size()) {
            take(data, size);
            return;
        }
    }

    if (size != 0) {
        std::memcpy(gathered_.data() + held_, data, size);
        held_ = static_cast<std::uint16_t>(held_ + size);
    }
}


void
framed::flush()
{
    take(gathered_.data(), held_);
    held_ = 0;
}


hasher::~hasher()
{
    give_back(context_);
}


void
hasher::start(std::string_view domain)
{
    const EVP_MD *algorithm = sha256();

    if (context_ == nullptr) {
        context_ = borrow();
    }

    /* OpenSSL takes a null algorithm for "the same as before". */
    failed_ = algorithm == nullptr || context_ == nullptr
              || EVP_DigestInit_ex(context_, algorithm, nullptr) != 1;
    forget();

    field(domain);
}


void
hasher::take(const void *data, std::size_t size)
{
    if (failed_ || size == 0) {
        return;
    }

    failed_ = context_ == nullptr
              || EVP_DigestUpdate(context_, data, size) != 1;
}


bool
hasher::finish(digest &out)
{
    flush();

    bool done = !failed_ && context_ != nullptr
                && EVP_DigestFinal_ex(context_, out.data(), nullptr) == 1;

    /* A finished context gives no second digest until it is started again. */
    failed_ = true;

    return done;
}


namespace {

const EVP_MD *
sha256()
{
#if OPENSSL_VERSION_NUMBER >= 0x30000000L

    /*
     * EVP_sha256() would be looked up among the providers at every init.
     * One reference for the life of the process; workers have one thread.
     */
    static EVP_MD *fetched = nullptr;

    if (fetched == nullptr) {
        fetched = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    }

    return fetched;

#else

    return EVP_sha256();

#endif
}


/* Making one, with the state of its digest, costs as much as a short hash. */
EVP_MD_CTX *
borrow()
{
    return kept_count == 0 ? EVP_MD_CTX_new() : kept[--kept_count];
}


void
give_back(EVP_MD_CTX *context)
{
    if (context == nullptr) {
        return;
    }

    if (kept_count == kept.size()) {
        EVP_MD_CTX_free(context);
        return;
    }

    kept[kept_count++] = context;
}

}

}
