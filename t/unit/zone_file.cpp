#include "store/zone_file.h"

#include "zone_kit.h"

#include <chrono>
#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

using namespace zone_kit;

/* A zone that outlives its processes: opened again, grown, damaged. */

namespace {

constexpr std::size_t page = 4096;


/* Records in all states, with responses of some sizes. */
void
populate(zone &z, unsigned keys)
{
    for (unsigned i = 0; i < keys; ++i) {
        ended end(i * 37 % 900, 5000,
                  i % 5 ? record_state::completed : record_state::not_kept,
                  i % 3 ? 20 : payload);

        z.claim(claim_of(i, i), 100 + i, {});

        if (i % 7 == 1) {
            z.mark_unknown(owner_of(i, i), 5000, 100 + i);

        } else if (i % 7 != 2) {
            z.complete(owner_of(i, i), end.how, 100 + i);
        }
    }
}


/* What there is, without the responses in blocks of their own. */
std::multimap<record_id, std::array<std::uint64_t, 4>>
facts_of(zone &z)
{
    std::multimap<record_id, std::array<std::uint64_t, 4>> all;

    z.each_record([&](const zone_entry &e) {
        all.insert({e.name,
                    {std::uint64_t{static_cast<std::uint8_t>(e.state)},
                     e.since, e.expiry, e.response_size}});
    });

    return all;
}


/* What is left of a record may say less than before, but nothing else. */
bool
is_part_of(const seen &now, const seen &before)
{
    return now == before || now.state == record_state::pending
           || now.state == record_state::unknown
           || (now.state == record_state::not_kept
               && now.fingerprint == before.fingerprint);
}


/* A folder that goes with what is in it. */
struct folder {
    char name[32] = "/tmp/zone-file-XXXXXX";

    folder() { REQUIRE(mkdtemp(name)); }
    ~folder() { std::filesystem::remove_all(name); }
};


std::string
read_all(const std::string &path)
{
    std::ifstream in(path, std::ios::binary);

    return {std::istreambuf_iterator<char>(in), {}};
}


void
write_all(const std::string &path, std::string_view bytes)
{
    std::ofstream out(path, std::ios::binary | std::ios::trunc);

    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}


TEST_CASE("zone: reopened, it is as it was")
{
    region memory(size_for(256)); /* all zeros, as a new file is */
    zone &z = *zone::format(memory.start(), memory.size(), 7, true);
    zone_damage damage{};

    populate(z, 60);
    view before = inspect{z}.look(200);
    auto all = GENERATE(false, true);

    REQUIRE(zone::examine(memory.start(), memory.size())
            == zone_content::records);
    inspect{z}.spoil();
    REQUIRE(zone::reopen(memory.start(), memory.size(), all, damage));
    CHECK(damage.lost == 0);
    CHECK(damage.without_response == 0);
    CHECK(damage.records == before.size());
    CHECK(inspect{z}.look(200) == before);
    CHECK(inspect{z}.wrong() == "");
}


TEST_CASE("zone: reopened in a larger region")
{
    region memory(size_for(1000));
    zone *z = zone::format(memory.start(), size_for(200), 7, true);
    zone_damage damage{};

    populate(*z, 60);
    view before = inspect{*z}.look(200);
    auto all = GENERATE(false, true);

    REQUIRE(zone::reopen(memory.start(), memory.size(), all, damage) == z);
    CHECK(damage.lost == 0);
    CHECK(z->stats().blocks_total == 1000);
    CHECK(z->size() == memory.size());
    CHECK(inspect{*z}.look(200) == before);
    CHECK(inspect{*z}.wrong() == "");

    ended large(780 * payload, 5000);
    z->claim(claim_of(1000, 1), 200, {});
    CHECK(z->complete(owner_of(1000, 1), large.how, 200)
          == settle_result::done);
    CHECK(inspect{*z}.wrong() == "");
}


TEST_CASE("zone: what is not a zone of this layout is not opened")
{
    fixture f(64, true);
    auto *bytes_of = static_cast<std::uint8_t *>(f.memory.start());

    CHECK(zone::examine(bytes_of, 1023) == zone_content::something_else);
    bytes_of[8] ^= 1;
    CHECK(zone::examine(bytes_of, f.memory.size())
          == zone_content::other_layout);
    bytes_of[0] ^= 1;
    CHECK(zone::examine(bytes_of, f.memory.size())
          == zone_content::something_else);
}


TEST_CASE("zone: a page of an earlier time is noticed")
{
    fixture old(256, true), f(256, true), copy(256, true);
    auto *start = static_cast<std::uint8_t *>(f.memory.start());
    auto *earlier = static_cast<const std::uint8_t *>(old.memory.start());
    unsigned changed = 0;

    populate(f.z, 40);
    copy_of(f, old);
    populate(f.z, 60);
    REQUIRE(f.z.is_intact());
    copy_of(f, copy);

    for (std::size_t at = page; at + page <= f.memory.size(); at += page) {
        copy_of(copy, f);
        auto before = facts_of(f.z);
        std::memcpy(start + at, earlier + at, page);
        bool same = facts_of(f.z) == before;

        changed += !same;
        CHECK(f.z.is_intact() == same);
    }

    CHECK(changed > 0);
    copy_of(copy, f);
    CHECK(f.z.is_intact());
}


TEST_CASE("zone: damaged in any way, what is left is true")
{
    std::uint64_t used_seed = seed();
    INFO("ZONE_SEED=" << used_seed);
    std::mt19937_64 random(used_seed);
    fixture old(256, true), f(256, true), copy(256, true);
    auto *start = static_cast<std::uint8_t *>(f.memory.start());
    auto *earlier = static_cast<const std::uint8_t *>(old.memory.start());
    std::size_t lost = 0, without = 0;

    populate(f.z, 40);
    copy_of(f, old);
    populate(f.z, 60);
    copy_of(f, copy);
    view before = inspect{f.z}.look(200);

    for (unsigned round = 0; round < 400; ++round) {
        INFO("round " << round);
        copy_of(copy, f);

        for (auto n = 1 + random() % 6; n > 0; --n) {
            auto at = 1024 + random() % (256 * 256);

            switch (round % 3) {

            case 0: start[at] = static_cast<std::uint8_t>(random()); break;

            case 1: std::memset(start + at / 512 * 512, 0, 512); break;

            default: /* a page that was not written back */
                at = std::max<std::size_t>(at / page * page, 1024);
                std::memcpy(start + at, earlier + at, page - at % page);
            }
        }

        zone_damage damage{};

        REQUIRE(zone::reopen(start, f.memory.size(), true, damage));
        REQUIRE(f.wrong() == "");
        lost += damage.lost;
        without += damage.without_response;

        for (const auto &[name, what] : inspect{f.z}.look(200)) {
            auto was = before.find(name);

            REQUIRE(was != before.end());
            REQUIRE(is_part_of(what, was->second));
        }
    }

    CHECK(lost > 50);
    CHECK(without > 50);
}


TEST_CASE("zone file: cut at every block after a kill, what is left is true")
{
    folder f;
    std::string path = std::string(f.name) + "/zone";
    zone_file_settings how{path.c_str(), 48 * 1024, geteuid(), getegid(), {}};
    zone_file_error e;
    zone_file_report report;
    zone_file *file = zone_file::open(how, e, report);

    REQUIRE(file);
    populate(*file->records(), 40);

    pid_t child = fork();

    if (child == 0) {
        ended end(900, 5000);

        file->lock();
        file->records()->claim(claim_of(1000, 1), 150, {});
        file->records()->complete(owner_of(1000, 1), end.how, 150);
        raise(SIGKILL);
    }

    waitpid(child, nullptr, 0);
    file->release();

    std::string whole = read_all(path);
    file = zone_file::open(how, e, report);
    REQUIRE(file);
    view before = inspect{*file->records()}.look(200);
    file->release();

    REQUIRE(before.size() > 35);

    std::size_t least = 0;

    for (std::size_t size = 1024; size <= whole.size(); size += 256) {
        INFO("cut to " << size);
        write_all(path, std::string_view(whole).substr(0, size));
        zone_file_report found;
        file = zone_file::open(how, e, found);
        REQUIRE(file);

        zone &z = *file->records();
        view now = inspect{z}.look(200);

        CHECK(inspect{z}.wrong() == "");
        CHECK(now.size() >= least);
        least = now.size();

        for (const auto &[name, what] : now) {
            REQUIRE(before.contains(name));
            REQUIRE(is_part_of(what, before.at(name)));
        }

        file->release();
    }

    CHECK(least == before.size());
    write_all(path, std::string_view(whole).substr(0, 1023));
    CHECK(zone_file::open(how, e, report) == nullptr);
}


/* An older layout, made up: the name of a record is written backwards. */
namespace {

constexpr std::uint32_t older = 2;
constexpr std::size_t name_at = 24, head_size = 256;


void
turn_name(std::span<std::uint8_t, 256> head)
{
    std::reverse(&head[name_at], &head[name_at + sizeof(record_id)]);
    head[3] ^= 1;
}


constexpr zone_conversion made_up[] = {{older, 3, 0, turn_name}};


void
make_older(std::string &file)
{
    file[12] = older;

    for (std::size_t at = 1024; at + head_size <= file.size(); at += head_size)
    {

        if (file[at] == 1) {
            turn_name(std::span<std::uint8_t, 256>(
                reinterpret_cast<std::uint8_t *>(&file[at]), head_size));
        }
    }
}

}


TEST_CASE("zone file: one of an older layout is converted")
{
    folder f;
    std::string path = std::string(f.name) + "/zone";
    zone_file_settings how{path.c_str(), 96 * 1024, geteuid(), getegid(), {}};
    zone_file_error e;
    zone_file_report report;
    zone_file *file = zone_file::open(how, e, report);

    REQUIRE(file);
    populate(*file->records(), 60);
    view before = inspect{*file->records()}.look(200);
    file->release();

    std::string old = read_all(path);
    make_older(old);
    write_all(path, old);

    CHECK_FALSE(zone_file::test(how, e));
    CHECK(zone_file::open(how, e, report) == nullptr);
    CHECK(std::string(e.reason).find("cannot convert") != std::string::npos);
    CHECK(read_all(path) == old);

    how.older = made_up;
    CHECK(zone_file::test(how, e));
    CHECK(read_all(path) == old);

    SECTION("also into a larger one")
    {
        how.size *= 2;
    }

    report = {};
    file = zone_file::open(how, e, report);
    INFO((e.reason ? e.reason : ""));
    REQUIRE(file);
    CHECK(report.converted);
    CHECK(report.damage.lost == 0);
    CHECK(report.damage.records == before.size());
    CHECK(inspect{*file->records()}.look(200) == before);
    CHECK(inspect{*file->records()}.wrong() == "");
    file->release();

    report = {};
    file = zone_file::open(how, e, report);
    REQUIRE(file);
    CHECK(!report.converted);
    CHECK(inspect{*file->records()}.look(200) == before);
    file->release();

    /* Nothing else was left behind. */
    auto files = std::filesystem::directory_iterator(f.name);
    CHECK(std::distance(begin(files), end(files)) == 1);
}


TEST_CASE("zone file: what a wrong clock can cost over a boot")
{
    constexpr std::int64_t second = 1000, hour = 3600 * second;

    struct boot {
        std::int64_t away; /* by the clock of the host */
        std::int64_t counted;
    };

    auto [away,
          counted] = GENERATE(boot{5 * second, 5 * second},
                              boot{2 * hour, hour}, boot{24 * 30 * hour, hour},
                              boot{-5 * second, 0}, boot{-24 * 30 * hour, 0});
    INFO("away for " << away);

    auto began = std::chrono::steady_clock::now();
    auto test_took = [began] {
        return std::chrono::duration_cast<std::chrono::milliseconds>(
                   std::chrono::steady_clock::now() - began)
            .count();
    };

    folder f;
    std::string path = std::string(f.name) + "/zone";
    zone_file_settings how{path.c_str(), 48 * 1024, geteuid(), getegid(), {}};
    zone_file_error e;
    zone_file_report report;
    zone_file *file = zone_file::open(how, e, report);

    REQUIRE(file);
    CHECK(!report.after_boot);
    auto then = static_cast<std::int64_t>(file->now());
    file->release();

    /* Another boot, and the time of day before it. */
    std::string bytes = read_all(path);
    std::string id = read_all("/proc/sys/kernel/random/boot_id").substr(0, 36);
    auto at = bytes.find(id);
    REQUIRE(at != std::string::npos);
    std::int64_t wall;
    std::memcpy(&wall, &bytes[at - sizeof(wall)], sizeof(wall));
    wall -= away;
    std::memcpy(&bytes[at - sizeof(wall)], &wall, sizeof(wall));
    std::reverse(&bytes[at], &bytes[at + 36]);
    write_all(path, bytes);

    file = zone_file::open(how, e, report);
    REQUIRE(file);
    CHECK(report.after_boot);
    auto passed = static_cast<std::int64_t>(file->now()) - then;
    /* What the file says is rounded to milliseconds, as is "then". */
    CHECK(passed >= counted - 1);
    CHECK(passed < counted + 4 * second + test_took());
    file->release();
}


TEST_CASE("zone file: one at a time, for its owner only")
{
    char directory[] = "/tmp/zone-file-XXXXXX";
    REQUIRE(mkdtemp(directory));
    std::string path = std::string(directory) + "/new/zone";
    zone_file_settings how{path.c_str(), 65536, geteuid(), getegid(), {}};
    zone_file_error e;
    zone_file_report report;

    CHECK(zone_file::test(how, e));

    zone_file *file = zone_file::open(how, e, report);
    REQUIRE(file);
    CHECK(report.created);
    CHECK(file->records()->stats().blocks_total > 200);

    struct stat info;
    REQUIRE(stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 07777) == 0600);
    CHECK(info.st_size == 65536);

    SECTION("its clock goes on")
    {
        auto then = file->now();

        file->release();
        file = zone_file::open(how, e, report);
        REQUIRE(file);
        CHECK(file->now() >= then);
        CHECK(file->now() < then + 10000);
    }

    SECTION("its mutex is freed when its owner dies")
    {
        pid_t child = fork();

        if (child == 0) {
            file->lock();
            raise(SIGKILL);
        }

        waitpid(child, nullptr, 0);
        file->lock();
        file->unlock();
        file->lock();
        file->unlock();
    }

    SECTION("another process cannot open it")
    {
        pid_t child = fork();

        if (child == 0) {
            /* As one that has inherited nothing. */
            close(file->descriptor());
            _exit(zone_file::open(how, e, report) == nullptr ? 0 : 1);
        }

        int status = 0;
        waitpid(child, &status, 0);
        CHECK(status == 0);
    }

    SECTION("the same process can, and shares it")
    {
        zone_file *again = zone_file::open(how, e, report);

        REQUIRE(again);
        again->records()->claim(claim_of(1, 1), again->now(), {});
        CHECK(file->records()->claim(claim_of(1, 2), file->now(), {}).result
              == claim_result::found);
        again->release();
    }

    file->release();
    CHECK(zone_file::test(how, e));
    unlink(path.c_str());
    rmdir((std::string(directory) + "/new").c_str());
    rmdir(directory);
}
