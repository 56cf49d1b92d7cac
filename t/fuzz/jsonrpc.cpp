#include "contract/jsonrpc.h"
#include "json_check.h"

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
    std::string_view id;
    bool found = jsonrpc_id(parser, in.view(), id);
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


/* Another id in its place leaves an answer that is the same otherwise. */
void
event(json_parser &parser, std::string_view body)
{
    padded in(body);
    jsonrpc_answer before;
    jsonrpc_answer after;

    if (!read_jsonrpc_event(parser, in.view(), before) || !before.has_id) {
        return;
    }

    check(before.id_at + before.id_size <= body.size(), "it is in the body");

    std::string spliced(body);

    spliced.replace(before.id_at, before.id_size, "\"another\"");

    padded out(spliced);

    check(read_jsonrpc_event(parser, out.view(), after), "still an answer");
    check(after.has_id && after.error == before.error
              && after.id_at == before.id_at && after.id_size == 9,
          "only its id is another");
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
