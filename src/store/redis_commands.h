#pragma once

#include "store/redis_operation.h"

namespace idempotency {

/* Writes operations as Redis commands; all keys have one prefix. */
class redis_commands {
public:
    explicit redis_commands(const ngx_str_t &prefix) : prefix_(prefix) {}

    /* To be called in each worker before the first send(). */
    static void hash_scripts();

    void send(operation &op) const;

private:
    void set_record(operation &op) const;
    void run_script(operation &op) const;
    redis_output &begin_script(operation &op, unsigned arguments) const;

    ngx_str_t prefix_;
};

}
