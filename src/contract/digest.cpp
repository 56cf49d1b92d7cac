#include "contract/digest.h"

#include "contract/little_endian.h"

#include <openssl/evp.h>
#include <openssl/opensslv.h>

#include <algorithm>

namespace idempotency {

namespace {

using length_bytes = std::array<std::uint8_t, 8>;


const EVP_MD *sha256();
length_bytes little_endian(std::uint64_t value);

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

    /* OpenSSL takes a null algorithm for "the same as before". */
    failed_ = algorithm == nullptr || context_ == nullptr
              || EVP_DigestInit_ex(context_, algorithm, nullptr) != 1;

    field(domain);
}


/* A call of OpenSSL costs more than these few bytes: one for both parts. */
void
hasher::field(std::string_view value)
{
    std::array<std::uint8_t, 128> framed;
    length_bytes length = little_endian(value.size());

    if (value.size() > framed.size() - length.size()) {
        bytes(length.data(), length.size());
        bytes(value.data(), value.size());
        return;
    }

    auto rest = std::copy(length.begin(), length.end(), framed.begin());
    std::copy(value.begin(), value.end(), rest);
    bytes(framed.data(), length.size() + value.size());
}


void
hasher::number(std::uint64_t value)
{
    length_bytes number = little_endian(value);

    bytes(number.data(), number.size());
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


length_bytes
little_endian(std::uint64_t value)
{
    length_bytes bytes;

    put_little_endian(bytes.data(), value);
    return bytes;
}

}

}
