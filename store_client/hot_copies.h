/* Copies of memory, in several threads and without the interpreter's lock where they are large. Callers hold it. */
#ifndef MOONPOOL_HOT_COPIES_H
#define MOONPOOL_HOT_COPIES_H

#include <stdint.h>

/* One entry a piece. */
typedef struct {
    const uint64_t *to, *from, *sizes;
} Pieces;

/* Objects whose pieces offsets[i] to offsets[i + 1] hold their bytes, or are to. */
typedef struct {
    const int64_t *offsets;
    const uint64_t *addresses, *sizes, *lengths;
    const uint64_t *starts; /* where each is copied from, 0: it isn't; NULL: their bytes are there */
    uint64_t *sums;         /* in: 0 where none is wanted; out: checksums of what lies in the pieces then */
} Objects;

/* `total`: all sizes together; pieces behind it are left alone. `into_slots`: nobody reads the copies at once. */
void hot_copy_all(Pieces pieces, uint64_t total, int into_slots, long threads);

/* `bytes`: of all objects together. */
void hot_sum_objects(Objects objects, uint64_t count, uint64_t bytes, long threads);

/* Whether the pieces of each object, sizes[offsets[i]] to sizes[offsets[i + 1]], lie in order and are as long as it. */
int hot_pieces_fit(const int64_t *offsets, const uint64_t *lengths, int64_t objects, const uint64_t *sizes, int64_t pieces);

#endif
