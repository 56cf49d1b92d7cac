#include "contract/jsonrpc.h"
#include "json_check.h"

#include <string>
#include <vector>

using namespace idempotency;

namespace {

const oracle::node *
member(const std::optional<oracle::node> &document, const char *name)
{
    if (!document) {
        return nullptr;
    }

    auto found = document->members.find(name);

    return found == document->members.end() ? nullptr : &found->second;
}


void
request(json_parser &parser, std::string_view body)
{
    padded in(body);
    jsonrpc_request request;
    bool read = read_jsonrpc_request(parser, in.view(), request);
    std::string_view id = request.id;
    bool found = read && !id.empty();
    auto document = oracle::reader(body).document();
    const oracle::node *node = member(document, "id");
    bool expected = node != nullptr
                    && (node->type == '"' || node->type == 'n'
                        || !node->form.empty());

    check(found == expected, "both find the id");

    if (found) {
        check(id == body.substr(node->begin, node->end - node->begin),
              "and the same");
    }
}


void
answer_in(json_parser &parser, std::string_view body)
{
    padded in(body);
    jsonrpc_answer answer;
    bool found = read_jsonrpc_answer(parser, in.view(), answer);
    auto document = oracle::reader(body).document();

    if (!found) {
        return;
    }

    const oracle::node *error = member(document, "error");
    const oracle::node *id = member(document, "id");

    check(member(document, "result") || member(document, "error"),
          "an answer says something");
    check(answer.error == (error && error->type != 'n'),
          "an error is an error");
    check(answer.has_id == (id != nullptr), "both find the id");

    if (id != nullptr) {
        check(answer.id_at == id->begin
                  && answer.id_size == id->end - id->begin,
              "where it is");
    }
}


struct found_answer {
    std::string id;
    bool error;
    std::size_t at;
};


std::vector<found_answer>
answers_in(json_parser &parser, std::string_view body)
{
    std::vector<char> room(body.size() + json_padding);
    jsonrpc_events events(parser, body, room);
    jsonrpc_answer answer;
    std::vector<found_answer> all;

    while (events.next(answer)) {
        if (answer.has_id) {
            check(answer.id_at + answer.id_size <= body.size(),
                  "it is in the body");
            all.push_back(
                {std::string(body.substr(answer.id_at, answer.id_size)),
                 answer.error, answer.id_at});
        }
    }

    return all;
}


/* Other ids in their places leave answers that are the same otherwise. */
void
event(json_parser &parser, std::string_view body)
{
    auto before = answers_in(parser, body);
    std::string spliced(body);

    for (auto a = before.rbegin(); a != before.rend(); ++a) {
        spliced.replace(a->at, a->id.size(), "\"another\"");
    }

    auto after = answers_in(parser, spliced);

    check(after.size() == before.size(), "still as many answers");

    for (std::size_t i = 0; i < after.size(); i++) {
        check(after[i].id == "\"another\""
                  && after[i].error == before[i].error,
              "only their ids are others");
    }
}

}


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    static json_parser parser;
    std::string_view body = text_of(data, size);

    request(parser, body);
    answer_in(parser, body);
    event(parser, body);
    return 0;
}
