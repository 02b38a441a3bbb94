/* The index's map from hash to row, and the filters before its dicts: master/hash_map.py. */
#include "hot_map.h"

#define AHEAD 64     /* so many names before its own turn one is fetched into the cache: most of them lie in none */
#define SIFT_MIN 32  /* fewer hashes are looked up at once: getting at the filters would cost more than they spare */
#define CELLS_MIN 4  /* a name; between that and twice as many, by part, so that all don't grow in the same moment */
#define SAMPLE 8     /* hashes after which the rest of a stretch is no more sifted, where most of them are there */
#define CELL_FULL 255

/* ------------------------------------------------------------------ the map */

int hot_take_map(HotMap *map, PyObject *lists, Py_ssize_t hash_bytes) {
    int good = PyTuple_Check(lists) && PyTuple_Size(lists) == 2 && hash_bytes > 0;
    if (good) {
        map->parts = PyTuple_GetItem(lists, 0);
        map->filters = PyTuple_GetItem(lists, 1);
        good = PyList_Check(map->parts) && PyList_Check(map->filters);
    }
    if (good) {
        Py_ssize_t parts = map->part_count = PyList_Size(map->parts), filters = PyList_Size(map->filters);
        map->hash_bytes = hash_bytes;
        map->filtered = filters > 0;
        map->taken = 0;
        good = parts > 0 && parts <= HOT_PARTS_MAX && !(parts & (parts - 1)) && (!filters || filters == parts);
    }
    if (good)
        return 0;
    PyErr_SetString(PyExc_ValueError, "dicts from hash to row, filters or none, and the size of a hash");
    return -1;
}

static Py_ssize_t part_index(const HotMap *map, const char *hash) {
    return (unsigned char)hash[0] & (map->part_count - 1);
}

static PyObject *part_of(const HotMap *map, const char *hash) {
    return PyList_GetItem(map->parts, part_index(map, hash));
}

/* ------------------------------------------------------------------ the filters */

/* Which cell a name falls on, before it is cut to their number. Mixed: engines may name blocks by poor hashes. */
static inline uint64_t mix(const char *hash, Py_ssize_t hash_bytes) {
    uint64_t words[2] = {0, 0};
    memcpy(words, hash, hash_bytes < 16 ? (size_t)hash_bytes : 16);
    return ((words[0] ^ (words[1] << 31 | words[1] >> 33)) * 0x9E3779B97F4A7C15u) >> 24;
}

/* How many names a part's filter of so many cells is for. It has twice as many cells after it has grown: on average 8 a
 * name, and of unknown hashes one in eight is looked up in vain. */
static Py_ssize_t names_in(const HotMap *map, Py_ssize_t part, Py_ssize_t cells) {
    return cells * map->part_count / (CELLS_MIN * (map->part_count + part));
}

/* -1 and an exception where a part's filter is something else. */
static int take_filter(HotMap *map, Py_ssize_t part) {
    PyObject *bytes = PyList_GetItem(map->filters, part);
    Py_ssize_t cells = PyByteArray_Check(bytes) ? PyByteArray_Size(bytes) : 0;
    if (cells < 1 || cells & (cells - 1)) {
        PyErr_SetString(PyExc_ValueError, "filters of a power of two of cells");
        return -1;
    }
    map->filter[part] = (HotFilter){(uint8_t *)PyByteArray_AsString(bytes), (uint64_t)cells - 1, names_in(map, part, cells)};
    map->taken |= 1ull << part;
    return 0;
}

/* The cell of a hash; NULL and an exception as above. */
static inline uint8_t *cell_of(HotMap *map, const char *hash) {
    Py_ssize_t part = part_index(map, hash);
    if (!(map->taken >> part & 1) && take_filter(map, part) < 0)
        return NULL;
    return map->filter[part].cells + (mix(hash, map->hash_bytes) & map->filter[part].mask);
}

void hot_map_prefetch(HotMap *map, const char *hash) {
    uint8_t *cell = map->filtered ? cell_of(map, hash) : NULL;
    if (cell)
        __builtin_prefetch(cell, 1);
}

/* A new filter for a part that has outgrown its own. -1 and an exception where that failed. */
static int grow(HotMap *map, Py_ssize_t index) {
    PyObject *part = PyList_GetItem(map->parts, index), *name, *later, *row;
    Py_ssize_t cells = 1, position = 0, ahead = 0;
    while (names_in(map, index, cells) <= PyDict_Size(part))
        cells *= 2;
    PyObject *bytes = PyByteArray_FromStringAndSize(NULL, cells);
    if (bytes == NULL)
        return -1;
    uint8_t *counts = (uint8_t *)PyByteArray_AsString(bytes);
    memset(counts, 0, (size_t)cells);
    for (int i = 0; i < AHEAD; i++)
        PyDict_Next(part, &ahead, &later, &row);
    while (PyDict_Next(part, &position, &name, &row)) {
        if (PyDict_Next(part, &ahead, &later, &row))
            hot_fetch_name(later);
        if (!PyBytes_Check(name)) {
            Py_DECREF(bytes);
            PyErr_SetString(PyExc_ValueError, "a name that is no bytes");
            return -1;
        }
        uint8_t *cell = counts + (mix(PyBytes_AsString(name), PyBytes_Size(name)) & (uint64_t)(cells - 1));
        *cell += *cell < CELL_FULL;
    }
    return PyList_SetItem(map->filters, index, bytes) < 0 ? -1 : take_filter(map, index);
}

int hot_map_add(HotMap *map, PyObject *name, PyObject *row) {
    const char *hash = PyBytes_AsString(name);
    Py_ssize_t index = part_index(map, hash);
    PyObject *part = PyList_GetItem(map->parts, index);
    uint8_t *cell = map->filtered ? cell_of(map, hash) : NULL;
    if (cell && PyDict_Size(part) >= map->filter[index].names_max)
        cell = grow(map, index) < 0 ? NULL : cell_of(map, hash);
    if (map->filtered && cell == NULL)
        return -1;
    if (cell == NULL || *cell) { /* else it is new for sure */
        if (PyDict_GetItemWithError(part, name))
            return 0;
        if (PyErr_Occurred())
            return -1;
    }
    if (PyDict_SetItem(part, name, row) < 0)
        return -1;
    if (cell)
        *cell += *cell < CELL_FULL;
    return 1;
}

int hot_map_remove(HotMap *map, PyObject *name) {
    const char *hash = PyBytes_AsString(name);
    uint8_t *cell = map->filtered ? cell_of(map, hash) : NULL;
    if ((map->filtered && cell == NULL) || PyDict_DelItem(part_of(map, hash), name) < 0)
        return -1;
    if (cell)
        *cell -= *cell && *cell < CELL_FULL;
    return 0;
}

PyObject *hot_set_name(PyObject *self, PyObject *arguments) {
    HotMap map;
    PyObject *lists, *name, *row;
    if (!PyArg_ParseTuple(arguments, "OSO", &lists, &name, &row) || hot_take_map(&map, lists, PyBytes_Size(name)) < 0)
        return NULL;
    int added = hot_map_add(&map, name, row);
    if (added < 0 || (!added && PyDict_SetItem(part_of(&map, PyBytes_AsString(name)), name, row) < 0))
        return NULL;
    Py_RETURN_NONE;
}

PyObject *hot_remove_name(PyObject *self, PyObject *arguments) {
    HotMap map;
    PyObject *lists, *name;
    if (!PyArg_ParseTuple(arguments, "OS", &lists, &name) || hot_take_map(&map, lists, PyBytes_Size(name)) < 0 ||
        hot_map_remove(&map, name) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ searches */

int hot_start_search(HotSearch *search, PyObject *lists, PyObject *packed, Py_ssize_t hash_bytes) {
    char *hashes;
    Py_ssize_t packed_bytes;
    HotMap *map = &search->map;
    if (hot_take_map(map, lists, hash_bytes) < 0 || PyBytes_AsStringAndSize(packed, &hashes, &packed_bytes) < 0)
        return -1;
    if (packed_bytes % hash_bytes) {
        PyErr_SetString(PyExc_ValueError, "hashes of another size");
        return -1;
    }
    search->hashes = hashes;
    search->count = packed_bytes / hash_bytes;
    search->sifting = map->filtered && search->count >= SIFT_MIN;
    return 0;
}

/* Which of the next hashes a dict may have. No step waits for another one's memory. -1 and an exception as above. */
static int sift(HotSearch *search, Py_ssize_t first) {
    Py_ssize_t left = search->count - first, count = left < HOT_SIFTED ? left : HOT_SIFTED, known = 0;
    const char *hash = search->hashes + first * search->map.hash_bytes;
    for (Py_ssize_t i = 0; i < count; i++, hash += search->map.hash_bytes) {
        const uint8_t *cell = cell_of(&search->map, hash);
        if (cell == NULL)
            return -1;
        known += (search->maybe[i] = *cell) > 0;
        if (i == SAMPLE && known > SAMPLE / 2) { /* most are there: no use in it */
            memset(search->maybe + i, 1, (size_t)(count - i));
            break;
        }
    }
    return 0;
}

Py_ssize_t hot_row_of(HotSearch *search, Py_ssize_t index) {
    const char *hash = search->hashes + index * search->map.hash_bytes;
    if (search->sifting) {
        if (index % HOT_SIFTED == 0 && sift(search, index) < 0)
            return -2;
        if (!search->maybe[index % HOT_SIFTED])
            return -1;
    }
    PyObject *name = PyBytes_FromStringAndSize(hash, search->map.hash_bytes);
    PyObject *number = name ? PyDict_GetItemWithError(part_of(&search->map, hash), name) : NULL;
    Py_XDECREF(name);
    Py_ssize_t row = number ? PyLong_AsSsize_t(number) : -1;
    if ((number == NULL || row == -1) && PyErr_Occurred())
        return -2;
    return row < 0 ? -1 : row;
}

PyObject *hot_find_rows(PyObject *self, PyObject *arguments) {
    PyObject *lists, *packed, *found;
    Py_ssize_t hash_bytes, count;
    Py_buffer rows;
    HotSearch search;
    if (!PyArg_ParseTuple(arguments, "OOnO", &lists, &packed, &hash_bytes, &found) ||
        hot_start_search(&search, lists, packed, hash_bytes) < 0 || hot_view_u64(found, &rows, PyBUF_WRITABLE, &count) < 0)
        return NULL;
    if (count != search.count)
        PyErr_SetString(PyExc_ValueError, "hashes and rows of different number");
    int64_t *row_of = rows.buf;
    for (Py_ssize_t i = 0; i < count && count == search.count; i++)
        if ((row_of[i] = hot_row_of(&search, i)) == -2)
            break;
    PyBuffer_Release(&rows);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

