/* Names of the index's rows: what master/columns.py does for each hash. */
#include "hot.h"
#include <string.h>

#define AHEAD 8 /* so many names before its own turn one is fetched into the cache */

typedef struct {
    PyObject *parts, *names, *rows; /* dicts from hash to row by a hash's first byte; hash of each row; rows */
    Py_ssize_t part_count, name_count, count, hash_bytes;
} Map;

/* -1 and an exception where the arguments can't be a map. */
static int take(Map *map) {
    if (!PyList_Check(map->parts) || !PyList_Check(map->names) || !PyList_Check(map->rows) || map->hash_bytes < 1 ||
        (map->part_count = PyList_Size(map->parts)) < 1) {
        PyErr_SetString(PyExc_ValueError, "lists of dicts, names and rows, and the size of a hash");
        return -1;
    }
    map->name_count = PyList_Size(map->names);
    map->count = PyList_Size(map->rows);
    return 0;
}

/* Of an index into `rows`; -1 and an exception where the table has no such row. */
static Py_ssize_t row_at(const Map *map, Py_ssize_t index) {
    Py_ssize_t row = PyLong_AsSsize_t(PyList_GetItem(map->rows, index));
    if (row >= 0 && row < map->name_count)
        return row;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a row that the table lacks");
    return -1;
}

static PyObject *part_of(const Map *map, const char *hash) {
    return PyList_GetItem(map->parts, (unsigned char)hash[0] % map->part_count);
}

/* Forgets the names of the first `count` rows, and copies them to `packed`. -1 and an exception where one has none. */
static int forget(const Map *map, Py_ssize_t count, char *packed) {
    PyObject *nothing = PyBytes_FromStringAndSize(NULL, 0);
    int good = nothing != NULL;
    for (Py_ssize_t i = 0; good && i < count; i++) {
        Py_ssize_t later = i + AHEAD < count ? row_at(map, i + AHEAD) : 0, row = row_at(map, i);
        if (row < 0 || later < 0) {
            good = 0;
            break;
        }
        if (later)
            __builtin_prefetch(PyList_GetItem(map->names, later));
        PyObject *name = PyList_GetItem(map->names, row);
        good = PyBytes_Check(name) && PyBytes_Size(name) == map->hash_bytes;
        if (!good) {
            PyErr_SetString(PyExc_ValueError, "a row without a name");
            break;
        }
        if (packed)
            memcpy(packed + i * map->hash_bytes, PyBytes_AsString(name), (size_t)map->hash_bytes);
        good = PyDict_DelItem(part_of(map, PyBytes_AsString(name)), name) == 0 &&
               PyList_SetItem(map->names, row, Py_NewRef(nothing)) == 0;
    }
    Py_XDECREF(nothing);
    return good ? 0 : -1;
}

PyObject *hot_name_rows(PyObject *self, PyObject *arguments) {
    Map map;
    const char *hashes;
    Py_ssize_t packed_bytes;
    if (!PyArg_ParseTuple(arguments, "OOy#nO", &map.parts, &map.names, &hashes, &packed_bytes, &map.hash_bytes, &map.rows))
        return NULL;
    if (take(&map) < 0)
        return NULL;
    if (packed_bytes != map.count * map.hash_bytes) {
        PyErr_SetString(PyExc_ValueError, "hashes and rows of different number");
        return NULL;
    }
    Py_ssize_t i = 0;
    for (; i < map.count; i++) {
        Py_ssize_t row = row_at(&map, i);
        PyObject *part = part_of(&map, hashes + i * map.hash_bytes);
        PyObject *name = row >= 0 && part ? PyBytes_FromStringAndSize(hashes + i * map.hash_bytes, map.hash_bytes) : NULL;
        if (name == NULL)
            return NULL;
        int new = PyDict_GetItemWithError(part, name) == NULL && !PyErr_Occurred() &&
                  PyDict_SetItem(part, name, PyList_GetItem(map.rows, i)) == 0;
        if (!new) {
            Py_DECREF(name);
            break;
        }
        if (PyList_SetItem(map.names, row, name) < 0) /* takes the name */
            return NULL;
    }
    if (PyErr_Occurred() || (i < map.count && forget(&map, i, NULL) < 0))
        return NULL;
    return PyBool_FromLong(i == map.count);
}

PyObject *hot_forget_rows(PyObject *self, PyObject *arguments) {
    Map map;
    if (!PyArg_ParseTuple(arguments, "OOnO", &map.parts, &map.names, &map.hash_bytes, &map.rows))
        return NULL;
    if (take(&map) < 0)
        return NULL;
    PyObject *packed = PyBytes_FromStringAndSize(NULL, map.count * map.hash_bytes);
    if (packed && forget(&map, map.count, PyBytes_AsString(packed)) < 0)
        Py_CLEAR(packed);
    return packed;
}
