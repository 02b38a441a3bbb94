/* Copies of memory, and the slots of a mapped segment: what store_client/transports/shm.py does for each object. */
#include "hot.h"
#include "hot_slots.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define KEEP_LOCK_BELOW_BYTES (128 << 10)
#define THREADS_FROM_BYTES (4 << 20) /* starting a thread takes as long as copying a twentieth of this */
#define STEP_BYTES (512 << 10)
#define STREAM_FROM_BYTES (16 << 10)
#define LINE_BYTES 64
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

static void copy_piece(uint64_t to, uint64_t from, uint64_t bytes, int into_slots) {
#ifdef __SSE2__
    /* Past the caches: a slot's old bytes needn't be read then, which takes two fifths of the time, and nobody reads the new
     * ones at once. */
    if (into_slots && bytes >= STREAM_FROM_BYTES) {
        uint64_t head = -to & (LINE_BYTES - 1);
        memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, head);
        to += head, from += head, bytes -= head;
        for (; bytes >= LINE_BYTES; to += LINE_BYTES, from += LINE_BYTES, bytes -= LINE_BYTES) {
            __m128i *line = (__m128i *)(uintptr_t)to, parts[4];
            for (int i = 0; i < 4; i++)
                parts[i] = _mm_loadu_si128((const __m128i *)(uintptr_t)from + i);
            for (int i = 0; i < 4; i++)
                _mm_stream_si128(line + i, parts[i]);
        }
        _mm_sfence(); /* or the node could hear of these bytes before they are there */
    }
#endif
    if (bytes) /* else they may lie at 0 */
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
}

/* One large copy that several threads take steps of. Whoever called waits until every byte is there, and for no thread
 * that has not begun: on a busy machine one may get its first turn when all is done, and then only leaves. */
typedef struct {
    const uint64_t *to, *from, *sizes; /* not to be read once `next` is at `total`: their owner may be gone */
    uint64_t total;
    int into_slots;
    atomic_ullong next;
    uint64_t done; /* this and `users` under `lock` */
    int users;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} Job;

static void leave(Job *job) {
    pthread_mutex_lock(&job->lock);
    int last = !--job->users;
    pthread_mutex_unlock(&job->lock);
    if (last) {
        pthread_mutex_destroy(&job->lock);
        pthread_cond_destroy(&job->changed);
        free(job);
    }
}

/* Copies steps until there are none left. */
static void copy_steps(Job *job, uint64_t step) {
    uint64_t first, at = 0, copied = 0; /* `at`: bytes of the pieces before piece i */
    size_t i = 0;
    while ((first = atomic_fetch_add(&job->next, step)) < job->total) {
        uint64_t end = first + step < job->total ? first + step : job->total;
        while (first < end) {
            while (at + job->sizes[i] <= first)
                at += job->sizes[i++];
            uint64_t skipped = first - at, bytes = job->sizes[i] - skipped;
            bytes = bytes < end - first ? bytes : end - first;
            copy_piece(job->to[i] + skipped, job->from[i] + skipped, bytes, job->into_slots);
            first += bytes;
            copied += bytes;
        }
    }
    if (copied) {
        pthread_mutex_lock(&job->lock);
        job->done += copied;
        pthread_cond_signal(&job->changed);
        pthread_mutex_unlock(&job->lock);
    }
}

static void *help(void *argument) {
    copy_steps(argument, STEP_BYTES);
    leave(argument);
    return NULL;
}

static void copy_all(const uint64_t *to, const uint64_t *from, const uint64_t *sizes, uint64_t total, int into_slots,
                     long threads) {
    Job *job = total >= THREADS_FROM_BYTES && threads > 1 ? malloc(sizeof *job) : NULL;
    if (job == NULL) {
        for (uint64_t i = 0, at = 0; at < total; at += sizes[i++])
            copy_piece(to[i], from[i], sizes[i], into_slots);
        return;
    }
    *job = (Job){.to = to, .from = from, .sizes = sizes, .total = total, .into_slots = into_slots, .users = 1};
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->changed, NULL);
    for (long i = 1; i < threads && i < THREADS_MAX; i++) {
        pthread_t thread;
        pthread_mutex_lock(&job->lock);
        job->users++;
        pthread_mutex_unlock(&job->lock);
        if (pthread_create(&thread, NULL, help, job)) {
            leave(job); /* no thread to be had */
            break;
        }
        pthread_detach(thread);
    }
    copy_steps(job, STEP_BYTES);
    pthread_mutex_lock(&job->lock);
    while (job->done < total)
        pthread_cond_wait(&job->changed, &job->lock);
    pthread_mutex_unlock(&job->lock);
    leave(job);
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
        copy_all(to, from, sizes, total, 0, threads < 1 ? 1 : threads);
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

int hot_pieces_fit(const int64_t *offsets, const uint64_t *lengths, int64_t objects, const uint64_t *sizes, int64_t pieces) {
    int fit = offsets[0] == 0 && offsets[objects] == pieces;
    for (int64_t i = 0; fit && i < objects; i++) {
        uint64_t length = 0;
        fit = offsets[i] <= offsets[i + 1] && offsets[i + 1] <= pieces;
        for (int64_t piece = offsets[i]; fit && piece < offsets[i + 1]; length += sizes[piece++])
            fit = sizes[piece] <= lengths[i] - length; /* a sum that wraps around could come out right */
        fit = fit && length == lengths[i];
    }
    return fit;
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
    PyThreadState *thread = total < KEEP_LOCK_BELOW_BYTES ? NULL : PyEval_SaveThread();
    copy_all(into_slots ? slot_side : piece_side, into_slots ? piece_side : slot_side, bytes, total, into_slots,
             threads);
    if (thread)
        PyEval_RestoreThread(thread);
    free(slot_side);
    return 1;
}

PyObject *hot_read_slots(PyObject *self, PyObject *arguments) {
    PyObject *objects[COLUMNS];
    Columns columns;
    unsigned long long keyspace;
    int rank, verify, missing;
    long threads;
    if (!PyArg_ParseTuple(arguments, "(OOOOOOOO)Kilii", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                          &objects[5], &objects[6], &objects[7], &keyspace, &rank, &threads, &verify, &missing))
        return NULL;
    if (take(&columns, objects, COLUMNS) < 0)
        return NULL;
    PyObject *statuses = PyByteArray_FromStringAndSize(NULL, columns.objects), *answer = NULL;
    PyObject *starts_bytes = PyBytes_FromStringAndSize(NULL, 8 * columns.objects);
    PyObject *checksums_bytes = PyBytes_FromStringAndSize(NULL, 8 * columns.objects);
    if (statuses == NULL || starts_bytes == NULL || checksums_bytes == NULL)
        goto end;
    const Layout *layout = columns.views[LAYOUT].buf;
    const uint32_t *slots = columns.views[SLOTS].buf;
    const uint64_t *lengths = columns.views[LENGTHS].buf, *generations = columns.views[GENERATIONS].buf;
    uint64_t *starts = (uint64_t *)(void *)PyBytes_AsString(starts_bytes);
    uint64_t *checksums = (uint64_t *)(void *)PyBytes_AsString(checksums_bytes), known = 0;
    size_t hash_bytes = (size_t)columns.views[HASHES].itemsize;
    for (Py_ssize_t i = 0; i < columns.objects; i++)
        starts[i] = hot_slot_address(layout, slots[i], lengths[i]);
    if (!copy_slots(&columns, starts, 0, threads)) {
        PyErr_NoMemory();
        goto end;
    }
    atomic_thread_fence(memory_order_acquire); /* headers count as of after the copy (I3) */
    char *status = PyByteArray_AsString(statuses);
    for (Py_ssize_t i = 0; i < columns.objects; i++) {
        const volatile Header *header = hot_header(layout, slots[i]);
        const char *hash = (const char *)columns.views[HASHES].buf + hash_bytes * (size_t)i;
        int holds = starts[i] && hot_holds(header, (Asked){generations[i], keyspace, lengths[i], rank, hash, hash_bytes});
        status[i] = holds ? 0 : (char)missing;
        known |= checksums[i] = holds ? header->checksum : 0;
    }
    if (verify && known)
        answer = Py_BuildValue("OOO", statuses, starts_bytes, checksums_bytes);
    else
        answer = Py_BuildValue("OOO", statuses, Py_None, Py_None);
end:
    Py_XDECREF(statuses);
    Py_XDECREF(starts_bytes);
    Py_XDECREF(checksums_bytes);
    release(&columns);
    return answer;
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
