/* What a client asks of a long chain: some of its hashes whole, and samples of all. What prefix.py sends in a Probe. */
#include "hot.h"
#include <stdlib.h>
#include <string.h>

#define AHEAD 16 /* so many hashes before its own turn one is fetched into the cache: most of them lie in none */

typedef struct {
    PyObject *list;
    Py_ssize_t count, hash_bytes;
} Chain;

/* The bytes of one; NULL where it is something else, or of another size. */
static const char *hash_at(const Chain *chain, Py_ssize_t index) {
    PyObject *hash = PyList_GetItem(chain->list, index);
    if (!PyBytes_CheckExact(hash) || Py_SIZE(hash) != chain->hash_bytes)
        return NULL;
    return PyBytes_AsString(hash);
}

/* First 8 bytes of those whose bits of `mask` are zero; None where one isn't a hash of that size. */
static PyObject *sample(const Chain *chain, uint64_t mask) {
    uint64_t *names = malloc(8 * (size_t)chain->count + 8);
    if (names == NULL)
        return PyErr_NoMemory();
    Py_ssize_t sampled = 0;
    for (Py_ssize_t i = 0; i < chain->count; i++) {
        if (i + AHEAD < chain->count) {
            const char *ahead = (const char *)PyList_GetItem(chain->list, i + AHEAD);
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + 32); /* its bytes, which may lie in the next line */
        }
        const char *hash = hash_at(chain, i);
        if (hash == NULL) {
            free(names);
            Py_RETURN_NONE;
        }
        memcpy(&names[sampled], hash, 8); /* little-endian, as all of our machines */
        sampled += !(names[sampled] & mask);
    }
    PyObject *packed = PyBytes_FromStringAndSize((const char *)names, 8 * sampled);
    free(names);
    return packed;
}

/* Each stride-th hash of a run, and its last one, packed; None as above. */
static PyObject *points(const Chain *chain, Py_ssize_t first, Py_ssize_t count, Py_ssize_t stride) {
    Py_ssize_t wanted = (count - 1) / stride + 1, last = first + count - 1;
    PyObject *packed = PyBytes_FromStringAndSize(NULL, wanted * chain->hash_bytes);
    char *to = packed ? PyBytes_AsString(packed) : NULL;
    for (Py_ssize_t i = 0; packed && i < wanted; i++, to += chain->hash_bytes) {
        const char *hash = hash_at(chain, i == wanted - 1 ? last : first + (i + 1) * stride - 1);
        if (hash == NULL) {
            Py_DECREF(packed);
            Py_RETURN_NONE;
        }
        memcpy(to, hash, (size_t)chain->hash_bytes);
    }
    return packed;
}

PyObject *hot_probe_points(PyObject *self, PyObject *arguments) {
    Chain chain;
    PyObject *runs;
    unsigned long long mask;
    int sampled;
    if (!PyArg_ParseTuple(arguments, "OnKpO", &chain.list, &chain.hash_bytes, &mask, &sampled, &runs))
        return NULL;
    if (!PyList_Check(chain.list) || !PyList_Check(runs) || chain.hash_bytes < 8) {
        PyErr_SetString(PyExc_ValueError, "lists of hashes of 8 bytes or more, and of runs");
        return NULL;
    }
    chain.count = PyList_Size(chain.list);
    Py_ssize_t run_count = PyList_Size(runs);
    PyObject *found = PyTuple_New(run_count + 1);
    for (Py_ssize_t i = 0; found && i <= run_count; i++) {
        PyObject *part = NULL;
        Py_ssize_t first, count, stride;
        if (i == 0)
            part = sampled ? sample(&chain, mask) : PyBytes_FromStringAndSize(NULL, 0);
        else if (!PyArg_ParseTuple(PyList_GetItem(runs, i - 1), "nnn", &first, &count, &stride))
            ;
        else if (first < 0 || count < 1 || stride < 1 || count > chain.count || first > chain.count - count)
            PyErr_SetString(PyExc_ValueError, "a run beyond the chain");
        else
            part = points(&chain, first, count, stride);
        if (part == NULL || part == Py_None || PyTuple_SetItem(found, i, part) < 0) {
            Py_DECREF(found);
            return part; /* an error, or None: one of them isn't a hash */
        }
    }
    return found;
}
