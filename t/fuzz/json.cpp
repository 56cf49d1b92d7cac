#include "json_check.h"

using namespace idempotency;


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    static json_parser parser;
    std::string body(text_of(data, size));
    auto expected = oracle::reader(body).document();
    auto got = canonical(parser, body);

    check(expected.has_value() == got.has_value(), "both take it for JSON");

    if (got) {
        check(*got == digest_of(oracle::form_of(*expected, {}, {})),
              "both give the same form");
    }

    check(canonical(parser, body, {}, '"') == got,
          "the padding is not taken for more");
    check(canonical(parser, body, {}, '1') == got, "nor added to a number");
    check(canonical(parser, " \t" + body + "\r\n ") == got,
          "white space does not count");
    check(canonical(parser, "[" + body + "]").has_value() || !got
              || expected->type == '[' || expected->type == '{',
          "a value is a value in an array");

    json_rules rules;

    rules.jsonrpc = true;

    auto request = canonical(parser, body, rules);

    if (!expected || expected->type == '[') {
        check(!request, "a batch is no request");
        return 0;
    }

    expected->members.erase("id");
    check(request == digest_of(oracle::form_of(*expected, {}, {})),
          "the id does not count");
    return 0;
}
