#pragma once

/* Catch2 3, which Debian has from 13 on, under the name that version 2 had. */

#include <catch2/catch_all.hpp>

#include <string>

namespace Catch {

inline auto
Contains(const std::string &text)
{
    return Matchers::ContainsSubstring(text);
}

}
