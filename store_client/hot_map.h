/* The index's map from hash to row, for the loops in C (master/hash_map.py). */
#ifndef MOONPOOL_HOT_MAP_H
#define MOONPOOL_HOT_MAP_H

#include "hot.h"
#include <string.h>

#define HOT_PARTS_MAX 64
#define HOT_SIFTED 256 /* hashes whose cells are looked at before any of their dicts, so that they are fetched together */

/* Of one part: how many names fall on each cell. Of these there is a power of two. One that is full stays so. */
typedef struct {
    uint8_t *cells;
    uint64_t mask;
    Py_ssize_t names_max; /* with more it is outgrown */
} HotFilter;

/* Dicts by the low bits of a hash's first byte; and a filter, a bytearray, before each of them, or before none. */
typedef struct {
    PyObject *parts, *filters;
    Py_ssize_t part_count, hash_bytes;
    int filtered;
    uint64_t taken; /* bit n: filter[n] was looked up */
    HotFilter filter[HOT_PARTS_MAX];
} HotMap;

/* Of (parts, filters); -1 and an exception where it can't be a map. */
int hot_take_map(HotMap *map, PyObject *lists, Py_ssize_t hash_bytes);

/* 1 where a name is new and has its row now, 0 where it is known, -1 and an exception where something is wrong. */
int hot_map_add(HotMap *map, PyObject *name, PyObject *row);

/* -1 and an exception where a name isn't there. */
int hot_map_remove(HotMap *map, PyObject *name);

/* A name will soon be looked at. It may lie anywhere in memory, and its bytes in another line than its head. */
static inline void hot_fetch_name(PyObject *name) {
    __builtin_prefetch((const char *)name);
    __builtin_prefetch((const char *)name + 32);
}

/* A name will soon be added or removed. */
void hot_map_prefetch(HotMap *map, const char *hash);

/* Hashes that are looked for, in their order. */
typedef struct {
    HotMap map;
    const char *hashes;
    Py_ssize_t count;
    int sifting;
    uint8_t maybe[HOT_SIFTED];
} HotSearch;

/* -1 and an exception where the arguments don't fit each other. `packed` and the map must outlive the search. */
int hot_start_search(HotSearch *search, PyObject *lists, PyObject *packed, Py_ssize_t hash_bytes);

/* The row of a hash; each index from 0 on must be asked for. -1 where there is none, -2 and an exception where something
 * is wrong. */
Py_ssize_t hot_row_of(HotSearch *search, Py_ssize_t index);

#endif
