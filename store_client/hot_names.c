/* Names of the index's rows: what master/hash_map.py does for each hash. */
#include "hot_map.h"

#define TOGETHER 32 /* names whose memory is fetched before the first of them is looked at */

typedef struct {
    HotMap map;
    PyObject *hashes, *rows; /* hash of each row; rows */
    Py_ssize_t hash_count, count;
} Rows;

/* -1 and an exception where the arguments can't be that. */
static int take(Rows *rows, PyObject *lists, Py_ssize_t hash_bytes) {
    if (hot_take_map(&rows->map, lists, hash_bytes) < 0)
        return -1;
    if (!PyList_Check(rows->hashes) || !PyList_Check(rows->rows)) {
        PyErr_SetString(PyExc_ValueError, "lists of hashes and rows");
        return -1;
    }
    rows->hash_count = PyList_Size(rows->hashes);
    rows->count = PyList_Size(rows->rows);
    return 0;
}

/* Of an index into `rows`; -1 and an exception where the table has no such row. */
static Py_ssize_t row_at(const Rows *rows, Py_ssize_t index) {
    Py_ssize_t row = PyLong_AsSsize_t(PyList_GetItem(rows->rows, index));
    if (row >= 0 && row < rows->hash_count)
        return row;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a row that the table lacks");
    return -1;
}

/* The name of a row; NULL and an exception where it has none. */
static PyObject *name_of(const Rows *rows, Py_ssize_t row) {
    PyObject *name = PyList_GetItem(rows->hashes, row);
    if (PyBytes_Check(name) && PyBytes_Size(name) == rows->map.hash_bytes)
        return name;
    PyErr_SetString(PyExc_ValueError, "a row without a name");
    return NULL;
}

/* Forgets the names of `count` rows from an index on, TOGETHER at most, and copies them to `packed`. */
static int forget_some(Rows *rows, Py_ssize_t first, Py_ssize_t count, char *packed, PyObject *nothing) {
    Py_ssize_t numbers[TOGETHER], bytes = rows->map.hash_bytes;
    for (Py_ssize_t i = 0; i < count; i++) {
        if ((numbers[i] = row_at(rows, first + i)) < 0)
            return -1;
        hot_fetch_name(PyList_GetItem(rows->hashes, numbers[i]));
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = name_of(rows, numbers[i]);
        if (name == NULL)
            return -1;
        if (packed)
            memcpy(packed + (first + i) * bytes, PyBytes_AsString(name), (size_t)bytes);
        hot_map_prefetch(&rows->map, PyBytes_AsString(name));
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = name_of(rows, numbers[i]); /* a row may be named twice */
        if (name == NULL || hot_map_remove(&rows->map, name) < 0 ||
            PyList_SetItem(rows->hashes, numbers[i], Py_NewRef(nothing)) < 0)
            return -1;
    }
    return 0;
}

/* Forgets the names of the first `count` rows, and copies them to `packed`. -1 and an exception where one has none. */
static int forget(Rows *rows, Py_ssize_t count, char *packed) {
    PyObject *nothing = PyBytes_FromStringAndSize(NULL, 0);
    int good = nothing != NULL;
    for (Py_ssize_t i = 0; good && i < count; i += TOGETHER)
        good = forget_some(rows, i, count - i < TOGETHER ? count - i : TOGETHER, packed, nothing) == 0;
    Py_XDECREF(nothing);
    return good ? 0 : -1;
}

PyObject *hot_name_rows(PyObject *self, PyObject *arguments) {
    Rows rows;
    PyObject *lists;
    const char *hashes;
    Py_ssize_t packed_bytes, hash_bytes;
    if (!PyArg_ParseTuple(arguments, "OOy#nO", &lists, &rows.hashes, &hashes, &packed_bytes, &hash_bytes, &rows.rows) ||
        take(&rows, lists, hash_bytes) < 0)
        return NULL;
    if (packed_bytes != rows.count * hash_bytes) {
        PyErr_SetString(PyExc_ValueError, "hashes and rows of different number");
        return NULL;
    }
    Py_ssize_t i = 0;
    for (; i < rows.count; i++) {
        for (Py_ssize_t ahead = i; i % TOGETHER == 0 && ahead < rows.count && ahead < i + TOGETHER; ahead++)
            hot_map_prefetch(&rows.map, hashes + ahead * hash_bytes);
        Py_ssize_t row = row_at(&rows, i);
        PyObject *name = row >= 0 ? PyBytes_FromStringAndSize(hashes + i * hash_bytes, hash_bytes) : NULL;
        if (name == NULL)
            return NULL;
        if (hot_map_add(&rows.map, name, PyList_GetItem(rows.rows, i)) != 1) {
            Py_DECREF(name);
            break;
        }
        if (PyList_SetItem(rows.hashes, row, name) < 0) /* takes the name */
            return NULL;
    }
    if (PyErr_Occurred() || (i < rows.count && forget(&rows, i, NULL) < 0))
        return NULL;
    return PyBool_FromLong(i == rows.count);
}

PyObject *hot_forget_rows(PyObject *self, PyObject *arguments) {
    Rows rows;
    PyObject *lists;
    Py_ssize_t hash_bytes;
    if (!PyArg_ParseTuple(arguments, "OOnO", &lists, &rows.hashes, &hash_bytes, &rows.rows) || take(&rows, lists, hash_bytes) < 0)
        return NULL;
    PyObject *packed = PyBytes_FromStringAndSize(NULL, rows.count * hash_bytes);
    if (packed && forget(&rows, rows.count, PyBytes_AsString(packed)) < 0)
        Py_CLEAR(packed);
    return packed;
}
