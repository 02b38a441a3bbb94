/* Frames, and those of reads on data lanes, byte by byte as schemas/messages.py and schemas/framing.py have them. */
#ifndef MOONPOOL_HOT_FRAMES_H
#define MOONPOOL_HOT_FRAMES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FRAME_PREFIX_BYTES 8
#define LANE_READ "\x94\xa8LaneRead" /* the tag, before three columns */
#define LANE_DATA "\x92\xa8LaneData" /* before the statuses */
#define LANE_TAG_BYTES (sizeof LANE_READ - 1)
#define BIN_HEAD_BYTES_MAX 5

/* The head of a MessagePack byte string; what follows it. */
static inline char *hot_bin_head(char *at, uint32_t bytes) {
    int width = bytes < 1 << 8 ? 1 : bytes < 1 << 16 ? 2 : 4;
    *at++ = (char)(width == 1 ? 0xc4 : width == 2 ? 0xc5 : 0xc6);
    while (width--)
        *at++ = (char)(bytes >> 8 * width);
    return at;
}

static inline char *hot_bin(char *at, const void *bytes, uint32_t count) {
    at = hot_bin_head(at, count);
    memcpy(at, bytes, count);
    return at + count;
}

/* The prefix of a frame of so many bytes with it: u32 length of what follows, u32 request id. */
static inline void hot_frame_prefix(char *frame, size_t bytes, uint32_t id) {
    uint32_t prefix[2] = {(uint32_t)bytes - 4, id};
    memcpy(frame, prefix, sizeof prefix);
}

#endif
