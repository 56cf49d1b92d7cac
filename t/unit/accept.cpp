#include "contract/accept.h"

#include <catch2/catch.hpp>

using namespace idempotency;

namespace {

constexpr const char *browser =
    "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
constexpr const char *prometheus =
    "application/openmetrics-text;version=1.0.0,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

}


TEST_CASE("a media type is wanted as much as the narrowest range says")
{
    CHECK(quality_of("", "text/html") == 0);
    CHECK(quality_of("*/*", "text/html") == 1000);
    CHECK(quality_of(browser, "text/html") == 1000);
    CHECK(quality_of(browser, "application/json") == 800);
    CHECK(quality_of(prometheus, "text/plain") == 500);
    CHECK(quality_of(prometheus, "text/html") == 100);
    CHECK(quality_of("text/*;q=0.3, text/plain;q=0", "text/plain") == 0);
    CHECK(quality_of("text/*;q=0.3, text/plain;q=0", "text/html") == 300);
    CHECK(quality_of("Application/JSON ; q=0.125", "application/json") == 125);
    CHECK(quality_of("text/htmlx", "text/html") == 0);
    CHECK(quality_of("text/html;q=7", "text/html") == 0);
    CHECK(quality_of("text/html;q=1.9", "text/html") == 1000);
    CHECK(quality_of(",,;q=1,", "text/html") == 0);
}
