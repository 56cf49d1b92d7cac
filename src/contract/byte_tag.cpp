#include "contract/byte_tag.h"

#include <openssl/evp.h>

#include <climits>

namespace idempotency {

namespace {

/* Tags are compared, so the same bytes must have the same one. */
constexpr std::array<std::uint8_t, 12> nonce = {};

}


tagger::~tagger()
{
    EVP_CIPHER_CTX_free(context_);
}


void
tagger::start(const tag_key &key)
{
    forget();

    /* Only the first time with a key needs its expansion. */
    failed_ = (context_ == nullptr || key != key_)
                  ? !prepare(key)
                  : EVP_EncryptInit_ex(context_, nullptr, nullptr, nullptr,
                                       nonce.data())
                        != 1;
}


bool
tagger::prepare(const tag_key &key)
{
    if (context_ == nullptr) {
        context_ = EVP_CIPHER_CTX_new();
    }

    if (context_ == nullptr
        || EVP_EncryptInit_ex(context_, EVP_aes_128_gcm(), nullptr, key.data(),
                              nonce.data())
               != 1)
    {
        return false;
    }

    key_ = key;

    return true;
}


/* There is no plain text: all is what GCM calls additional data. */
void
tagger::take(const void *data, std::size_t size)
{
    int written;

    if (failed_ || size == 0) {
        return;
    }

    failed_ = size > INT_MAX
              || EVP_EncryptUpdate(context_, nullptr, &written,
                                   static_cast<const unsigned char *>(data),
                                   static_cast<int>(size))
                     != 1;
}


bool
tagger::finish(byte_tag &out)
{
    unsigned char nothing[16];
    int written;

    flush();

    bool done = !failed_
                && EVP_EncryptFinal_ex(context_, nothing, &written) == 1
                && EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_GET_TAG,
                                       static_cast<int>(out.size()),
                                       out.data())
                       == 1;

    failed_ = true;

    return done;
}

}
