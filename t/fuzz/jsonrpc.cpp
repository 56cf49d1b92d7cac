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
request(std::string_view body)
{
    jsonrpc_request request = read_jsonrpc_request(body);
    std::string_view id = request.id;
    bool found = !id.empty();
    auto document = oracle::reader(body).document();

    auto [first, second] = request.not_compared;

    check(first.at + first.size <= second.at
              && second.at + second.size <= body.size(),
          "what does not count is in the body, and in order");

    if (!document) {
        return;
    }

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
answer_in(std::string_view body)
{
    jsonrpc_answer answer;
    bool found = read_jsonrpc_answer(body, answer);
    auto document = oracle::reader(body).document();

    if (!found || !document) {
        return;
    }

    const oracle::node *error = member(document, "error");
    const oracle::node *id = member(document, "id");

    check(member(document, "result") || member(document, "error"),
          "an answer says something");
    check(answer.error
              == (error && error->type != 'n' && !member(document, "result")),
          "an error is an error, unless there is a result");
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
answers_in(std::string_view body)
{
    std::vector<char> room(body.size());
    jsonrpc_events events(body, room);
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
event(std::string_view body)
{
    auto before = answers_in(body);
    std::string spliced(body);

    for (auto a = before.rbegin(); a != before.rend(); ++a) {
        spliced.replace(a->at, a->id.size(), "\"another\"");
    }

    auto after = answers_in(spliced);

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
    std::string_view body = text_of(data, size);

    request(body);
    answer_in(body);
    event(body);
    return 0;
}
