#include "contract/json_workspace.h"

#include <new>

namespace idempotency {

json_parser::~json_parser()
{
    delete workspace_;
}


json_workspace *
json_parser::workspace()
{
    if (workspace_ == nullptr) {
        workspace_ = new (std::nothrow) json_workspace;
    }

    return workspace_;
}


std::size_t
json_parser::memory() const
{
    return workspace_ == nullptr ? 0 : workspace_->memory();
}


void
json_parser::trim()
{
    if (memory() > json_keep) {
        delete workspace_;
        workspace_ = nullptr;
    }
}


json_result
canonical_json(json_parser &parser, std::string_view body,
               const json_rules &rules, hasher &hash)
{
    json_workspace *space = parser.workspace();
    json_search nothing;

    if (space == nullptr) {
        return json_result::no_memory;
    }

    json_result result = read_json(*space, body, rules, nothing);

    if (result == json_result::ok) {
        hash_json(*space, hash);
    }

    parser.trim();
    return result;
}


json_string
find_json_string(json_parser &parser, std::string_view body,
                 const json_pointer &pointer, std::span<char> out,
                 std::string_view &value)
{
    json_workspace *space = parser.workspace();
    json_search search;
    json_rules rules;
    json_string found = json_string::absent;

    if (space == nullptr) {
        return json_string::no_memory;
    }

    rules.include = {&pointer, 1};
    search.out = out;

    switch (read_json(*space, body, rules, search)) {
    case json_result::ok:
        if (!has_wildcard(pointer)) {
            found = search.found;
            value = search.string;
        }

        break;
    case json_result::not_json: found = json_string::not_json; break;
    case json_result::no_memory: found = json_string::no_memory; break;
    }

    parser.trim();
    return found;
}


json_result
find_json_members(json_parser &parser, std::string_view body,
                  std::span<const std::string_view> names,
                  std::span<json_extent> values)
{
    json_workspace *space = parser.workspace();
    json_search search;

    if (space == nullptr) {
        return json_result::no_memory;
    }

    for (json_extent &value : values) {
        value = {};
    }

    search.names = names;
    search.values = values;

    json_result result = read_json(*space, body, json_rules{}, search);

    parser.trim();
    return result;
}

}
