#pragma once

#include "store/zone_file.h"

/* What the files of the zone's file share. */

namespace idempotency {

struct file_state {
    std::size_t available; /* bytes there are */
    std::size_t zone_size; /* bytes there should be */
    bool is_older;         /* in its layout */
};


/* Whether it is a file of ours that this build can read. */
bool look_at(int fd, const zone_file_settings &how, file_state &state,
             zone_file_error &e);

/*
 * The bytes from there to there are zeros on the disk.  Space that is only
 * reserved is not enough: if the first write to it fails, ext4 does not tell
 * later ones from space that was never written.
 */
bool write_zeros(int fd, std::size_t from, std::size_t to, zone_file_error &e);

/*
 * A new file, with its directory, in one step: whole or not at all.  If there
 * is one meanwhile, that one stays.
 */
bool create_zone_file(const zone_file_settings &how, zone_file_error &e);

/* Puts a copy that has this layout in the place of an older one. */
bool convert_zone_file(int fd, const zone_file_settings &how, std::size_t size,
                       zone_file_error &e);
bool could_be_created(const zone_file_settings &how, zone_file_error &e);

/* Always false. */
bool explain_open(int code, zone_file_error &e);

/* That this process has of the file, -1: none. */
int find_descriptor(const char *path);

/* Whether this process has it in its memory. */
bool is_mapped(const char *path);

}
