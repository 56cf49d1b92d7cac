#pragma once

#include "contract/digest.h"

namespace idempotency {

/* Beyond, a body counts as bytes: pairs cost more than their bytes. */
inline constexpr std::size_t max_form_pairs = 65536;


enum class form_result {
    ok,
    not_form,
    no_memory,
};


/*
 * Adds a body of application/x-www-form-urlencoded to the hash by what it
 * means: its pairs of name and value, decoded, sorted by the root of the name;
 * those of one root keep their order.  Names and values are bytes, of whatever
 * charset.  As everywhere on the web, empty pieces between two '&' are none,
 * and "a" is "a=".
 *
 * The root of a name is what is before its first '[', in lower case, with '_'
 * for '.' and ' '.  Applications make one list or one variable of names of one
 * root: PHP of "a[]" and "a[0]", of "a.b" and "a_b", Rails of
 * "items[][name]" and "items[][price]", and of "Amount" and "amount" those
 * that do not look at the case.  Then the order tells what they mean.
 *
 * Not a form: more than max_form_pairs pairs, an escape that is none, and a
 * ';' in the clear.  No serializer
 * leaves it so, and there are servers that take it for a '&': to them "a;b"
 * and "a%3Bb" are two things, which must not look as one.
 *
 * Unless it is ok nothing was added.  Needs memory for the time of the call,
 * at most seven times the body.
 */
[[nodiscard]] form_result canonical_form(std::string_view body, hasher &hash);

}
