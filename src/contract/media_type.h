#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace idempotency {

/* The kinds of bodies whose sameness is more than that of their bytes. */
enum class media {
    json,
    form,
    multipart,
    other,
};


struct media_type {
    media kind = media::other;
    std::string_view boundary; /* of multipart only */
};


/* RFC 2046, section 5.1.1 */
inline constexpr std::size_t max_boundary = 70;

bool is_boundary(std::string_view text);

/*
 * Whether a Content-Type's value names a JSON type, whatever follows it.  Many
 * servers do not look at what follows.
 */
bool names_json(std::string_view content_type);

/*
 * What a Content-Type's value says: a JSON type (application/json, text/json,
 * application/x-amz-json-1.0 and -1.1, any subtype that ends with +json),
 * application/x-www-form-urlencoded, or multipart/form-data with a boundary.
 * Whatever is malformed, or says one thing twice, is other.  The boundary
 * lies in the value itself or, where escapes were resolved, in out, for which
 * max_boundary bytes suffice.
 */
media_type parse_media_type(std::string_view content_type,
                            std::span<char> out);

}
