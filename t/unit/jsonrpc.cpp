#include "contract/jsonrpc.h"
#include "json_body.h"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

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
        {R"({"id":1,"a":"\ud83d","b":{"x":1,"x":2}})", "1"},
        {"\xef\xbb\xbf{\"id\":1}", "1"},
        {R"([{"id":1}])", nullptr},
        {R"({"id":1)", nullptr},
        {R"({})", nullptr},
        {R"(1)", nullptr},
        {R"()", nullptr},
        {R"("id")", nullptr},
    };

    for (const auto &row : rows) {
        json_body body(row.body);

        INFO(row.body);

        jsonrpc_request request = read_jsonrpc_request(body.view());

        CHECK(request.id == (row.id != nullptr ? row.id : ""));
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
        {R"({"jsonrpc":"2.0","id":1,"result":"cut \ud83d"})", true, false,
         "1"},
        {R"({"jsonrpc":"2.0","id":1,"error":"cut \ud83d"})", true, true, "1"},
        {R"({"jsonrpc":"2.0","id":1,"error":{},"x":1,"x":2})", true, true,
         "1"},
        {R"({"jsonrpc":"2.0","id":1,"error":{},"result":null})", true, false,
         "1"},
        {R"({"jsonrpc":"2.0","id":1,"result":1,"error":{}})", true, false,
         "1"},
        {R"({"jsonrpc":"2.0","id":1,"error":{},"error":{}})", true, false,
         "1"},
        {R"({"jsonrpc":"2.0","id":1,"result":1,"result":1})", true, false,
         "1"},
        {R"({"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"error":{}})", false,
         false, nullptr},
        {R"({"jsonrpc":"2.0","id":1,"id":1,"error":{}})", false, false,
         nullptr},
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

    for (const auto &row : rows) {
        json_body body(row.body);
        jsonrpc_answer answer;

        INFO(row.body);
        REQUIRE(read_jsonrpc_answer(body.view(), answer) == row.is_answer);

        if (row.is_answer) {
            CHECK(answer.error == row.error);
            CHECK(answer.has_id == (row.id != nullptr));
            CHECK(body.view().substr(answer.id_at, answer.id_size)
                  == (row.id == nullptr ? "" : row.id));
        }
    }
}


TEST_CASE("jsonrpc: what a request is", "[jsonrpc]")
{
    struct {
        const char *body;
        bool call;
        bool mcp;
    } rows[] = {
        {R"({"jsonrpc":"2.0","id":1,"method":"tools/call"})", true, true},
        {R"({"jsonrpc":"2.0","method":"notifications/x"})", true, true},
        {R"({"jsonrpc":"2.0","id":1,"method":"initialize"})", true, true},
        {R"({"jsonrpc":"2.0","id":1,"method":"pay"})", true, false},
        {R"({"jsonrpc":"2.0","id":1})", true, false},
        {R"({"jsonrpc":"1.0","id":1,"method":"tools/call"})", false, false},
        {R"({"id":1,"method":"tools/call"})", false, false},
        {R"( [{"jsonrpc":"2.0","id":1}])", true, false},
        {R"({"jsonrpc":"2.0")", false, false},
        {R"("2.0")", false, false},
    };

    for (const auto &row : rows) {
        json_body body(row.body);

        INFO(row.body);

        jsonrpc_request request = read_jsonrpc_request(body.view());

        CHECK(request.call == row.call);
        CHECK(request.mcp == row.mcp);
    }
}


TEST_CASE("jsonrpc: what of a call is not compared", "[jsonrpc]")
{
    struct {
        const char *body;
        const char *first;
        const char *second;
    } rows[] = {
        {R"({"jsonrpc":"2.0","id":1,"method":"a/b","params":{"_meta":[2]}})",
         "1", "[2]"},
        {R"({"params":{"_meta":[2]},"jsonrpc":"2.0","id":1,"method":"a/b"})",
         "[2]", "1"},
        {R"({"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":[2]}})", "",
         "1"},
        {R"({"jsonrpc":"2.0","method":"a/b","params":{"_meta":[2]}})", "",
         "[2]"},
        {R"({"jsonrpc":"2.0","id":1,"id":1,"method":"a/b"})", "", ""},
        {R"({"id":1,"method":"a/b","params":{"_meta":[2]}})", "", ""},
        {R"([{"jsonrpc":"2.0","id":1}])", "", ""},
        {R"({"jsonrpc":"2.0","id":1)", "", ""},
    };

    for (const auto &row : rows) {
        std::string_view body = row.body;

        INFO(row.body);

        auto parts = read_jsonrpc_request(body).not_compared;

        CHECK(body.substr(parts[0].at, parts[0].size) == row.first);
        CHECK(body.substr(parts[1].at, parts[1].size) == row.second);
    }
}


namespace {

/* What is in the places of the ids that a stream's answers have. */
std::vector<std::string>
ids_in(std::string_view body)
{
    std::vector<char> room(body.size());
    jsonrpc_events events(body, room);
    jsonrpc_answer answer;
    std::vector<std::string> ids;

    while (events.next(answer)) {
        ids.emplace_back(answer.has_id
                             ? body.substr(answer.id_at, answer.id_size)
                             : "none");
    }

    return ids;
}

}


TEST_CASE("jsonrpc: answers in an event stream", "[jsonrpc]")
{
#define ANSWER R"({"jsonrpc":"2.0","id":17,"result":{"id":1}})"
#define OTHER R"({"jsonrpc":"2.0","id":"x","result":{"id":1}})"
#define NOTE R"({"jsonrpc":"2.0","method":"notifications/progress"})"
#define ASKED R"({"jsonrpc":"2.0","id":17,"method":"sampling/createMessage"})"

    struct {
        const char *claim;
        const char *body;
        std::vector<std::string> ids;
    } rows[] = {
        {"as MCP sends it", "event: message\ndata: " ANSWER "\n\n", {"17"}},
        {"CRLF", "event: message\r\ndata: " ANSWER "\r\n\r\n", {"17"}},
        {"CR", "event: message\rdata: " ANSWER "\r\r", {"17"}},
        {"no space", "data:" ANSWER "\n\n", {"17"}},
        {"two spaces", "data:  " ANSWER " \n\n", {"17"}},
        {"other fields and comments",
         ": hello\nid: 5\nretry: 10\ndata: " ANSWER "\nevent: x\n\n: bye\n",
         {"17"}},
        {"a byte order mark",
         "\xef\xbb\xbf"
         "data: " ANSWER "\n\n",
         {"17"}},
        {"empty lines before and behind",
         "\n\ndata: " ANSWER "\n\n\n\n",
         {"17"}},
        {"a message without data before it",
         "event: ping\n\ndata: " ANSWER "\n\n",
         {"17"}},
        {"a message of no data before it",
         "id: 1\ndata:\n\ndata: " ANSWER "\n\n",
         {"17"}},
        {"and behind it", "data: " ANSWER "\n\ndata: \n\n", {"17"}},
        {"a field cut short behind it", "data: " ANSWER "\n\ndat", {"17"}},
        {"notifications before it",
         "data: " NOTE "\n\ndata: " NOTE "\n\ndata: " ANSWER "\n\n",
         {"17"}},
        {"a request of the server",
         "data: " ASKED "\n\ndata: " ANSWER "\n\n",
         {"17"}},
        {"two messages",
         "data: " ANSWER "\n\ndata: " OTHER "\n\n",
         {"17", "\"x\""}},
        {"an answer in two lines",
         "data: {\"jsonrpc\":\"2.0\",\ndata:\"id\":1,\"result\":1}\n\n",
         {"1"}},
        {"in many lines",
         "data: {\r\nevent: x\r\ndata:  \"id\":\r\ndata: 12\r\ndata: "
         ",\r\ndata\r\n"
         "data: \"jsonrpc\":\"2.0\",\"result\":1}\r\n\r\n",
         {"12"}},
        {"an empty line of data first", "data:\ndata: " ANSWER "\n\n", {"17"}},
        {"an empty line of data last", "data: " ANSWER "\ndata\n\n", {"17"}},
        {"another one that is not ended",
         "data: " ANSWER "\n\ndata: " ANSWER "\n",
         {"17"}},
        {"an error without an id",
         "data: {\"jsonrpc\":\"2.0\",\"error\":{}}\n\n",
         {"none"}},

        {"not ended by an empty line", "data: " ANSWER "\n", {}},
        {"not ended", "data: " ANSWER, {}},
        {"two lines that are no document",
         "data: " ANSWER "\ndata: 1\n\n",
         {}},
        {"no data", "event: message\n\n", {}},
        {"empty data", "data:\n\n", {}},
        {"nothing", "", {}},
        {"another name", "Data: " ANSWER "\n\n", {}},
        {"a longer name", "datas: " ANSWER "\n\n", {}},
        {"a space before", " data: " ANSWER "\n\n", {}},
        {"no stream", ANSWER, {}},
        {"no answer", "data: {\"id\":1}\n\n", {}},
        {"no JSON", "data: hello\n\n", {}},
        {"a batch", "data: [" ANSWER "]\n\n", {}},
    };

#undef ANSWER
#undef OTHER
#undef NOTE
#undef ASKED

    for (const auto &row : rows) {
        INFO(row.claim);
        INFO(row.body);
        CHECK(ids_in(row.body) == row.ids);
    }
}
