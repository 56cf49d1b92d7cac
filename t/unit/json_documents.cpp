#include "json_body.h"

#include <catch2/catch.hpp>

using namespace idempotency;
using namespace std::string_view_literals;

/*
 * Every document is decided.  The idea, and most of the kinds of documents,
 * are those of JSONTestSuite.
 */

// clang-format off

static const std::string_view accepted[] = {
    /* outermost values of all kinds */
    "null", "true", "false", "0", "-0", "12", "-1.5e+3", "\"\"", "\"a\"",
    "[]", "{}", "1 ", " 1", "\n1\r\n", "\t[\t]\t", "\"\xc3\xa9\"",

    /* arrays */
    "[1]", "[1,2]", "[ 1 , 2 ]", "[[]]", "[[],[]]", "[[[]],[]]", "[{}]",
    "[null]", "[true,false,null]", "[\"a\",1,{}]", "[1]\n", "[\"\"]",
    "[1,null,null,null,2]", "[ \n]", "[2] ", "[\"a\"\n]", "[1\n,1\n,1]",

    /* objects */
    "{\"a\":1}", "{ \"a\" : 1 }", "{\"a\":{}}", "{\"a\":[]}", "{\"\":0}",
    "{\"a\":{\"a\":{\"a\":1}}}", "{\"a\":1,\"b\":1}", "{\"a\":\"a\"}",
    "{\"a\":1,\"A\":1}", "{\"foo\\u0000bar\":42}", "{\n\"a\":\n1\n}",
    "{\"a\":[{\"a\":1},{\"a\":1}]}", "{\"min\":-1e28,\"max\":1e28}",
    "{\"x\":[{\"id\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}]}",
    "{\"a\\\"b\":1}", "{\":\":\",\"}", "{\"{\":\"}\"}", "{\"[\":[]}",

    /* numbers */
    "[123e65]", "[0e+1]", "[0e1]", "[ 4]", "[-0.000000000000000000001]",
    "[20e1]", "[-123]", "[-1]", "[-0]", "[1E22]", "[1E-2]", "[1E+2]",
    "[123e45]", "[123.456e78]", "[1e-2]", "[1e+2]", "[123.456789]",
    "[0.4e006]", "[123123123123123123123123123123]", "[1e400]", "[-1e400]",
    "[1e-400]", "[100000000000000000000]", "[0.1]", "[1.0]", "[0.0]",
    "[0e99999999999999999999999999]", "[1e999999999999999999]",
    "[1e-999999999999999999]", "[1e000000000000000000000000000001]",

    /* strings */
    "[\"\\u0060\\u012a\\u12AB\"]", "[\"\\uD801\\udc37\"]",
    "[\"\\ud83d\\ude39\\ud83d\\udc8d\"]", "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]",
    "[\"\\\\u0000\"]", "[\"\\\"\"]", "[\"a/*b*/c/*d//e\"]", "[\"\\\\a\"]",
    "[\"\\\\n\"]", "[\"\\u0012\"]", "[\"\\uFFFF\"]", "[\"asd\"]", "[ \"asd\"]",
    "[\"\\uDBFF\\uDFFF\"]", "[\"new\\u00A0line\"]", "[\"\xf4\x8f\xbf\xbf\"]",
    "[\"\xef\xbf\xbf\"]", "[\"\\u0000\"]", "[\"\\u002c\"]", "[\"\xcf\x80\"]",
    "[\"\xf0\x9b\xbf\xbf\"]", "[\"\\u0821\"]", "[\"\\u0123\"]",
    "[\"\xe2\x80\xa8\"]", "[\"\xe2\x80\xa9\"]", "\" \"",
    "[\"\\u0061\xe3\x82\xaf"
    "\xe3\x83\xaa\xe3\x82\xb9\"]", "[\"new\\u000Aline\"]", "[\"\x7f\"]",
    "[\"\\uA66D\"]", "[\"\\u005C\"]", "[\"\\u0022\"]", "[\"\\u200B\"]",
    "[\"\\u2064\"]", "[\"\\uFDD0\"]", "[\"\\uFFFE\"]", "[\"\xef\xbb\xbf\"]",
    "[\"\xe2\x82\xac\xf0\x9d\x84\x9e\"]", "[\"a\x7f""a\"]", "\"\\\\\\\\\"",
};


static const std::string_view refused[] = {
    /* nothing, or not only one thing */
    "", " ", "\n", "\t \r\n", "1 2", "1,", ",1", "[] []", "[][]", "{}{}",
    "{}[]", "nullnull", "null null", "\"a\" \"b\"", "\"a\"\"b\"", "[1]x",
    "[1],", "{},", "[1]]", "{}}", "[]{", "1}", "1]", "{\"a\":1}#", "[],[]",
    "{\"a\":\"b\"}#{}", "{\"a\":true} \"x\"", "2@", "[1]\f", "[1]\v",
    "[1]\xa0",

    /* marks and bytes that have no place */
    "\xef\xbb\xbf", "\xef\xbb\xbf{}", "\xef\xbb\xbf[1]", "{}\xef\xbb\xbf",
    "\xfe\xff", "\xff\xfe[\0]\0"sv, "\0"sv, "\0[]"sv, "[]\0"sv, "[\0]"sv,
    "123\0"sv, "1\0""2"sv, "[1\0]"sv, "{\0}"sv, "\"\0\""sv, "[\"a\0a\"]"sv,
    "[\f]", "[\v]", "[1\f,2]", "[1,\f2]", "\f1", "[\xa0]", "[\x1a""1]",
    "{\"a\"\x1a""1}", "[1\x0c""2]", "[\xe2\x81\xa0]", "\xc3\xa5", "[\xff]",
    "*", "{\"a\":\"b\"}/**/", "{\"a\":/*c*/\"b\"}", "//\n1", "[1]//", "#1",
    "<.>", "[<null>]", "'a'", "['a']", "{'a':0}", "`a`", "@", "&", "\\",
    "[\\]",

    /* words */
    "nul", "tru", "fals", "nulll", "truee", "falsee", "Null", "TRUE", "True",
    "[nul]", "[tru]", "[fals]", "[truth]", "null1", "true\"a\"", "nul\0"sv,
    "undefined", "NaN", "[NaN]", "[-NaN]", "Infinity", "[-Infinity]", "[Inf]",
    "[nan]", "a", "\xc3\xa9", "[a", "[true false]", "[truefalse]", "n", "t",
    "f", "-n", "[x", "[x]", "[x,1]", "{x:1}", "{null:1}", "{true:1}",
    "true\f", "true\x0b",

    /* arrays */
    "[", "]", "[1", "[1,", "[,", "[,1]", "[1,]", "[1,,]", "[1,,2]", "[,]",
    "[,,]", "[1 2]", "[1 true]", "[\"a\" 1]", "[\"a\"", "[\"\"", "[\"\",]",
    "[[", "[[]", "[]]", "[[1]", "[3[4]]", "[[]4]", "[1:2]", "[\"a\":1]",
    "[\"x\"]]", "[1}", "[}", "[{]", "[{}", "[{}", "[1,\n1\n,1", "[1;2]",
    "[\"a\"b]", "[\"a\"\"b\"]", "[-]", "[*]", "[:]", "[1:]", "[(1)]",
    "[\"a\",\n4\n,1,", "[\"asd]", "[{},]", "[1]\"", "[12\"a\"]", "[\"a\"12]",
    "[1\"\"]", "[true\"\"]",

    /* objects */
    "{", "}", "{]", "{[", "{,", "{,}", "{:", "{:}", "{\"", "{\"a", "{\"a\"",
    "{\"a\"}", "{\"a\":", "{\"a\":}", "{\"a\":1", "{\"a\":1,", "{\"a\":1,}",
    "{\"a\":1,,\"b\":2}", "{,\"a\":1}", "{\"a\" 1}", "{\"a\",1}", "{\"a\"::1}",
    "{\"a\":1 \"b\":2}", "{\"a\":1:2}", "{1:1}", "{[]:1}", "{{}:1}", "{a:1}",
    "{\"a\":1]", "{\"a\":\"b\"", "{\"a\":\"b", "{\"a\":'b'}", "{\"a\":b}",
    "{\"a\":1;\"b\":2}", "{\"a\"=1}", "{\"a\":1,\"b\"}", "{\"a\":1,2}",
    "{\"a\":1,\"b\":}", "{\"a\":1,:2}", "{9999E9999:1}", "{null:null}",
    "{\"a\":1}}", "{\"a\":{\"b\":1}", "{\"a\":1,\"b\":2,",
    "{\"a\": true false}",
    "{\"a\"\"b\":1}", "{\"a\"b:1}", "{\"a\":\"b\"c}", "{\"id\":0,}",

    /* a name twice */
    "{\"a\":1,\"a\":1}", "{\"a\":1,\"a\":2}", "{\"a\":1,\"\\u0061\":1}",
    "{\"a\":1,\"b\":1,\"a\":1}", "{\"b\":1,\"a\":1,\"b\":1}",
    "{\"\":1,\"\":1}",
    "{\"b\":1,\"a\":1,\"a\":1}", "[{\"a\":{\"x\":1,\"x\":1}}]",
    "{\"\\u0000\":1,\"\\u0000\":1}", "{\"/\":1,\"\\/\":1}",
    "{\"123456789\":1,\"0\":0,\"123456789\":1}",

    /* numbers */
    "+1", "[+1]", "++1", "--1", "-", "[-]", "- 1", "[- 1]", "-a", "-1x", "1x",
    "01", "00", "-01", "-00", "012", "[01]", "0x1", "0x", "[0x42]", "1_000",
    "1.", "-1.", "0.", "[1.]", ".5", "-.5", "[.5]", ".", "-.", "[2.e3]",
    "1.e1", ".1e1", "1e", "1E", "1e+", "1e-", "1E+", "0e", "0e+", "[0.3e]",
    "[0.3e+]", "1.0e", "1.0e+", "1eE2", "1e2.5", "1e2e3", "1..2", "1.2.3",
    "1e1x", "[1+2]", "[1-2]", "[1e+-2]", "0.1.2", "[0e+-1]", "[9.e+]",
    "1.5\"", "[1 000.0]", "[1,5 6]", "1a", "[1ea]", "[1\xe5]", "[0\xe5]",
    "[1e1\xe5]", "[\xef\xbc\x91]", "[-foo]", "[-012]", "[-2.]", "[1.\"a\"]",
    "-\"a\"", "[1.5.]", "1,5", "[0.]", "1e99999999999999999999",
    "-1e-99999999999999999999", "1e1000000000000000000",
    "[1e9223372036854775808]", "0.1e-9999999999999999999", "1\f", "1\v",

    /* strings */
    "\"", "\"a", "a\"", "\"\\\"", "\"\\", "\"\\\\\\\"", "[\"\\\"]", "\"\n\"",
    "\"\t\"", "\"\r\"", "\"\x1f\"", "\"\x01\"", "[\"a\na\"]", "[\"\t\"]",
    "[\"\x1f\"]", "\"\\a\"", "\"\\x41\"", "\"\\'\"", "\"\\0\"", "\"\\ \"",
    "\"\\N\"", "\"\\U0041\"", "[\"\\\t\"]", "[\"\\\0\"]"sv, "[\"\\\xf0\x9f\x8c"
    "\x80\"]", "[\"\\\xe5\"]", "\"\\u\"", "\"\\u0\"", "\"\\u00\"",
    "\"\\u004\"",
    "\"\\u004g\"", "\"\\ug041\"", "\"\\u 041\"", "\"\\u+041\"", "\"\\u-041\"",
    "[\"\\u00A\"]", "[\"\\u\xc3\xa9\"]", "\"\\u{41}\"", "[\\n]",
    "[\\u0020\"a\"]",
    "'", "\"a\\", "[\"\\{[\"\\{[\"\\{", "\"\\u004",

    /* halves of surrogate pairs */
    "\"\\ud800\"", "\"\\udbff\"", "\"\\udc00\"", "\"\\udfff\"", "\"\\uDADA\"",
    "\"\\ud800\\ud800\"", "\"\\udc00\\ud800\"", "\"\\ud800\\u0041\"",
    "\"\\ud800a\"", "\"\\ud800\\n\"", "\"a\\udc00\"", "\"\\ud800\\udbff\"",
    "\"\\ud800\\udc0\"", "\"\\ud800\\udc0x\"", "\"\\ud800\\\"",
    "\"\\ud800\\u\"",
    "\"\\ud800\\ue000\"", "\"\\uD800\\uD800\\uDC00\"", "{\"\\ud800\":1}",
    "\"\\ud83d\\ude0", "\"\\ud83d\xed\xb8\x80\"",

    /* not UTF-8 */
    "\"\xff\"", "\"\xfe\"", "\"\x80\"", "\"\xbf\"", "\"\xc3\"", "\"\xc3(\"",
    "\"\xe2\x82\"", "\"\xe2(\xa1\"", "\"\xf0\x9f\x98\"", "\"\xf0\x9f\"",
    "\"\xf0\"", "\"\xc0\x80\"", "\"\xc0\xaf\"", "\"\xc1\xbf\"",
    "\"\xe0\x80\xaf\"", "\"\xe0\x9f\xbf\"", "\"\xf0\x80\x80\xaf\"",
    "\"\xf0\x8f\xbf\xbf\"", "\"\xed\xa0\x80\"", "\"\xed\xbf\xbf\"",
    "\"\xed\xa0\xbd\xed\xb8\x80\"", "\"\xf4\x90\x80\x80\"",
    "\"\xf5\x80\x80\x80\"", "\"\xf8\x88\x80\x80\x80\"",
    "\"\xfc\x84\x80\x80\x80\x80\"", "\"\x81\"", "[\"\xe9\"]", "{\"\xb9\":1}",
    "\"\xe6\x97\xa5\xd1\x88\xfa\"", "[\"\xe0\xff\"]", "\"a\xc3", "\xc3",
};

// clang-format on


TEST_CASE("json: documents that are JSON", "[json]")
{
    json_parser parser;

    for (std::string_view body : accepted) {
        INFO(body);
        CHECK(json_digest(parser, body).size() == 32);

        /* and inside of others, wherever they begin */
        for (std::size_t shift : {1, 7, 31, 62, 63, 64, 65, 127}) {
            std::string shifted(shift, ' ');
            std::string inside = "[";

            shifted += body;
            CHECK(json_digest(parser, shifted) == json_digest(parser, body));

            inside += shifted + ",{\"a\":" + shifted + "}]";
            CHECK(json_digest(parser, inside).size() == 32);
        }
    }
}


TEST_CASE("json: documents that are not", "[json]")
{
    json_parser parser;
    pointer_list pointers = {"/a", "/*/a", "/0", "/x/y"};
    json_rules rules;

    for (std::string_view body : refused) {
        INFO(body);
        CHECK(json_digest(parser, body) == "not json");

        for (char filler : "\"]}1 "sv) {
            CHECK(json_digest(parser, body, {}, filler) == "not json");
        }

        /* nor where the rules would leave them out */
        rules.include = pointers;
        rules.exclude = {};
        CHECK(json_digest(parser, body, rules) == "not json");
        rules.include = {};
        rules.exclude = pointers;
        CHECK(json_digest(parser, body, rules) == "not json");
        rules.jsonrpc = true;
        CHECK(json_digest(parser, body, rules) == "not json");
        rules.jsonrpc = false;

        std::string shifted(63, ' ');
        shifted += body;
        CHECK(json_digest(parser, shifted) == "not json");
    }

    CHECK(std::size(accepted) + std::size(refused) > 500);
}


TEST_CASE("json: a document cut short is none", "[json]")
{
    json_parser parser;
    constexpr std::string_view body =
        R"( {"b":[1,-2.5e+10,"x\u00e9\ud83d\ude00é"],"a":{"t":true,"f":false,)"
        R"("n":null,"e":{},"l":[[],[{}]]},"c":"end"})";

    CHECK(json_digest(parser, body).size() == 32);

    for (std::size_t size = 0; size < body.size(); size++) {
        INFO(size);
        CHECK(json_digest(parser, body.substr(0, size), {}, ' ')
              == "not json");
        CHECK(json_digest(parser, body.substr(0, size), {}, '}')
              == "not json");
    }
}


/* One byte more or another one may give JSON, but not the same value. */
TEST_CASE("json: any byte of a document matters", "[json]")
{
    json_parser parser;
    const std::string body =
        R"({"b":[10,-2.5e1,"x\u00e9"],"a":{"t":true,"n":null},"c":""})";
    const std::string expected = json_digest(parser, body);

    for (std::size_t at = 0; at < body.size(); at++) {
        for (int c = 0; c < 256; c++) {
            std::string changed = body;

            if (static_cast<char>(c) == body[at]) {
                continue;
            }

            changed[at] = static_cast<char>(c);

            /* the other spellings of the same: \u00E9 and 2.5E1 */
            bool same = body[at] == 'e' && c == 'E'
                        && (body[at + 1] == '1' || body[at + 1] == '9');

            INFO(changed);
            CHECK((json_digest(parser, changed) == expected) == same);
        }
    }
}
