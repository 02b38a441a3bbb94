/* A few small objects on their way into one message: their bytes, back to back. */
#include "hot.h"

#include <string.h>

/* More pieces than this are not few: arrays are quicker. */
#define PIECES_MAX 64

PyObject *hot_gather(PyObject *self, PyObject *arguments) {
    PyObject *addresses, *sizes;
    Py_ssize_t bytes_max;
    if (!PyArg_ParseTuple(arguments, "OOn", &addresses, &sizes, &bytes_max))
        return NULL;
    if (!PyList_Check(addresses) || !PyList_Check(sizes) || PyList_Size(addresses) != PyList_Size(sizes))
        Py_RETURN_NONE;
    uint64_t starts[PIECES_MAX], lengths[PIECES_MAX], totals[PIECES_MAX], whole = 0;
    Py_ssize_t objects = PyList_Size(addresses), count = 0;
    if (objects > PIECES_MAX)
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < objects; i++) {
        PyObject *mine = PyList_GetItem(addresses, i), *long_ = PyList_GetItem(sizes, i);
        if (!PyList_Check(mine) || !PyList_Check(long_) || PyList_Size(mine) != PyList_Size(long_) ||
            count + PyList_Size(mine) > PIECES_MAX)
            Py_RETURN_NONE;
        Py_ssize_t end = count + PyList_Size(mine);
        if (hot_append_u64s(mine, starts + count) < 0 || hot_append_u64s(long_, lengths + count) < 0)
            Py_RETURN_NONE;
        totals[i] = 0;
        for (; count < end; count++) {
            if (lengths[count] > (uint64_t)bytes_max - whole || starts[count] > ~lengths[count] ||
                (lengths[count] && !starts[count]))
                Py_RETURN_NONE;
            totals[i] += lengths[count];
            whole += lengths[count];
        }
    }
    PyObject *payload = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)whole);
    if (payload == NULL)
        return NULL;
    char *to = PyBytes_AsString(payload);
    for (Py_ssize_t i = 0; i < count; to += lengths[i++])
        if (lengths[i]) /* else it may lie at 0, which memcpy must not be given */
            memcpy(to, (const void *)(uintptr_t)starts[i], lengths[i]);
    return Py_BuildValue("Ny#", payload, (const char *)totals, 8 * objects);
}
