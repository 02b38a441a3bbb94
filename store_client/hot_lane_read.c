/* A read by one exchange on one lane, from its request to what the headers say of it: what transports/lane_reads.py does
 * with LaneReads of one share.
 */
#include "hot_copies.h"
#include "hot_frames.h"
#include "hot_lanes.h"
#include "hot_slots.h"
#include <stdlib.h>
#include <string.h>

/* One entry an object (offsets: one more), or one a piece. */
enum { SLOTS, GENERATIONS, LENGTHS, HASHES, OFFSETS, ADDRESSES, SIZES, COLUMNS };

typedef struct {
    Py_buffer views[COLUMNS], frame;
    int viewed;
    Py_ssize_t count;
    LaneGroup *group;
    char *room; /* headers, request, head of the answer */
} Read;

/* -1 and an exception where the columns don't fit each other. */
static int take_columns(Read *read, PyObject *const *objects) {
    for (; read->viewed < COLUMNS; read->viewed++)
        if (PyObject_GetBuffer(objects[read->viewed], &read->views[read->viewed], PyBUF_C_CONTIGUOUS) < 0)
            return -1;
    const Py_buffer *views = read->views;
    Py_ssize_t n = read->count = views[SLOTS].len / 4, pieces = views[SIZES].len / 8;
    if (n <= INT32_MAX / HEADER_BYTES && views[GENERATIONS].len == 8 * n && views[LENGTHS].len == 8 * n &&
        views[HASHES].itemsize <= 32 && views[HASHES].len == views[HASHES].itemsize * n && views[OFFSETS].len == 8 * (n + 1) &&
        views[ADDRESSES].len == 8 * pieces && hot_pieces_fit(views[OFFSETS].buf, views[LENGTHS].buf, n, views[SIZES].buf, pieces))
        return 0;
    PyErr_SetString(PyExc_ValueError, "columns that don't fit each other");
    return -1;
}

/* The request as Python would send it, and as much of the answer's frame as is the same for all answers. */
static void write_frames(Read *read, Lane *lane) {
    size_t n = (size_t)read->count;
    char *head = read->room + HEADER_BYTES * n, *frame = head + FRAME_PREFIX_BYTES + LANE_TAG_BYTES + BIN_HEAD_BYTES_MAX;
    memcpy(head + FRAME_PREFIX_BYTES, LANE_DATA, LANE_TAG_BYTES);
    char *end = hot_bin_head(head + FRAME_PREFIX_BYTES + LANE_TAG_BYTES, (uint32_t)n);
    lane->head = head, lane->head_bytes = (size_t)(end - head);
    hot_frame_prefix(head, lane->head_bytes + n, 1);
    lane->frame = read->frame.buf, lane->frame_bytes = (size_t)read->frame.len;
    if (lane->frame_bytes)
        return;
    memcpy(frame + FRAME_PREFIX_BYTES, LANE_READ, LANE_TAG_BYTES);
    end = frame + FRAME_PREFIX_BYTES + LANE_TAG_BYTES;
    for (int i = SLOTS; i <= LENGTHS; i++)
        end = hot_bin(end, read->views[i].buf, (uint32_t)read->views[i].len);
    lane->frame = frame, lane->frame_bytes = (size_t)(end - frame);
    hot_frame_prefix(frame, lane->frame_bytes, 1);
}

/* Takes OK from those whose header names anything else than was asked for. Whether any of the others has a checksum; those
 * of all are in `checksums`, 0 where none is known. */
static int judge(const Read *read, uint64_t keyspace, int rank, int missing, PyObject *checksums) {
    const Py_buffer *views = read->views;
    const uint64_t *generations = views[GENERATIONS].buf, *lengths = views[LENGTHS].buf;
    uint64_t *told = (uint64_t *)(void *)PyBytes_AsString(checksums), known = 0;
    size_t hash_bytes = (size_t)views[HASHES].itemsize;
    const Header *header = (const Header *)(const void *)read->group->headers;
    char *statuses = read->group->statuses;
    for (Py_ssize_t i = 0; i < read->count; i++) {
        told[i] = 0;
        if (statuses[i])
            continue;
        const char *hash = (const char *)views[HASHES].buf + hash_bytes * (size_t)i;
        if (hot_holds(header, (Asked){generations[i], keyspace, lengths[i], rank, hash, hash_bytes}))
            known |= told[i] = header->checksum;
        else
            statuses[i] = (char)missing;
        header++;
    }
    return known != 0;
}

/* The exchange, once all columns are there. NULL and an exception after a signal, or where there is no memory. */
static PyObject *exchange(Read *read, int fd, int idle, uint64_t keyspace, int rank, int missing, double deadline_s) {
    size_t n = (size_t)read->count;
    read->room = malloc(HEADER_BYTES * n + 2 * (FRAME_PREFIX_BYTES + LANE_TAG_BYTES) + 4 * BIN_HEAD_BYTES_MAX + 20 * n);
    PyObject *statuses = PyByteArray_FromStringAndSize(NULL, read->count);
    PyObject *checksums = PyBytes_FromStringAndSize(NULL, 8 * read->count), *answer = NULL;
    LaneGroup *group = read->group = hot_new_lanes(1);
    if (read->room == NULL)
        PyErr_NoMemory();
    if (read->room == NULL || statuses == NULL || checksums == NULL || group == NULL)
        goto end;
    group->offsets = read->views[OFFSETS].buf;
    group->addresses = read->views[ADDRESSES].buf, group->sizes = read->views[SIZES].buf;
    group->statuses = PyByteArray_AsString(statuses), group->headers = read->room;
    Lane *lane = group->lanes;
    lane->fd = fd, lane->idle = idle, lane->count = read->count;
    write_frames(read, lane);
    if (hot_ready_lane(group) == 0 && hot_run_lanes(group, deadline_s) == 0) {
        int known = !lane->outcome && judge(read, keyspace, rank, missing, checksums);
        answer = Py_BuildValue("iNNOO", lane->outcome, PyBool_FromLong(lane->started), hot_lane_taken(lane), statuses,
                               known ? checksums : Py_None);
    }
end:
    Py_XDECREF(statuses);
    Py_XDECREF(checksums);
    if (group)
        hot_free_lanes(group);
    free(read->room);
    return answer;
}

PyObject *hot_read_lane(PyObject *self, PyObject *arguments) {
    PyObject *objects[COLUMNS], *answer = NULL;
    const char *digest;
    Py_ssize_t digest_bytes;
    uint64_t keyspace = 0;
    int fd, idle, rank, missing;
    double deadline_s;
    Read read = {0};
    if (!PyArg_ParseTuple(arguments, "ipy*(OOOOOOO)y#iid", &fd, &idle, &read.frame, &objects[0], &objects[1], &objects[2],
                          &objects[3], &objects[4], &objects[5], &objects[6], &digest, &digest_bytes, &rank, &missing, &deadline_s))
        return NULL;
    memcpy(&keyspace, digest, digest_bytes < 8 ? (size_t)digest_bytes : 8); /* schemas/header.py: keyspace_word */
    if (take_columns(&read, objects) == 0)
        answer = exchange(&read, fd, idle, keyspace, rank, missing, deadline_s);
    while (read.viewed)
        PyBuffer_Release(&read.views[--read.viewed]);
    PyBuffer_Release(&read.frame);
    return answer;
}
