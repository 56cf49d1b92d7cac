#pragma once

#include "store/redis_operation.h"
#include "store/redis_record.h"

#include <cstdint>

namespace idempotency {

/* Writes operations as Redis commands; all keys have one prefix. */
class redis_commands {
public:
    explicit redis_commands(const ngx_str_t &prefix) : prefix_(prefix) {}

    void send(operation &op) const;

    /* A write that comes after all others, then asks who has it. */
    void ask_durable(redis_link &link, command &c,
                     const durability_settings &wanted, std::string_view key,
                     bool asking) const;

    /* Of a cluster: where a record is. */
    std::uint16_t slot(const record_id &name) const;

    const ngx_str_t &prefix() const { return prefix_; }

private:
    void set_record(operation &op, bool get) const;
    void get_record(operation &op) const;
    void run_script(operation &op) const;
    redis_output &begin_script(operation &op, unsigned arguments) const;

    ngx_str_t prefix_;
};


/* The head of the record that the operation wants to be there. */
std::array<std::uint8_t, redis_record_head> record_head(const operation &op);

}
