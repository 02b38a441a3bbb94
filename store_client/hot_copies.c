/* Copies of memory, and checksums of what was copied. */
#include "hot_copies.h"
#include "hot.h"
#include "hot_sum.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define KEEP_LOCK_BELOW_BYTES (128 << 10) /* taking the interpreter's lock again would cost more */
#define THREADS_FROM_BYTES (4 << 20) /* starting a thread takes as long as copying a twentieth of this */
#define STEP_BYTES (512 << 10)
#define STREAM_FROM_BYTES (16 << 10)
#define PAST_CACHES_FROM_BYTES (8 << 20)
#define LINE_BYTES 64
#define THREADS_MAX 4

/* Past the caches: what lay there before needn't be read then, which takes two fifths of the time. That pays for copies that
 * nobody reads at once, and for so much that the caches would not hold it until then. */
static void copy_piece(uint64_t to, uint64_t from, uint64_t bytes, int past_caches) {
#ifdef __SSE2__
    if (past_caches && bytes >= STREAM_FROM_BYTES) {
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
    }
#endif
    if (bytes) /* else they may lie at 0 */
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
}

/* Or others could hear of bytes that went past the caches before they are there. */
static void fence(void) {
#ifdef __SSE2__
    _mm_sfence();
#endif
}

/* ------------------------------------------------------------------ in several threads */

/* Work that several threads take steps of. Whoever called waits until all is done, and for no thread that has not begun: on
 * a busy machine one may get its first turn when all is done, and then only leaves. */
typedef struct Job {
    uint64_t (*work)(struct Job *job); /* takes steps until there are none left; how much it did */
    Pieces pieces;                     /* these are not to be read once `next` is at `total`: their owner may be gone */
    Objects objects;
    uint64_t total; /* bytes, or objects */
    int past_caches;
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

static void take_part(Job *job) {
    uint64_t done = job->work(job);
    if (done) {
        pthread_mutex_lock(&job->lock);
        job->done += done;
        pthread_cond_signal(&job->changed);
        pthread_mutex_unlock(&job->lock);
    }
}

static void *help(void *argument) {
    take_part(argument);
    leave(argument);
    return NULL;
}

/* Does what `like` says: in several threads where it is about `bytes` enough, else in this one. */
static void do_unlocked(Job *like, uint64_t bytes, long threads) {
    Job *job = bytes >= THREADS_FROM_BYTES && threads > 1 ? malloc(sizeof *job) : NULL;
    if (job == NULL) {
        like->work(like);
        return;
    }
    *job = *like;
    job->users = 1;
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
    take_part(job);
    pthread_mutex_lock(&job->lock);
    while (job->done < job->total)
        pthread_cond_wait(&job->changed, &job->lock);
    pthread_mutex_unlock(&job->lock);
    leave(job);
}

static void do_all(Job *like, uint64_t bytes, long threads) {
    PyThreadState *thread = bytes < KEEP_LOCK_BELOW_BYTES ? NULL : PyEval_SaveThread();
    do_unlocked(like, bytes, threads);
    if (thread)
        PyEval_RestoreThread(thread);
}

/* ------------------------------------------------------------------ pieces */

static uint64_t copy_steps(Job *job) {
    uint64_t first, at = 0, copied = 0; /* `at`: bytes of the pieces before piece i */
    size_t i = 0;
    while ((first = atomic_fetch_add(&job->next, STEP_BYTES)) < job->total) {
        const Pieces *pieces = &job->pieces;
        uint64_t end = first + STEP_BYTES < job->total ? first + STEP_BYTES : job->total;
        while (first < end) {
            while (at + pieces->sizes[i] <= first)
                at += pieces->sizes[i++];
            uint64_t skipped = first - at, bytes = pieces->sizes[i] - skipped;
            bytes = bytes < end - first ? bytes : end - first;
            copy_piece(pieces->to[i] + skipped, pieces->from[i] + skipped, bytes, job->past_caches);
            first += bytes;
            copied += bytes;
        }
    }
    fence();
    return copied;
}

void hot_copy_all(Pieces pieces, uint64_t total, int into_slots, long threads) {
    Job job = {.work = copy_steps, .pieces = pieces, .total = total};
    job.past_caches = into_slots || total >= PAST_CACHES_FROM_BYTES;
    do_all(&job, total, threads);
}

/* ------------------------------------------------------------------ objects */

static void sum_object(const Objects *objects, uint64_t object, int past_caches) {
    uint64_t from = objects->starts ? objects->starts[object] : 0, wanted = objects->sums[object];
    if (objects->starts ? !from : !wanted)
        return;
    Sum sum;
    hot_sum_begin(&sum, objects->lengths[object]);
    for (int64_t i = objects->offsets[object]; i < objects->offsets[object + 1]; from += objects->sizes[i++]) {
        uint64_t address = objects->addresses[i], size = objects->sizes[i];
        void *there = (void *)(uintptr_t)address;
        if (!wanted)
            copy_piece(address, from, size, past_caches);
        else if (objects->starts)
            hot_sum_add(&sum, there, (const void *)(uintptr_t)from, size, past_caches ? COPY_PAST_CACHES : COPY);
        else
            hot_sum_add(&sum, NULL, there, size, NO_COPY);
    }
    if (wanted)
        objects->sums[object] = hot_sum_end(&sum);
}

static uint64_t sum_steps(Job *job) {
    uint64_t object, done = 0;
    for (; (object = atomic_fetch_add(&job->next, 1)) < job->total; done++)
        sum_object(&job->objects, object, job->past_caches);
    fence();
    return done;
}

void hot_sum_objects(Objects objects, uint64_t count, uint64_t bytes, long threads) {
    Job job = {.work = sum_steps, .objects = objects, .total = count, .past_caches = bytes >= PAST_CACHES_FROM_BYTES};
    do_all(&job, bytes, threads);
}

/* ------------------------------------------------------------------ what Python calls */

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

/* -1 and an exception where one is none; nothing is to be released then. */
static int view_all(PyObject *const *objects, Py_buffer *views, Py_ssize_t *counts, int columns) {
    for (int i = 0; i < columns; i++)
        if (hot_view_u64(objects[i], &views[i], PyBUF_SIMPLE, &counts[i]) < 0) {
            while (i--)
                PyBuffer_Release(&views[i]);
            return -1;
        }
    return 0;
}

PyObject *hot_copy_pieces(PyObject *self, PyObject *arguments) {
    PyObject *objects[3];
    long threads;
    Py_buffer views[3];
    Py_ssize_t counts[3];
    if (!PyArg_ParseTuple(arguments, "OOOl", &objects[0], &objects[1], &objects[2], &threads) ||
        view_all(objects, views, counts, 3) < 0)
        return NULL;
    int equal = counts[0] == counts[1] && counts[1] == counts[2];
    if (equal) {
        const Pieces pieces = {views[0].buf, views[1].buf, views[2].buf};
        uint64_t total = 0;
        for (Py_ssize_t i = 0; i < counts[0]; i++)
            total += pieces.sizes[i];
        hot_copy_all(pieces, total, 0, threads);
    } else
        PyErr_SetString(PyExc_ValueError, "columns of different length");
    for (int i = 0; i < 3; i++)
        PyBuffer_Release(&views[i]);
    if (!equal)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *hot_sums(PyObject *self, PyObject *arguments) {
    enum { ADDRESSES, SIZES, OFFSETS, LENGTHS, WANTED, COLUMNS };
    PyObject *columns[COLUMNS], *sums = NULL;
    long threads;
    Py_buffer views[COLUMNS];
    Py_ssize_t counts[COLUMNS];
    if (!PyArg_ParseTuple(arguments, "(OOOOO)l", &columns[0], &columns[1], &columns[2], &columns[3], &columns[4], &threads) ||
        view_all(columns, views, counts, COLUMNS) < 0)
        return NULL;
    Py_ssize_t count = counts[LENGTHS];
    Objects objects = {views[OFFSETS].buf, views[ADDRESSES].buf, views[SIZES].buf, views[LENGTHS].buf, NULL, NULL};
    if (counts[WANTED] == count && counts[OFFSETS] == count + 1 && counts[ADDRESSES] == counts[SIZES] &&
        hot_pieces_fit(objects.offsets, objects.lengths, count, objects.sizes, counts[SIZES]))
        sums = PyBytes_FromStringAndSize(views[WANTED].buf, views[WANTED].len);
    else
        PyErr_SetString(PyExc_ValueError, "columns that don't fit each other");
    if (sums) {
        objects.sums = (uint64_t *)(void *)PyBytes_AsString(sums);
        uint64_t bytes = 0;
        for (Py_ssize_t i = 0; i < count; i++)
            bytes += objects.sums[i] ? objects.lengths[i] : 0;
        hot_sum_objects(objects, (uint64_t)count, bytes, threads);
    }
    for (int i = 0; i < COLUMNS; i++)
        PyBuffer_Release(&views[i]);
    return sums;
}
