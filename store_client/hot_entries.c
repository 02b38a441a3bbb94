/* Committed slots on their way into a flat table of the master's index: what FlatTable.adopt does for each of them. */
#include "hot.h"

/* The columns of a table, in the order of FlatTable.cells: one cell a row, the last four `world` cells a row. */
enum { READY, USES, COMMITTED, LAST_USE, UNREADY_SINCE, WHICH, SLOTS, GENERATIONS, LENGTHS, COLUMNS };
static const Py_ssize_t CELL_BYTES[COLUMNS] = {1, 1, 8, 8, 8, 2, 4, 8, 8};

/* What is reported of each entry. */
enum { ITEM_RANK, ITEM_SLOT, ITEM_GENERATION, ITEM_LENGTH, ITEMS };
static const Py_ssize_t ITEM_BYTES[ITEMS] = {2, 4, 8, 8};

/* Of a ghost, see master/policy_ghosts.py. */
#define USES_BITS 4
#define TAG_SHIFT 36

typedef struct {
    Py_ssize_t world, rows, count;
    Py_buffer views[COLUMNS], items[ITEMS];
    int viewed, read;
} Fill;

static PyObject *released(Fill *fill, PyObject *answer, const char *why) {
    while (fill->viewed)
        PyBuffer_Release(&fill->views[--fill->viewed]);
    while (fill->read)
        PyBuffer_Release(&fill->items[--fill->read]);
    if (answer == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, why);
    return answer;
}

static int take_columns(Fill *fill, PyObject *columns) {
    PyObject *of[COLUMNS];
    if (!PyArg_ParseTuple(columns, "nOOOOOOOOO", &fill->world, &of[0], &of[1], &of[2], &of[3], &of[4], &of[5], &of[6], &of[7],
                          &of[8]) ||
        fill->world < 1 || fill->world > 64)
        return 0;
    for (int i = 0; i < COLUMNS && of[i] != Py_None; i++) {
        if (PyObject_GetBuffer(of[i], &fill->views[i], PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0)
            return 0;
        fill->viewed++;
        if (i == READY)
            fill->rows = fill->views[READY].len;
        if (fill->views[i].len != fill->rows * CELL_BYTES[i] * (i < WHICH ? 1 : fill->world))
            return 0;
    }
    return fill->viewed >= LENGTHS;
}

static int take_items(Fill *fill, PyObject *items) {
    PyObject *of[ITEMS];
    if (!PyArg_ParseTuple(items, "OOOO", &of[0], &of[1], &of[2], &of[3]))
        return 0;
    for (int i = 0; i < ITEMS; i++) {
        if (PyObject_GetBuffer(of[i], &fill->items[i], PyBUF_C_CONTIGUOUS) < 0)
            return 0;
        fill->read++;
        if (fill->items[i].len != fill->count * ITEM_BYTES[i])
            return 0;
    }
    return 1;
}

static void fill_row(const Fill *fill, Py_ssize_t row, Py_ssize_t item, uint16_t segment, double now_s) {
    uint16_t rank = ((const uint16_t *)fill->items[ITEM_RANK].buf)[item];
    Py_ssize_t cell = row * fill->world + rank;
    ((uint16_t *)fill->views[WHICH].buf)[cell] = segment;
    ((uint32_t *)fill->views[SLOTS].buf)[cell] = ((const uint32_t *)fill->items[ITEM_SLOT].buf)[item];
    ((uint64_t *)fill->views[GENERATIONS].buf)[cell] = ((const uint64_t *)fill->items[ITEM_GENERATION].buf)[item];
    if (fill->viewed > LENGTHS)
        ((uint64_t *)fill->views[LENGTHS].buf)[cell] = ((const uint64_t *)fill->items[ITEM_LENGTH].buf)[item];
    ((uint64_t *)fill->views[COMMITTED].buf)[row] = (uint64_t)1 << rank;
    ((double *)fill->views[LAST_USE].buf)[row] = ((double *)fill->views[UNREADY_SINCE].buf)[row] = now_s;
    ((uint8_t *)fill->views[USES].buf)[row] = ((uint8_t *)fill->views[READY].buf)[row] = 1;
}

PyObject *hot_fill_rows(PyObject *self, PyObject *arguments) {
    PyObject *columns, *rows, *items;
    Py_ssize_t segment;
    double now_s;
    Fill fill = {.viewed = 0, .read = 0};
    if (!PyArg_ParseTuple(arguments, "OOOnd", &columns, &rows, &items, &segment, &now_s))
        return NULL;
    if (!PyList_Check(rows) || segment < 0 || segment > 0xFFFF)
        return released(&fill, NULL, "a list of rows, and a segment");
    fill.count = PyList_Size(rows);
    if (!take_columns(&fill, columns) || !take_items(&fill, items))
        return released(&fill, NULL, "columns that don't fit each other");
    const uint16_t *ranks = fill.items[ITEM_RANK].buf;
    unsigned long long sum_bytes = 0;
    for (Py_ssize_t i = 0; i < fill.count; i++) {
        Py_ssize_t row = PyLong_AsSsize_t(PyList_GetItem(rows, i));
        if (row < 0 || row >= fill.rows || ranks[i] >= fill.world)
            return released(&fill, NULL, "a row or a rank that the table lacks");
        sum_bytes += ((const uint64_t *)fill.items[ITEM_LENGTH].buf)[i];
        fill_row(&fill, row, i, (uint16_t)segment, now_s);
    }
    return released(&fill, PyLong_FromUnsignedLongLong(sum_bytes), "");
}

PyObject *hot_take_ghosts(PyObject *self, PyObject *arguments) {
    PyObject *slots;
    const char *hashes;
    Py_ssize_t packed_bytes, hash_bytes;
    Py_buffer view;
    if (!PyArg_ParseTuple(arguments, "Oy#n", &slots, &hashes, &packed_bytes, &hash_bytes) ||
        PyObject_GetBuffer(slots, &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    uint64_t count = (uint64_t)view.len / sizeof(uint32_t);
    if (hash_bytes < 8 || packed_bytes % hash_bytes || count == 0 || (count & (count - 1))) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "hashes of one size, and a power of two of ghosts");
        return NULL;
    }
    PyObject *uses = PyBytes_FromStringAndSize(NULL, packed_bytes / hash_bytes);
    char *found = uses ? PyBytes_AsString(uses) : NULL;
    int some = 0;
    for (Py_ssize_t i = 0; found && i < packed_bytes / hash_bytes; i++) {
        uint64_t name;
        __builtin_memcpy(&name, hashes + i * hash_bytes, sizeof name);
        uint32_t *ghost = (uint32_t *)view.buf + (name & (count - 1));
        found[i] = (char)(*ghost >> USES_BITS == (uint32_t)(name >> TAG_SHIFT) ? *ghost & ((1 << USES_BITS) - 1) : 0);
        if (found[i])
            *ghost = 0, some = 1;
    }
    PyBuffer_Release(&view);
    if (uses == NULL || some)
        return uses;
    Py_DECREF(uses);
    return PyBytes_FromStringAndSize(NULL, 0);
}
