/* Checksums of payloads (XXH3, 64 bits, no seed, as schemas/header.py says), taken while the bytes pass by. */
#ifndef MOONPOOL_HOT_SUM_H
#define MOONPOOL_HOT_SUM_H

#include <stdint.h>

#define SUM_SHORT_BYTES 240 /* up to here XXH3 has other formulas */

typedef struct {
    uint64_t lanes[8];
    uint64_t length, stripe, stripes; /* of 64 bytes: how many are in the lanes, and how many come there */
    uint32_t kept_bytes;              /* that are in no stripe yet */
    char last[64];                    /* the last stripe; right before `kept`, as the end needs both */
    char kept[SUM_SHORT_BYTES];
} Sum;

/* Of an object of so many bytes. */
void hot_sum_begin(Sum *sum, uint64_t length);

/* How bytes are copied that are summed. Past the caches: where it can be; the caller sets the fence behind it. */
enum { NO_COPY, COPY, COPY_PAST_CACHES };

/* Its next bytes. Where they are copied, it is what was written to `to` that is summed, whatever `from` becomes meanwhile. */
void hot_sum_add(Sum *sum, void *to, const void *from, uint64_t size, int how);

/* As headers hold it: never 0. */
uint64_t hot_sum_end(const Sum *sum);

/* Before the first stripe: which of the ways to add stripes this machine has. */
void hot_choose_sum(void);

#endif
