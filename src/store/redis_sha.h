#pragma once

#include "ngx.h"

extern "C" {
#include <ngx_sha1.h>
}

namespace idempotency {

/* Redis identifies a script by its SHA-1, in hexadecimal digits. */
class script_hash {
public:
    explicit script_hash(std::string_view script)
    {
        u_char hash[20];
        ngx_sha1_t sha;

        ngx_sha1_init(&sha);
        ngx_sha1_update(&sha, script.data(), script.size());
        ngx_sha1_final(hash, &sha);
        ngx_hex_dump(text_, hash, sizeof(hash));
    }

    operator std::string_view() const
    {
        return {reinterpret_cast<const char *>(text_), sizeof(text_)};
    }

private:
    u_char text_[40];
};

}
