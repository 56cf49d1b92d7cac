#pragma once

#include "contract/digest.h"
#include "contract/pointer.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace idempotency {

struct json_workspace;


/*
 * What it takes to read JSON, kept from one document to the next: one for
 * each worker.  Nothing is allocated before the first document; after one
 * that took more than json_keep all is given back.  A document takes 5 to 6
 * bytes for each of its own, and never more than 16.
 */
class json_parser {
public:
    json_parser() = default;
    ~json_parser();

    json_parser(const json_parser &) = delete;
    json_parser &operator=(const json_parser &) = delete;

    /* The memory held now. */
    std::size_t memory() const;

    /* For the functions that read documents; null: no memory. */
    json_workspace *workspace();
    void trim();

private:
    json_workspace *workspace_ = nullptr;
};


/* Documents up to nginx's default client_max_body_size stay within it. */
inline constexpr std::size_t json_keep = 8 * 1024 * 1024;

/*
 * In all functions below a body is followed by this many bytes that may be
 * read.  Their values do not matter.
 */
inline constexpr std::size_t json_padding = 64;

/* The most pointers a list can have. */
inline constexpr std::size_t max_pointers = 64;

/* Arrays and objects within each other. */
inline constexpr unsigned json_max_depth = 512;

/* A longer body is not looked into. */
inline constexpr std::size_t json_max_size = 1024 * 1024 * 1024;


enum class json_result {
    ok,
    not_json, /* or not to be taken for it: see canonical_json() */
    no_memory,
};


/* Which parts of a document count. */
struct json_rules {
    /* If there are any, only these members, and what is in them. */
    std::span<const json_pointer> include;

    /* Not these, nor what is in them. */
    std::span<const json_pointer> exclude;

    /* Not the id of a JSON-RPC request.  A batch is no document. */
    bool jsonrpc = false;

    /* Nor the _meta of its params: what MCP says about a call, not in it. */
    bool mcp = false;
};


/*
 * Adds the canonical form of a document to the hash: the same bytes for all
 * spellings of the same value, others for any other value.  Where the result
 * is not ok nothing has been added.
 *
 * Strict by RFC 8259.  Besides, a document is not taken for JSON if a member
 * name occurs twice in an object, it nests deeper than json_max_depth, a
 * string has half of a surrogate pair, or the exponent of a number other than
 * 0 has more than 18 digits, leading zeros aside.
 *
 * The form, in which every value ends by itself:
 *
 *     null, false, true     n, f, t
 *     number                [-]digits;  or  [-]digits e [-]exponent;
 *                           digits: no leading and, but for 0, no trailing
 *                           zeros; no exponent: 0
 *     string, name          its UTF-8 after its length: a byte 128 + length,
 *                           or s and four bytes, little-endian, from 128 on
 *     array                 [values]
 *     object                {names and values, in the byte order of names}
 *     elements left out     _count;  before the next that is not
 *     nothing included      ?
 *
 * An array or object on the way to an included member counts only with what
 * is included of it, and not at all where that is nothing.
 */
json_result canonical_json(json_parser &parser, std::string_view body,
                           const json_rules &rules, hasher &hash);


/* Where a value is in a body; size 0: nowhere. */
struct json_extent {
    std::size_t at = 0;
    std::size_t size = 0;
};

}
