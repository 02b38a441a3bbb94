/* Lookups in a flat table of the master's index: what master/flat.py and master/lookups.py do for each hash. */
#include "hot_map.h"

#define SEGMENTS 65536   /* of a bitmap of usable ones (master/columns.py: NO_SEGMENT is the last) */
#define DISTINCT_MAX 64  /* segments of one answer; more are left to Python */

/* The columns of a table, in the order of FlatTable.native: one cell a row, the last four `world` cells a row. */
enum { READY, COMMITTED, SOFT_UNTIL, WHICH, SLOTS, GENERATIONS, LENGTHS, COLUMNS };
static const Py_ssize_t CELL_BYTES[COLUMNS] = {1, 8, 8, 2, 4, 8, 8};

typedef struct {
    HotSearch search; /* for the rows of what is asked for */
    Py_ssize_t world, rows, count;
    Py_buffer views[COLUMNS], usable;
    int viewed, has_usable;
} Table;

static void release(Table *table) {
    while (table->viewed)
        PyBuffer_Release(&table->views[--table->viewed]);
    if (table->has_usable)
        PyBuffer_Release(&table->usable);
    table->has_usable = 0;
}

static int refuse(Table *table, const char *why) {
    release(table);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, why);
    return -1;
}

/* -1 and an exception where the arguments don't fit each other. LENGTHS may be None. */
static int take(Table *table, PyObject *columns, PyObject *packed, PyObject *usable, Py_ssize_t rank) {
    PyObject *lists, *objects[COLUMNS];
    Py_ssize_t hash_bytes;
    table->viewed = table->has_usable = 0;
    if (!PyArg_ParseTuple(columns, "OnnOOOOOOO", &lists, &hash_bytes, &table->world, &objects[0], &objects[1], &objects[2],
                          &objects[3], &objects[4], &objects[5], &objects[6]))
        return -1;
    if (hot_start_search(&table->search, lists, packed, hash_bytes) < 0)
        return -1;
    if (table->world < 1 || table->world > 64 || rank >= table->world)
        return refuse(table, "a table's ranks, and one of them");
    table->count = table->search.count;
    for (int i = 0; i < COLUMNS && objects[i] != Py_None; i++) {
        int flags = PyBUF_C_CONTIGUOUS | (i == SOFT_UNTIL ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[i], &table->views[i], flags) < 0)
            return refuse(table, "columns");
        table->viewed++;
        if (i == READY)
            table->rows = table->views[READY].len;
        if (table->views[i].len != table->rows * CELL_BYTES[i] * (i < WHICH ? 1 : table->world))
            return refuse(table, "columns that don't fit each other");
    }
    if (table->viewed < LENGTHS)
        return refuse(table, "columns are missing");
    if (usable != Py_None) {
        if (PyObject_GetBuffer(usable, &table->usable, PyBUF_C_CONTIGUOUS) < 0)
            return refuse(table, "usable segments");
        table->has_usable = 1;
        if (table->usable.len != SEGMENTS)
            return refuse(table, "usable segments of another number");
    }
    return 0;
}

/* The row of a hash, -1 where there is none, -2 and an exception where something is wrong. */
static Py_ssize_t row_of(Table *table, Py_ssize_t index) {
    Py_ssize_t row = hot_row_of(&table->search, index);
    if (row < table->rows)
        return row;
    PyErr_SetString(PyExc_ValueError, "a row that the columns lack");
    return -2;
}

static int is_usable(const Table *table, Py_ssize_t cell) {
    return !table->has_usable || ((const uint8_t *)table->usable.buf)[((const uint16_t *)table->views[WHICH].buf)[cell]];
}

/* Whether the rank of a row is committed, or below 0 the row ready; and on usable segments. */
static int is_there(const Table *table, Py_ssize_t row, Py_ssize_t rank) {
    if (rank >= 0) {
        uint64_t committed = ((const uint64_t *)table->views[COMMITTED].buf)[row];
        return (int)(committed >> rank & 1) && is_usable(table, row * table->world + rank);
    }
    int there = ((const uint8_t *)table->views[READY].buf)[row] == 1;
    for (Py_ssize_t i = 0; there && table->has_usable && i < table->world; i++)
        there = is_usable(table, row * table->world + i);
    return there;
}

PyObject *hot_find_present(PyObject *self, PyObject *arguments) {
    PyObject *columns, *packed, *usable;
    Py_ssize_t rank;
    double until_s;
    Table table;
    if (!PyArg_ParseTuple(arguments, "OOnOd", &columns, &packed, &rank, &usable, &until_s))
        return NULL;
    if (take(&table, columns, packed, usable, rank) < 0)
        return NULL;
    PyObject *bits = PyBytes_FromStringAndSize(NULL, table.count);
    char *there = bits ? PyBytes_AsString(bits) : NULL;
    double *soft_until_s = table.views[SOFT_UNTIL].buf;
    for (Py_ssize_t i = 0; bits && i < table.count; i++) {
        Py_ssize_t row = row_of(&table, i);
        if (row == -2) {
            Py_CLEAR(bits);
            break;
        }
        there[i] = row >= 0 && is_there(&table, row, rank);
        if (there[i] && soft_until_s[row] < until_s)
            soft_until_s[row] = until_s;
    }
    release(&table);
    return bits;
}

PyObject *hot_find_places(PyObject *self, PyObject *arguments) {
    PyObject *columns, *packed, *usable;
    Py_ssize_t rank;
    unsigned long long fixed_length;
    Table table;
    if (!PyArg_ParseTuple(arguments, "OOnOK", &columns, &packed, &rank, &usable, &fixed_length))
        return NULL;
    if (rank < 0) {
        PyErr_SetString(PyExc_ValueError, "a rank from 0 on");
        return NULL;
    }
    if (take(&table, columns, packed, usable, rank) < 0)
        return NULL;
    PyObject *found[4] = {NULL, NULL, NULL, NULL}; /* which, slots, generations, lengths */
    static const Py_ssize_t SIZES[4] = {2, 4, 8, 8};
    char *out[4];
    int good = 1, distinct = 0, last = 0;
    uint16_t segments[DISTINCT_MAX];
    for (int i = 0; i < 4 && good; i++) {
        found[i] = PyBytes_FromStringAndSize(NULL, SIZES[i] * table.count);
        if ((good = found[i] != NULL))
            memset(out[i] = PyBytes_AsString(found[i]), 0, (size_t)(SIZES[i] * table.count));
    }
    for (Py_ssize_t i = 0; good && i < table.count; i++) {
        Py_ssize_t row = row_of(&table, i), cell = row * table.world + rank;
        good = row != -2;
        if (row < 0 || !is_there(&table, row, rank))
            continue;
        uint16_t segment = ((const uint16_t *)table.views[WHICH].buf)[cell];
        if (!distinct || segments[last] != segment)
            for (last = 0; last < distinct && segments[last] != segment;)
                last++;
        if (last == distinct) {
            if (distinct == DISTINCT_MAX)
                break;
            segments[distinct++] = segment;
        }
        ((uint16_t *)(void *)out[0])[i] = (uint16_t)last;
        ((uint32_t *)(void *)out[1])[i] = ((const uint32_t *)table.views[SLOTS].buf)[cell];
        ((uint64_t *)(void *)out[2])[i] = ((const uint64_t *)table.views[GENERATIONS].buf)[cell];
        ((uint64_t *)(void *)out[3])[i] = table.viewed > LENGTHS ? ((const uint64_t *)table.views[LENGTHS].buf)[cell] : fixed_length;
    }
    release(&table);
    PyObject *answer = NULL;
    if (good && last == DISTINCT_MAX)
        answer = Py_NewRef(Py_None);
    else if (good)
        answer = Py_BuildValue("y#OOOO", (const char *)segments, (Py_ssize_t)2 * distinct, found[0], found[1], found[2], found[3]);
    for (int i = 0; i < 4; i++)
        Py_XDECREF(found[i]);
    return answer;
}
