/* Copies of memory, and the slots of a mapped segment: what store_client/transports/shm.py does for each object. */
#include "hot.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_LOCK_BELOW_BYTES (128 << 10)
#define THREAD_BYTES_MIN (2 << 20) /* starting a thread takes as long as copying a tenth of this */
#define THREADS_MAX 4

int hot_view_u64(PyObject *object, Py_buffer *view, int flags, Py_ssize_t *count) {
    if (PyObject_GetBuffer(object, view, flags | PyBUF_C_CONTIGUOUS) < 0)
        return -1;
    if (view->len % 8) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_ValueError, "not a column of u64");
        return -1;
    }
    *count = view->len / 8;
    return 0;
}

/* Bytes `first` to `end` of all pieces, counted from the first one's first byte. */
typedef struct {
    const uint64_t *to, *from, *sizes;
    uint64_t first, end;
    pthread_t thread;
} Share;

static void *copy_share(void *argument) {
    const Share *share = argument;
    uint64_t at = 0;
    for (size_t i = 0; at < share->end; at += share->sizes[i++]) {
        uint64_t next = at + share->sizes[i];
        if (next <= share->first)
            continue;
        uint64_t skipped = at < share->first ? share->first - at : 0;
        uint64_t stop = next < share->end ? next : share->end;
        memmove((void *)(uintptr_t)(share->to[i] + skipped), (const void *)(uintptr_t)(share->from[i] + skipped),
                stop - at - skipped);
    }
    return NULL;
}

static void copy_all(const uint64_t *to, const uint64_t *from, const uint64_t *sizes, uint64_t total, long threads) {
    Share shares[THREADS_MAX];
    uint64_t wanted = total / THREAD_BYTES_MIN;
    int count = (int)(wanted < (uint64_t)threads ? wanted : (uint64_t)threads), started = 1;
    count = count < 1 ? 1 : count > THREADS_MAX ? THREADS_MAX : count;
    for (int i = 0; i < count; i++) {
        uint64_t first = total / count * i, end = i + 1 < count ? total / count * (i + 1) : total;
        shares[i] = (Share){to, from, sizes, first, end, 0};
    }
    while (started < count && !pthread_create(&shares[started].thread, NULL, copy_share, &shares[started]))
        started++;
    for (int i = started; i < count; i++) /* no thread to be had */
        copy_share(&shares[i]);
    copy_share(&shares[0]);
    while (--started)
        pthread_join(shares[started].thread, NULL);
}

PyObject *hot_copy_pieces(PyObject *self, PyObject *arguments) {
    PyObject *objects[3];
    long threads;
    Py_buffer views[3];
    Py_ssize_t counts[3];
    if (!PyArg_ParseTuple(arguments, "OOOl", &objects[0], &objects[1], &objects[2], &threads))
        return NULL;
    for (int i = 0; i < 3; i++)
        if (hot_view_u64(objects[i], &views[i], PyBUF_SIMPLE, &counts[i]) < 0) {
            while (i--)
                PyBuffer_Release(&views[i]);
            return NULL;
        }
    int equal = counts[0] == counts[1] && counts[1] == counts[2];
    if (equal) {
        const uint64_t *to = views[0].buf, *from = views[1].buf, *sizes = views[2].buf;
        uint64_t total = 0;
        for (Py_ssize_t i = 0; i < counts[0]; i++)
            total += sizes[i];
        /* Taking the lock again would cost more than a short copy. */
        PyThreadState *thread = total < KEEP_LOCK_BELOW_BYTES ? NULL : PyEval_SaveThread();
        copy_all(to, from, sizes, total, threads < 1 ? 1 : threads);
        if (thread)
            PyEval_RestoreThread(thread);
    } else
        PyErr_SetString(PyExc_ValueError, "columns of different length");
    for (int i = 0; i < 3; i++)
        PyBuffer_Release(&views[i]);
    if (!equal)
        return NULL;
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ slots */

/* schemas/header.py */
typedef struct {
    uint64_t word, keyspace;
    uint16_t rank, hash_bytes;
    uint32_t position;
    uint64_t length, checksum, session;
    char block_hash[32], parent_hash[32];
    uint32_t shard;
    uint16_t key_bytes, flags;
    uint64_t put_id;
} Header;
_Static_assert(sizeof(Header) == 128, "a header has 128 bytes");

#define COMMITTED 2ULL
#define GENERATION_BITS 56
#define SLOT_INDEX_BITS 16

/* What transports/mapped.py says of a segment: addresses in this process, and how its pages are cut. */
typedef struct {
    uint64_t data, headers, page_table, page_bytes, page_count, headers_per_page;
} Layout;

/* Columns of one entry an object, and of one entry a piece of memory; object i has the pieces offsets[i] to
 * offsets[i + 1]. */
enum { LAYOUT, SLOTS, LENGTHS, ADDRESSES, SIZES, OFFSETS, GENERATIONS, HASHES, STARTS, CHECKSUMS, COLUMNS };

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
        int flags = PyBUF_C_CONTIGUOUS | (i == STARTS || i == CHECKSUMS ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[i], &columns->views[i], flags) < 0) {
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
        fit = fit && views[i].len == (i == HASHES ? 32 : 8) * n;
    if (fit) { /* pieces in order, and each object as long as its pieces */
        const int64_t *offsets = views[OFFSETS].buf;
        const uint64_t *lengths = views[LENGTHS].buf, *sizes = views[SIZES].buf;
        fit = offsets[0] == 0 && offsets[n] == pieces;
        for (Py_ssize_t i = 0; fit && i < n; i++) {
            uint64_t length = 0;
            fit = offsets[i] <= offsets[i + 1] && offsets[i + 1] <= pieces;
            for (int64_t piece = offsets[i]; fit && piece < offsets[i + 1]; piece++)
                length += sizes[piece];
            fit = fit && length == lengths[i];
        }
    }
    if (fit)
        return 0;
    release(columns);
    PyErr_SetString(PyExc_ValueError, "columns that don't fit each other");
    return -1;
}

/* Where a slot's bytes begin; 0 where slot and length don't lie inside their page as it is cut now. */
static uint64_t slot_address(const Layout *layout, uint32_t slot, uint64_t length) {
    uint64_t page = slot >> SLOT_INDEX_BITS, index = slot & ((1 << SLOT_INDEX_BITS) - 1);
    if (page >= layout->page_count)
        return 0;
    uint64_t size = ((const volatile uint32_t *)(uintptr_t)layout->page_table)[page];
    if (!size || index >= layout->page_bytes / size || index >= layout->headers_per_page || length > size)
        return 0;
    return layout->data + page * layout->page_bytes + index * size;
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
    PyThreadState *thread = total < KEEP_LOCK_BELOW_BYTES ? NULL : PyEval_SaveThread();
    copy_all(into_slots ? slot_side : piece_side, into_slots ? piece_side : slot_side, bytes, total, threads);
    if (thread)
        PyEval_RestoreThread(thread);
    free(slot_side);
    return 1;
}

PyObject *hot_read_slots(PyObject *self, PyObject *arguments) {
    PyObject *objects[COLUMNS];
    Columns columns;
    unsigned long long keyspace;
    int rank;
    long threads;
    if (!PyArg_ParseTuple(arguments, "(OOOOOOOOOO)Kil", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                          &objects[5], &objects[6], &objects[7], &objects[8], &objects[9], &keyspace, &rank, &threads))
        return NULL;
    if (take(&columns, objects, COLUMNS) < 0)
        return NULL;
    PyObject *right = PyBytes_FromStringAndSize(NULL, columns.objects);
    const Layout *layout = columns.views[LAYOUT].buf;
    const uint32_t *slots = columns.views[SLOTS].buf;
    const uint64_t *lengths = columns.views[LENGTHS].buf, *generations = columns.views[GENERATIONS].buf;
    uint64_t *starts = columns.views[STARTS].buf, *checksums = columns.views[CHECKSUMS].buf;
    for (Py_ssize_t i = 0; i < columns.objects; i++)
        starts[i] = slot_address(layout, slots[i], lengths[i]);
    if (right && copy_slots(&columns, starts, 0, threads)) {
        atomic_thread_fence(memory_order_acquire); /* headers count as of after the copy (I3) */
        char *holds = PyBytes_AsString(right);
        for (Py_ssize_t i = 0; i < columns.objects; i++) {
            uint64_t row = (slots[i] >> SLOT_INDEX_BITS) * layout->headers_per_page + (slots[i] & ((1 << SLOT_INDEX_BITS) - 1));
            const volatile Header *header = (const Header *)(uintptr_t)layout->headers + row;
            holds[i] = starts[i] && header->word == (generations[i] | COMMITTED << GENERATION_BITS) &&
                       header->keyspace == keyspace && header->rank == rank && header->length == lengths[i] &&
                       !memcmp((const char *)header->block_hash, (const char *)columns.views[HASHES].buf + 32 * i, 32);
            checksums[i] = holds[i] ? header->checksum : 0;
        }
    } else {
        Py_XDECREF(right);
        right = PyErr_NoMemory();
    }
    release(&columns);
    return right;
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
        starts[i] = slot_address(columns.views[LAYOUT].buf, slot, ((const uint64_t *)columns.views[LENGTHS].buf)[i]);
        inside = inside && starts[i];
    }
    if (starts)
        done = !inside || copy_slots(&columns, starts, 1, threads);
    free(starts);
    release(&columns);
    return done ? PyBool_FromLong(inside) : PyErr_NoMemory();
}
