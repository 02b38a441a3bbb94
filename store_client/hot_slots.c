/* The slots of a mapped segment: what store_client/transports/shm.py does for each object. */
#include "hot.h"
#include "hot_copies.h"
#include "hot_slots.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Columns of one entry an object, and of one entry a piece of memory; object i has the pieces offsets[i] to
 * offsets[i + 1]. */
enum { LAYOUT, SLOTS, LENGTHS, ADDRESSES, SIZES, OFFSETS, GENERATIONS, HASHES, COLUMNS };

typedef struct {
    Py_buffer views[COLUMNS];
    int count;
    Py_ssize_t objects, pieces;
} Columns;

static void release(Columns *columns) {
    while (columns->count)
        PyBuffer_Release(&columns->views[--columns->count]);
}

/* Takes the first `count` columns; -1 and an exception where they don't fit each other. */
static int take(Columns *columns, PyObject *const *objects, int count) {
    columns->count = 0;
    for (int i = 0; i < count; i++) {
        if (PyObject_GetBuffer(objects[i], &columns->views[i], PyBUF_C_CONTIGUOUS) < 0) {
            release(columns);
            return -1;
        }
        columns->count++;
    }
    Py_buffer *views = columns->views;
    Py_ssize_t n = columns->objects = views[SLOTS].len / 4, pieces = columns->pieces = views[SIZES].len / 8;
    int fit = views[LAYOUT].len == sizeof(Layout) && views[LENGTHS].len == 8 * n && views[ADDRESSES].len == 8 * pieces &&
              views[OFFSETS].len == 8 * (n + 1);
    for (int i = GENERATIONS; i < count; i++)
        fit = fit && (i == HASHES ? views[i].itemsize <= 32 && views[i].len == views[i].itemsize * n : views[i].len == 8 * n);
    fit = fit && hot_pieces_fit(views[OFFSETS].buf, views[LENGTHS].buf, n, views[SIZES].buf, pieces);
    if (fit)
        return 0;
    release(columns);
    PyErr_SetString(PyExc_ValueError, "columns that don't fit each other");
    return -1;
}

/* Copies between slots and pieces: of those objects whose slots were found. 0 where there is no memory. */
static int copy_slots(const Columns *columns, const uint64_t *starts, int into_slots, long threads) {
    const uint64_t *addresses = columns->views[ADDRESSES].buf, *sizes = columns->views[SIZES].buf;
    const int64_t *offsets = columns->views[OFFSETS].buf;
    uint64_t *slot_side = calloc((size_t)columns->pieces + 1, 3 * sizeof *slot_side);
    if (slot_side == NULL)
        return 0;
    uint64_t *piece_side = slot_side + columns->pieces, *bytes = piece_side + columns->pieces, total = 0;
    size_t count = 0; /* of pieces that are left, neighbours on both sides being one */
    for (Py_ssize_t i = 0; i < columns->objects; i++) {
        uint64_t at = starts[i];
        for (int64_t piece = offsets[i]; at && piece < offsets[i + 1]; at += sizes[piece++]) {
            uint64_t address = addresses[piece];
            total += sizes[piece];
            if (count && slot_side[count - 1] + bytes[count - 1] == at && piece_side[count - 1] + bytes[count - 1] == address)
                bytes[count - 1] += sizes[piece];
            else if (sizes[piece])
                slot_side[count] = at, piece_side[count] = address, bytes[count++] = sizes[piece];
        }
    }
    const Pieces left = {into_slots ? slot_side : piece_side, into_slots ? piece_side : slot_side, bytes};
    hot_copy_all(left, total, into_slots, threads);
    free(slot_side);
    return 1;
}

/* Copies objects out of their slots, and sums those of which a checksum is told. Whether there are any. */
static int copy_summed(const Columns *columns, const uint64_t *starts, uint64_t *sums, long threads) {
    const Layout *layout = columns->views[LAYOUT].buf;
    const uint32_t *slots = columns->views[SLOTS].buf;
    const Objects objects = {columns->views[OFFSETS].buf, columns->views[ADDRESSES].buf, columns->views[SIZES].buf,
                             columns->views[LENGTHS].buf, starts, sums};
    uint64_t any = 0, bytes = 0;
    for (Py_ssize_t i = 0; i < columns->objects; i++) {
        any |= sums[i] = starts[i] ? hot_header(layout, slots[i])->checksum : 0;
        bytes += objects.lengths[i];
    }
    if (any)
        hot_sum_objects(objects, (uint64_t)columns->objects, bytes, threads);
    return any != 0;
}

/* What each header says of its object, as of after the copy (I3); and what its checksum says, if it was told before. */
static void judge(const Columns *columns, uint64_t keyspace, int rank, const uint64_t *starts, const uint64_t *sums,
                  const char bad[2], char *statuses) {
    const Layout *layout = columns->views[LAYOUT].buf;
    const uint32_t *slots = columns->views[SLOTS].buf;
    const uint64_t *lengths = columns->views[LENGTHS].buf, *generations = columns->views[GENERATIONS].buf;
    size_t hash_bytes = (size_t)columns->views[HASHES].itemsize;
    atomic_thread_fence(memory_order_acquire);
    for (Py_ssize_t i = 0; i < columns->objects; i++) {
        const char *hash = (const char *)columns->views[HASHES].buf + hash_bytes * (size_t)i;
        Header header;
        statuses[i] = bad[0];
        if (!starts[i])
            continue;
        hot_copy_header(&header, hot_header(layout, slots[i]));
        if (hot_holds(&header, (Asked){generations[i], keyspace, lengths[i], rank, hash, hash_bytes}))
            statuses[i] = sums[i] && sums[i] != header.checksum ? bad[1] : 0;
    }
}

PyObject *hot_read_slots(PyObject *self, PyObject *arguments) {
    PyObject *objects[COLUMNS];
    Columns columns;
    unsigned long long keyspace;
    int rank, verify, missing, corrupt;
    long threads;
    if (!PyArg_ParseTuple(arguments, "(OOOOOOOO)Kilpii", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                          &objects[5], &objects[6], &objects[7], &keyspace, &rank, &threads, &verify, &missing, &corrupt))
        return NULL;
    if (take(&columns, objects, COLUMNS) < 0)
        return NULL;
    PyObject *statuses = PyByteArray_FromStringAndSize(NULL, columns.objects);
    uint64_t *starts = calloc((size_t)columns.objects + 1, 2 * sizeof *starts), *sums = starts + columns.objects;
    int copied = 0;
    for (Py_ssize_t i = 0; starts && i < columns.objects; i++) {
        uint32_t slot = ((const uint32_t *)columns.views[SLOTS].buf)[i];
        starts[i] = hot_slot_address(columns.views[LAYOUT].buf, slot, ((const uint64_t *)columns.views[LENGTHS].buf)[i]);
    }
    if (statuses && starts)
        copied = (verify && copy_summed(&columns, starts, sums, threads)) || copy_slots(&columns, starts, 0, threads);
    if (copied)
        judge(&columns, keyspace, rank, starts, sums, (char[]){(char)missing, (char)corrupt}, PyByteArray_AsString(statuses));
    else {
        Py_CLEAR(statuses);
        PyErr_NoMemory();
    }
    free(starts);
    release(&columns);
    return statuses;
}

PyObject *hot_fill_slots(PyObject *self, PyObject *arguments) {
    PyObject *objects[GENERATIONS];
    Columns columns;
    long threads;
    if (!PyArg_ParseTuple(arguments, "(OOOOOO)l", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                          &objects[5], &threads))
        return NULL;
    if (take(&columns, objects, GENERATIONS) < 0)
        return NULL;
    uint64_t *starts = malloc(sizeof *starts * (size_t)(columns.objects + 1));
    int inside = 1, done = 0;
    for (Py_ssize_t i = 0; starts && i < columns.objects; i++) {
        uint32_t slot = ((const uint32_t *)columns.views[SLOTS].buf)[i];
        starts[i] = hot_slot_address(columns.views[LAYOUT].buf, slot, ((const uint64_t *)columns.views[LENGTHS].buf)[i]);
        inside = inside && starts[i];
    }
    if (starts)
        done = !inside || copy_slots(&columns, starts, 1, threads);
    free(starts);
    release(&columns);
    return done ? PyBool_FromLong(inside) : PyErr_NoMemory();
}
