#pragma once

#include "module/text_output.h"
#include "store/admin.h"

namespace idempotency {

/* Why an administrator's request is not carried out. */
struct admin_error {
    ngx_uint_t status;
    std::string_view code;
    std::string_view detail;
};


/* The name of a record as people write it, and back. */
inline constexpr std::size_t id_length = 2 * sizeof(record_id);

bool parse_id(std::string_view text, record_id &name);
ngx_str_t id_of(ngx_pool_t *pool, const record_id &name);

/* Null: it was done. */
const admin_error *error_for(admin_result result);

void write_record(const admin_record &record, ngx_pool_t *pool,
                  text_output &out);

/* Sends JSON and ends the request. */
void send_records(ngx_http_request_t *r, const admin_answer &answer,
                  bool is_list);
void send_done(ngx_http_request_t *r, const ngx_str_t &id,
               std::string_view act);
void send_error(ngx_http_request_t *r, const admin_error &error);

/* The same, in the words of the server that refused. */
void send_refusal(ngx_http_request_t *r, const admin_error &error,
                  const admin_refusal &refusal);

}
