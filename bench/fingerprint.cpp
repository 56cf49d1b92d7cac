#include "contract/byte_tag.h"
#include "contract/digest.h"
#include "contract/json.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

/*
 * What the canonical form of a JSON body costs: its fingerprint against plain
 * SHA-256 of the same bytes, and against the tag by which a retry with these
 * bytes is recognised, in turns, in one run.
 *
 *     g++ -std=c++20 -O2 -I src bench/fingerprint.cpp \
 *         src/contract/{byte_tag,digest,json*,pointer}.cpp -lcrypto -lsimdjson
 *
 * OPENSSL_ia32cap=:~0x20000000 hides the SHA extensions of the CPU.
 */

using namespace idempotency;
using watch = std::chrono::steady_clock;

namespace {

/* An order, as an API would get it: members in no particular order. */
std::string
order(int number, const char *newline, const char *space)
{
    std::string n = std::to_string(number);
    std::string indent = *newline ? "\n        " : "";
    std::string sep = std::string(":") + space;

    return "{" + indent + "\"id\"" + sep + "\"ord_1NG8Du2eZvKYlo2C" + n + "\","
           + indent + "\"amount\"" + sep + std::to_string(number * 37 + 1999)
           + "," + indent + "\"currency\"" + sep + "\"usd\"," + indent
           + "\"customer\"" + sep
           + "{\"name\":\"Jenny Rosen\",\"email\":\"jenny" + n
           + "@example.com\",\"address\":{\"line1\":\"510 Townsend Street\","
             "\"city\":\"San Francisco\",\"postal_code\":\"94103\"}},"
           + indent + "\"captured\"" + sep + "true," + indent + "\"discount\""
           + sep + "12.5," + indent + "\"description\"" + sep
           + "\"Subscription for the month of November, renewed "
             "automatically\","
           + indent + "\"tags\"" + sep + "[\"new\",\"web\"," + n + "],"
           + indent + "\"metadata\"" + sep + "null}";
}


std::string
body_of(std::size_t size, bool pretty)
{
    std::string body = "{\"orders\":[";

    for (int i = 0; body.size() < size; i++) {
        body += (i ? "," : "");
        body += order(i, pretty ? "\n" : "", pretty ? " " : "");
    }

    return body + "],\"at\":1700000000}";
}


double
nanoseconds(int runs, const std::function<void()> &work)
{
    auto begin = watch::now();

    for (int i = 0; i < runs; i++) {
        work();
    }

    std::chrono::duration<double, std::nano> took = watch::now() - begin;
    return took.count() / runs;
}


/* The best: what is slower was disturbed by something else. */
double
best(const std::vector<double> &values)
{
    return *std::min_element(values.begin(), values.end());
}


bool
compare(const char *name, const std::string &text)
{
    constexpr int turns = 41;
    json_parser parser;
    hasher hash;
    digest d;
    tagger tags;
    byte_tag tag;
    bool good = true;
    std::vector<char> memory(text.begin(), text.end());
    std::vector<double> plain;
    std::vector<double> canonical;
    std::vector<double> tagged;
    int runs = static_cast<int>(4000000 / text.size()) + 1;

    memory.resize(text.size() + json_padding);

    std::string_view body(memory.data(), text.size());

    for (int i = 0; i < turns; i++) {
        plain.push_back(nanoseconds(runs, [&] {
            hash.start("bench");
            hash.bytes(body.data(), body.size());
            good &= hash.finish(d);
        }));
        canonical.push_back(nanoseconds(runs, [&] {
            hash.start("bench");
            good &= canonical_json(parser, body, {}, hash) == json_result::ok;
            good &= hash.finish(d);
        }));
        tagged.push_back(nanoseconds(runs, [&] {
            tags.start({});
            tags.bytes(body.data(), body.size());
            good &= tags.finish(tag);
        }));
    }

    std::printf("%-18s %8zu bytes  sha256 %9.0f ns  json %9.0f ns  %.2f  "
                "tag %9.0f ns\n",
                name, text.size(), best(plain), best(canonical),
                best(canonical) / best(plain), best(tagged));
    return good;
}

}


int
main()
{
    bool good = true;

    for (bool pretty : {false, true}) {
        for (std::size_t size : {1024, 16 * 1024, 1024 * 1024 - 1024}) {
            good &= compare(pretty ? "orders, indented" : "orders",
                            body_of(size - 200, pretty));
        }
    }

    std::string numbers = "[";

    while (numbers.size() < 16 * 1024) {
        numbers += "-65.613616,43.420273,17,";
    }

    good &= compare("numbers", numbers + "0]");

    return good ? 0 : 1;
}
