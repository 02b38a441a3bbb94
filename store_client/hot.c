/* The few loops that neither Python nor numpy does fast enough. native.py has the same in Python and says what each
 * one does; a build without a compiler does without this file. Stable ABI: one build serves all Pythons from 3.11 on.
 */
#include "hot.h"
#include "hot_sum.h"
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ pieces of memory */

Py_ssize_t hot_append_u64s(PyObject *list, uint64_t *values) {
    Py_ssize_t length = PyList_Size(list);
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *value = PyList_GetItem(list, i);
        if (!PyLong_CheckExact(value))
            return -1;
        values[i] = PyLong_AsUnsignedLongLong(value);
        if (values[i] == UINT64_MAX && PyErr_Occurred()) {
            PyErr_Clear();
            return -1;
        }
    }
    return length;
}

static PyObject *pieces(PyObject *self, PyObject *arguments) {
    PyObject *addresses, *sizes;
    if (!PyArg_ParseTuple(arguments, "OO", &addresses, &sizes))
        return NULL;
    if (!PyList_Check(addresses) || !PyList_Check(sizes) || PyList_Size(addresses) != PyList_Size(sizes))
        Py_RETURN_NONE;
    Py_ssize_t objects = PyList_Size(addresses), total = 0;
    for (Py_ssize_t i = 0; i < objects; i++) {
        PyObject *starts = PyList_GetItem(addresses, i), *ends = PyList_GetItem(sizes, i);
        if (!PyList_Check(starts) || !PyList_Check(ends) || PyList_Size(starts) != PyList_Size(ends))
            Py_RETURN_NONE;
        total += PyList_Size(starts);
    }
    Py_ssize_t counts[4] = {total, total, objects + 1, objects}; /* addresses, sizes, offsets, lengths */
    PyObject *packed = PyTuple_New(4);
    uint64_t *columns[4];
    for (int i = 0; packed && i < 4; i++) {
        PyObject *column = PyBytes_FromStringAndSize(NULL, 8 * counts[i]);
        if (column == NULL || PyTuple_SetItem(packed, i, column) < 0) {
            Py_CLEAR(packed);
            return NULL;
        }
        columns[i] = (uint64_t *)(void *)PyBytes_AsString(column);
    }
    if (packed == NULL)
        return NULL;
    uint64_t at = columns[2][0] = 0;
    for (Py_ssize_t i = 0; i < objects; i++) {
        Py_ssize_t count = hot_append_u64s(PyList_GetItem(addresses, i), columns[0] + at);
        int good = count >= 0 && hot_append_u64s(PyList_GetItem(sizes, i), columns[1] + at) == count;
        uint64_t length = 0;
        for (uint64_t end = at + (uint64_t)count; good && at < end; at++) {
            uint64_t start = columns[0][at], size = columns[1][at];
            good = start <= ~size && (start || !size);
            length += size;
        }
        if (!good) {
            Py_DECREF(packed);
            Py_RETURN_NONE;
        }
        columns[3][i] = length;
        columns[2][i + 1] = at;
    }
    return packed;
}

/* ------------------------------------------------------------------ the module */

static PyMethodDef methods[] = {
    {"copy_pieces", hot_copy_pieces, METH_VARARGS, NULL},
    {"sums", hot_sums, METH_VARARGS, NULL},
    {"read_slots", hot_read_slots, METH_VARARGS, NULL},
    {"fill_slots", hot_fill_slots, METH_VARARGS, NULL},
    {"exchange_lanes", hot_exchange_lanes, METH_VARARGS, NULL},
    {"read_lane", hot_read_lane, METH_VARARGS, NULL},
    {"serve_reads", hot_serve_reads, METH_VARARGS, NULL},
    {"swap", hot_swap, METH_VARARGS, NULL},
    {"sweep", hot_sweep, METH_VARARGS, NULL},
    {"name_slots", hot_name_slots, METH_VARARGS, NULL},
    {"hash_keys", hot_hash_keys, METH_VARARGS, NULL},
    {"find_rows", hot_find_rows, METH_VARARGS, NULL},
    {"set_name", hot_set_name, METH_VARARGS, NULL},
    {"remove_name", hot_remove_name, METH_VARARGS, NULL},
    {"name_rows", hot_name_rows, METH_VARARGS, NULL},
    {"forget_rows", hot_forget_rows, METH_VARARGS, NULL},
    {"fill_rows", hot_fill_rows, METH_VARARGS, NULL},
    {"take_ghosts", hot_take_ghosts, METH_VARARGS, NULL},
    {"find_present", hot_find_present, METH_VARARGS, NULL},
    {"find_places", hot_find_places, METH_VARARGS, NULL},
    {"pieces", pieces, METH_VARARGS, NULL},
    {"gather", hot_gather, METH_VARARGS, NULL},
    {"exchange", hot_exchange, METH_VARARGS, NULL},
    {"send", hot_send, METH_VARARGS, NULL},
    {"probe_points", hot_probe_points, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_hot", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__hot(void) {
    hot_choose_hash();
    hot_choose_sum();
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "FORMAT", HOT_FORMAT) < 0)
        Py_CLEAR(made);
    return made;
}
