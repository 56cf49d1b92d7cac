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

    if (space == nullptr) {
        return json_result::no_memory;
    }

    json_result result = read_json(*space, body, rules);

    if (result == json_result::ok) {
        hash_json(*space, hash);
    }

    parser.trim();
    return result;
}

}
