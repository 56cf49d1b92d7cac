#include "module/status_report.h"

#include "module/metrics.h"

#include <optional>

namespace idempotency {

namespace {

constexpr std::string_view prefix = "nginx_idempotency_";


/* A store as it is now. */
struct store_state {
    std::string_view kind;
    ngx_uint_t workers_without;
    ngx_str_t reason;
    std::optional<store_usage> usage;
};


using maybe = std::optional<std::uint64_t>;


/* A number that the store itself tells. */
struct measure {
    std::string_view json; /* empty: not there */
    std::string_view name; /* for Prometheus, without the prefix */
    std::string_view type;
    std::string_view help;
    maybe (*value)(const store_state &); /* nothing where it has none */
};


store_state state_of(const named_store &named, ngx_pool_t *pool);
void write_json_object(std::span<const metric> metrics, const counters &counts,
                       text_output &out);
void write_json_metric(const metric &m, const counters &counts,
                       text_output &out);
void write_json_place(const metric &m, std::size_t first,
                      const counters &counts, text_output &out);
void write_json_state(const store_state &state, text_output &out);
void write_family(const metric &m, std::string_view owner_label,
                  std::span<counters *> owners, text_output &out);
void write_head(std::string_view name, std::string_view help,
                std::string_view type, text_output &out);
void write_measures(const main_conf &main, ngx_pool_t *pool, text_output &out);
template <std::uint64_t store_usage::*member>
maybe usage_of(const store_state &state);
template <std::uint64_t store_usage::*member>
maybe seconds_of(const store_state &state);


constexpr measure measures[] = {
    {"", "store_up", "gauge", "Whether all workers can use the store.",
     [](const store_state &s) { return maybe(s.workers_without == 0); }},

    {"", "store_workers_without", "gauge",
     "Workers that cannot use the store.",
     [](const store_state &s) { return maybe(s.workers_without); }},

    {"records", "store_records", "gauge", "Records in a memory store.",
     usage_of<&store_usage::records>},

    {"used_bytes", "store_used_bytes", "gauge",
     "Bytes of a memory store that are in use.", usage_of<&store_usage::used>},

    {"facts_bytes", "store_facts_bytes", "gauge",
     "Bytes in use that cannot make room for others.",
     usage_of<&store_usage::facts>},

    {"size_bytes", "store_size_bytes", "gauge",
     "Bytes that a memory store has room for.", usage_of<&store_usage::size>},

    {"full_in_seconds", "store_full_in_seconds", "gauge",
     "When a memory store will be full and drop responses, at the rate of "
     "the last minutes.",
     seconds_of<&store_usage::full_in>},

    {"facts_full_in_seconds", "store_facts_full_in_seconds", "gauge",
     "When a memory store will be full of facts and refuse new keys, at the "
     "rate of the last minutes.",
     seconds_of<&store_usage::facts_full_in>},

    {"responses_dropped", "store_responses_dropped_total", "counter",
     "Responses that a full memory store dropped to make room.",
     usage_of<&store_usage::dropped>},

    {"claims_refused", "store_claims_refused_total", "counter",
     "New keys that a full memory store could not take.",
     usage_of<&store_usage::refused>},
};


/* {zone="name",status="NEW"}, and for a bucket also le. */
struct labels {
    std::string_view owner_label;
    std::string_view owner;
    std::string_view label;
    std::string_view word;

    void write(text_output &out) const;
};


void write_histogram(const metric &m, std::size_t first, const labels &who,
                     const counters &counts, text_output &out);

}


void
write_json(const main_conf &main, std::string_view admin, ngx_pool_t *pool,
           text_output &out)
{
    std::string_view comma;
    ngx_time_t *now = ngx_timeofday();

    out << "{\"time\":";
    out.seconds(static_cast<std::uint64_t>(now->sec) * 1000 + now->msec);
    out << ",\"admin\":";

    if (admin.empty()) {
        out << "null";

    } else {
        out.json_string(admin);
    }

    out << ",\"zones\":{";

    for (const counters *zone : elements<counters *>(&main.zones)) {
        out << comma << "\n";
        out.json_string(view(zone->name()));
        out << ":{";
        write_json_object(zone_metrics(), *zone, out);
        out << "}";
        comma = ",";
    }

    comma = "";
    out << "},\"stores\":{";

    for (const named_store *named : elements<named_store *>(&main.stores)) {
        out << comma << "\n";
        out.json_string(view(named->name));
        out << ":{";
        write_json_state(state_of(*named, pool), out);
        write_json_object(store_metrics(), *named->counts, out);
        out << "}";
        comma = ",";
    }

    out << "}}\n";
}


void
write_prometheus(const main_conf &main, ngx_pool_t *pool, text_output &out)
{
    /* An empty text would be no answer. */
    write_head("info", "The nginx that the module was built for.", "gauge",
               out);
    out << prefix << "info{nginx_version=\"" NGINX_VERSION "\"} 1\n";

    for (const metric &m : zone_metrics()) {
        write_family(m, "zone", elements<counters *>(&main.zones), out);
    }

    for (const metric &m : store_metrics()) {
        write_family(m, "store", elements<counters *>(&main.counts), out);
    }

    write_measures(main, pool, out);
}


namespace {

store_state
state_of(const named_store &named, ngx_pool_t *pool)
{
    store_state state = {};
    store_usage usage;

    state.kind = named.backend->kind();
    state.workers_without = named.counts->workers_without(state.reason, pool);

    if (named.backend->usage(usage)) {
        state.usage = usage;
    }

    return state;
}


void
write_json_state(const store_state &state, text_output &out)
{
    out << "\"kind\":";
    out.json_string(state.kind);
    out << ",\"available\":" << (state.workers_without == 0 ? "true" : "false")
        << ",\"workers_without\":"
        << static_cast<std::uint64_t>(state.workers_without) << ",\"reason\":";

    if (state.workers_without != 0) {
        out.json_string(view(state.reason));

    } else {
        out << "null";
    }

    out << ",";

    for (const measure &m : measures) {

        if (!state.usage || m.json.empty()) {
            continue;
        }

        maybe value = m.value(state);

        out << "\"" << m.json << "\":";

        if (value) {
            out << *value;

        } else {
            out << "null";
        }

        out << ",";
    }
}


void
write_json_object(std::span<const metric> metrics, const counters &counts,
                  text_output &out)
{
    std::string_view comma;

    for (const metric &m : metrics) {
        out << comma << "\"" << m.json << "\":";
        write_json_metric(m, counts, out);
        comma = ",";
    }
}


void
write_json_metric(const metric &m, const counters &counts, text_output &out)
{
    std::string_view comma;

    if (m.word == nullptr) {
        write_json_place(m, m.first, counts, out);
        return;
    }

    out << "{";

    for (std::size_t i = 0; i < places_of(m); i++) {
        out << comma << "\"" << m.word(i) << "\":";
        write_json_place(m, place_at(m, i), counts, out);
        comma = ",";
    }

    out << "}";
}


/* Buckets are [upper bound, how many up to there], as for Prometheus. */
void
write_json_place(const metric &m, std::size_t first, const counters &counts,
                 text_output &out)
{
    std::uint64_t total = 0;

    if (m.bounds == nullptr) {
        out << counts.sum(first);
        return;
    }

    out << "{\"buckets\":[";

    for (std::size_t i = 0; i < bound_count; i++) {
        total += counts.sum(first + i);
        out << (i == 0 ? "[" : ",[");
        out.seconds((*m.bounds)[i]);
        out << "," << total << "]";
    }

    total += counts.sum(first + bound_count);
    out << "],\"count\":" << total << ",\"sum\":";
    out.seconds(counts.sum(first + bound_count + 1));
    out << "}";
}


void
write_family(const metric &m, std::string_view owner_label,
             std::span<counters *> owners, text_output &out)
{
    if (owners.empty()) {
        return;
    }

    write_head(m.name, m.help, m.bounds != nullptr ? "histogram" : "counter",
               out);

    for (const counters *counts : owners) {
        for (std::size_t i = 0; i < places_of(m); i++) {
            labels who = {owner_label, view(counts->name()), m.label,
                          m.word != nullptr ? m.word(i) : std::string_view()};
            std::size_t first = place_at(m, i);

            if (m.bounds != nullptr) {
                write_histogram(m, first, who, *counts, out);
                continue;
            }

            out << prefix << m.name << "{";
            who.write(out);
            out << "} " << counts->sum(first) << "\n";
        }
    }
}


void
write_head(std::string_view name, std::string_view help, std::string_view type,
           text_output &out)
{
    out << "# HELP " << prefix << name << " " << help << "\n";
    out << "# TYPE " << prefix << name << " " << type << "\n";
}


void
write_histogram(const metric &m, std::size_t first, const labels &who,
                const counters &counts, text_output &out)
{
    std::uint64_t total = 0;

    for (std::size_t i = 0; i <= bound_count; i++) {
        total += counts.sum(first + i);
        out << prefix << m.name << "_bucket{";
        who.write(out);
        out << ",le=\"";

        if (i < bound_count) {
            out.seconds((*m.bounds)[i]);

        } else {
            out << "+Inf";
        }

        out << "\"} " << total << "\n";
    }

    out << prefix << m.name << "_sum{";
    who.write(out);
    out << "} ";
    out.seconds(counts.sum(first + bound_count + 1));
    out << "\n" << prefix << m.name << "_count{";
    who.write(out);
    out << "} " << total << "\n";
}


void
labels::write(text_output &out) const
{
    out << owner_label << "=";
    out.prometheus_string(owner);

    if (!label.empty()) {
        out << "," << label << "=";
        out.prometheus_string(word);
    }
}


void
write_measures(const main_conf &main, ngx_pool_t *pool, text_output &out)
{
    for (const measure &m : measures) {
        bool first = true;

        for (const named_store *named : elements<named_store *>(&main.stores))
        {
            maybe value = m.value(state_of(*named, pool));

            if (!value) {
                continue;
            }

            if (first) {
                write_head(m.name, m.help, m.type, out);
                first = false;
            }

            out << prefix << m.name << "{store=";
            out.prometheus_string(view(named->name));
            out << "} " << *value << "\n";
        }
    }
}


template <std::uint64_t store_usage::*member>
maybe
usage_of(const store_state &state)
{
    return state.usage ? maybe((*state.usage).*member) : std::nullopt;
}


template <std::uint64_t store_usage::*member>
maybe
seconds_of(const store_state &state)
{
    maybe span = usage_of<member>(state);

    return span && *span != forever ? maybe(*span / 1000) : std::nullopt;
}

}

}
