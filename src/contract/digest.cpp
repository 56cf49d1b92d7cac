#include "contract/digest.h"

#include <openssl/evp.h>
#include <openssl/opensslv.h>

namespace idempotency {

static const EVP_MD *
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


hasher::~hasher()
{
    EVP_MD_CTX_free(context_);
}


void
hasher::start(std::string_view domain)
{
    const EVP_MD *algorithm = sha256();

    if (context_ == nullptr) {
        context_ = EVP_MD_CTX_new();
    }

    /* OpenSSL takes a null algorithm for "the same as before" */

    failed_ = algorithm == nullptr || context_ == nullptr
              || EVP_DigestInit_ex(context_, algorithm, nullptr) != 1;

    field(domain);
}


void
hasher::field(std::string_view value)
{
    number(value.size());
    bytes(value.data(), value.size());
}


void
hasher::number(std::uint64_t value)
{
    std::array<std::uint8_t, 8> little_endian;

    for (std::uint8_t &byte : little_endian) {
        byte = static_cast<std::uint8_t>(value);
        value >>= 8;
    }

    bytes(little_endian.data(), little_endian.size());
}


void
hasher::bytes(const void *data, std::size_t size)
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
    bool done = !failed_ && context_ != nullptr
                && EVP_DigestFinal_ex(context_, out.data(), nullptr) == 1;

    /* a finished context gives no second digest until it is started again */

    failed_ = true;

    return done;
}

}
