#include "contract/jsonrpc.h"
#include "json_body.h"

#include <catch2/catch.hpp>

using namespace idempotency;


TEST_CASE("jsonrpc: the id of a request", "[jsonrpc]")
{
    struct {
        const char *body;
        const char *id; /* null: none */
    } rows[] = {
        {R"({"jsonrpc":"2.0","id":1,"method":"a"})", "1"},
        {R"({"id":"abc"})", "\"abc\""},
        {R"({"id" : -1.50e3 , "x":1})", "-1.50e3"},
        {R"({"x":1,"id":7
            })",
         "7"},
        {R"({"id":null})", "null"},
        {R"({"id":"a\u0041\" b"})", "\"a\\u0041\\\" b\""},
        {R"({"id":""})", "\"\""},
        {R"({"\u0069d":3})", "3"},
        {R"({"params":{"id":2},"id":3})", "3"},
        {R"({"params":{"id":2}})", nullptr},
        {R"({"ID":2})", nullptr},
        {R"({"id":true})", nullptr},
        {R"({"id":false})", nullptr},
        {R"({"id":[1]})", nullptr},
        {R"({"id":{}})", nullptr},
        {R"({"id":1,"id":1})", nullptr},
        {R"([{"id":1}])", nullptr},
        {R"({"id":1)", nullptr},
        {R"({})", nullptr},
        {R"(1)", nullptr},
        {R"()", nullptr},
        {R"("id")", nullptr},
    };
    json_parser parser;

    for (const auto &row : rows) {
        json_body body(row.body);
        std::string_view id;

        INFO(row.body);
        CHECK(jsonrpc_id(parser, body.view(), id) == (row.id != nullptr));

        if (row.id != nullptr) {
            CHECK(id == row.id);
            CHECK(id.data() >= body.view().data());
        }
    }
}


TEST_CASE("jsonrpc: answers", "[jsonrpc]")
{
    struct {
        const char *body;
        bool is_answer;
        bool error;
        const char *id; /* null: none */
    } rows[] = {
        {R"({"jsonrpc":"2.0","id":1,"result":{}})", true, false, "1"},
        {R"({"result":null,"id":"x","jsonrpc":"2.0"})", true, false, "\"x\""},
        {R"( { "id" : 12 , "jsonrpc" : "2.0" , "result" : [ ] } )", true,
         false, "12"},
        {R"({"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":""}})", true,
         true, "1"},
        {R"({"jsonrpc":"2.0","id":null,"error":{"code":-1}})", true, true,
         "null"},
        {R"({"jsonrpc":"2.0","error":{"code":-1}})", true, true, nullptr},
        {R"({"jsonrpc":"2.0","id":1,"result":1,"error":null})", true, false,
         "1"},
        {R"({"jsonrpc":"2.0","id":1,"result":{"error":1,"id":2}})", true,
         false, "1"},
        {R"({"jsonrpc":"2.0","id":1,"error":null})", false, false, nullptr},
        {R"({"jsonrpc":"2.0","id":1,"method":"m"})", false, false, nullptr},
        {R"({"jsonrpc":"1.0","id":1,"result":1})", false, false, nullptr},
        {R"({"jsonrpc":2.0,"id":1,"result":1})", false, false, nullptr},
        {R"({"id":1,"result":1})", false, false, nullptr},
        {R"({"id":1,"name":"x"})", false, false, nullptr},
        {R"([{"jsonrpc":"2.0","id":1,"result":{}}])", false, false, nullptr},
        {R"({"jsonrpc":"2.0","id":1,"result":{})", false, false, nullptr},
        {R"({"jsonrpc":"2.0","id":1,"id":2,"result":{}})", false, false,
         nullptr},
        {R"()", false, false, nullptr},
    };
    json_parser parser;

    for (const auto &row : rows) {
        json_body body(row.body);
        jsonrpc_answer answer;

        INFO(row.body);
        REQUIRE(read_jsonrpc_answer(parser, body.view(), answer)
                == row.is_answer);

        if (row.is_answer) {
            CHECK(answer.error == row.error);
            CHECK(answer.has_id == (row.id != nullptr));
            CHECK(body.view().substr(answer.id_at, answer.id_size)
                  == (row.id == nullptr ? "" : row.id));
        }
    }
}


TEST_CASE("jsonrpc: an answer in an event stream", "[jsonrpc]")
{
#define ANSWER R"({"jsonrpc":"2.0","id":17,"result":{"id":1}})"

    struct {
        const char *claim;
        const char *body;
        bool is_answer;
    } rows[] = {
        {"as MCP sends it", "event: message\ndata: " ANSWER "\n\n", true},
        {"CRLF", "event: message\r\ndata: " ANSWER "\r\n\r\n", true},
        {"CR", "event: message\rdata: " ANSWER "\r\r", true},
        {"no space", "data:" ANSWER "\n\n", true},
        {"two spaces", "data:  " ANSWER " \n\n", true},
        {"other fields and comments",
         ": hello\nid: 5\nretry: 10\ndata: " ANSWER "\nevent: x\n\n: bye\n",
         true},
        {"a byte order mark",
         "\xef\xbb\xbf"
         "data: " ANSWER "\n\n",
         true},
        {"empty lines before and behind", "\n\ndata: " ANSWER "\n\n\n\n",
         true},
        {"a message without data before it",
         "event: ping\n\ndata: " ANSWER "\n\n", true},
        {"a message of no data before it",
         "id: 1\ndata:\n\ndata: " ANSWER "\n\n", true},
        {"and behind it", "data: " ANSWER "\n\ndata: \n\n", true},
        {"a field cut short behind it", "data: " ANSWER "\n\ndat", true},

        {"not ended by an empty line", "data: " ANSWER "\n", false},
        {"not ended", "data: " ANSWER, false},
        {"two messages", "data: " ANSWER "\n\ndata: " ANSWER "\n\n", false},
        {"two lines", "data: " ANSWER "\ndata: 1\n\n", false},
        {"an answer in two lines",
         "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":1}\n\n",
         false},
        {"an empty line of data first", "data:\ndata: " ANSWER "\n\n", false},
        {"an empty line of data last", "data: " ANSWER "\ndata\n\n", false},
        {"another one that is not ended",
         "data: " ANSWER "\n\ndata: " ANSWER "\n", false},
        {"no data", "event: message\n\n", false},
        {"empty data", "data:\n\n", false},
        {"nothing", "", false},
        {"another name", "Data: " ANSWER "\n\n", false},
        {"a longer name", "datas: " ANSWER "\n\n", false},
        {"a space before", " data: " ANSWER "\n\n", false},
        {"no stream", ANSWER, false},
        {"no answer", "data: {\"id\":1}\n\n", false},
        {"no JSON", "data: hello\n\n", false},
        {"a batch", "data: [" ANSWER "]\n\n", false},
    };

#undef ANSWER

    json_parser parser;

    for (const auto &row : rows) {
        json_body body(row.body);
        jsonrpc_answer answer;

        INFO(row.claim);
        INFO(row.body);
        REQUIRE(read_jsonrpc_event(parser, body.view(), answer)
                == row.is_answer);

        if (row.is_answer) {
            CHECK(answer.has_id);
            CHECK_FALSE(answer.error);
            CHECK(body.view().substr(answer.id_at, answer.id_size) == "17");
        }
    }

    json_body failed("data: {\"jsonrpc\":\"2.0\",\"error\":{}}\n\n");
    jsonrpc_answer answer;

    CHECK(read_jsonrpc_event(parser, failed.view(), answer));
    CHECK(answer.error);
    CHECK_FALSE(answer.has_id);
}
