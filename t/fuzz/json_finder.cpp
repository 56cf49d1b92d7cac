#include "contract/json_finder.h"

#include "json_check.h"

#include <algorithm>
#include <vector>

using namespace idempotency;

namespace {

constexpr std::size_t longest = 16;

using segments = std::vector<std::string_view>;
using result = json_target::result;


/* What a finder says of a text, with the value as it is spelled. */
struct answer {
    json_text text;
    result found;
    bool readable;
    std::string spelled;
    std::string string;

    bool operator==(const answer &) const = default;
};


/* Each piece is in memory of just its size, and so are the rooms. */
answer
ask(std::string_view body, const segments &path, std::size_t piece)
{
    std::size_t room = longest;
    json_target target;

    for (std::string_view segment : path) {
        room = std::max(room, segment.size());
    }

    room = json_finder::room_for(room);

    std::unique_ptr<char[]> token(new char[room]);
    std::unique_ptr<char[]> out(new char[longest]);

    target.pointer = {path};
    target.out = {out.get(), longest};

    json_finder finder({&target, 1}, {token.get(), room});

    for (std::size_t at = 0; at < body.size(); at += piece) {
        std::string_view part = body.substr(at, piece);
        std::unique_ptr<char[]> memory(new char[part.size()]);

        std::memcpy(memory.get(), part.data(), part.size());
        finder.feed({memory.get(), part.size()});
    }

    answer got = {finder.finish(), target.found, target.readable, {}, {}};

    check(got.text != json_text::no_memory, "there is memory");

    if (got.found == result::found) {
        check(target.place.at + target.place.size <= body.size(),
              "the value is in the text");
        got.spelled = body.substr(target.place.at, target.place.size);
        got.string = target.text;
        check(target.first == got.spelled[0], "it begins so");
    }

    return got;
}


/* Where the strict reader takes it for JSON both find the same. */
void
agree(std::string_view body, const segments &path, const answer &got)
{
    auto document = oracle::reader(body).document();

    if (!document) {
        return;
    }

    const oracle::node *node = oracle::find(*document, path);

    check(got.text == json_text::complete, "what is JSON is complete");
    check((node != nullptr) == (got.found == result::found),
          "both find it or neither");

    if (node == nullptr) {
        check(got.found == result::absent, "no name is there twice");
        return;
    }

    check(got.spelled == body.substr(node->begin, node->end - node->begin),
          "both find the same value");

    if (node->type == '"') {
        check(got.readable == (node->text.size() <= longest),
              "a string is readable if it fits");
        check(!got.readable || got.string == node->text,
              "both find the same text");
    }
}


/* What the strict reader refuses around a value does not hide it. */
void
tolerate(std::string_view body, const segments &path, const answer &got)
{
    segments deeper = path;
    std::string text(body);

    if (got.text != json_text::complete) {
        return;
    }

    if (text.starts_with("\xef\xbb\xbf")) {
        text.erase(0, 3);
    }

    check(ask("\xef\xbb\xbf" + text, path, 5) == got,
          "a byte order mark does not matter");

    deeper.insert(deeper.begin(), "w");
    check(ask("{\"x\":1e99999999999999999999,\"x\":\"\\ud800\xff\",\"w\":"
                  + text + ",\"v\":1,\"v\":2}",
              deeper, 5)
              == got,
          "nor does what is beside it");
    check(ask("{\"w\":" + text + ",\"\\u0077\":1}", deeper, 5).found
              == result::repeated,
          "a name on the path counts twice");

    std::string brackets(2000, '[');
    segments inner(2000, "0");

    inner.insert(inner.end(), path.begin(), path.end());
    check(ask(brackets + text + std::string(2000, ']'), inner, 4096) == got,
          "nor does its depth");
}


/* What was found stays found: the rest can only tell of a repetition. */
void
cut_off(std::string_view body, const segments &path, const answer &got)
{
    answer part = ask(body.substr(0, body.size() / 2), path, body.size() + 1);

    if (part.found == result::repeated) {
        check(got.found == result::repeated, "a repetition stays one");

    } else if (part.found == result::found) {
        check(got.found == result::repeated || got.spelled == part.spelled,
              "what was found stays found");
    }
}

}


/* A pointer in the first line; then a body. */
extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    std::string_view body = text_of(data, size);
    std::string_view line = body.substr(0, body.find('\n'));
    segments path(count_segments(line));
    std::unique_ptr<char[]> storage(new char[line.size()]);
    std::size_t count;

    if (!parse_pointer(line, path, {storage.get(), line.size()}, count)) {
        return 0;
    }

    body.remove_prefix(std::min(line.size() + 1, body.size()));
    path.resize(count);

    answer got = ask(body, path, body.size() + 1);

    check(ask(body, path, 1) == got, "pieces do not matter");
    check(ask(body, path, 3) == got, "of any size");

    agree(body, path, got);
    tolerate(body, path, got);
    cut_off(body, path, got);
    return 0;
}
