/* Reads on one data lane of a node, served without the interpreter's lock: what node/lane.py does with a LaneRead. All
 * that isn't a whole LaneRead of the plain kind stays in the socket, and is Python's.
 */
#define _GNU_SOURCE
#include "hot.h"
#include "hot_frames.h"
#include "hot_slots.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#define PIECES_PER_CALL 1024 /* the kernel's IOV_MAX */
#define OBJECTS_MAX 1024 /* of one request; the few larger ones are Python's */
#define FRAME_BYTES_MAX (64 + 20 * OBJECTS_MAX)
#define PEEK_BYTES 1024 /* at first: more would be payload that a write brings along */
#define COPIED_BYTES (64 << 10) /* up to here a second copy costs less than a second call to the kernel */
#define STATUS_OK 0
#define STATUS_MISSING 1

/* What node/lane_turn.py keeps of a lane, one u64 each. */
enum { TURN, BYTES_READ, CELLS };
#define BUSY 0

/* Outcomes beside errno: what native_lanes.py calls LANE_PYTHONS, LANE_IDLE and LANE_RETIRED. */
#define PYTHONS (-1)
#define IDLE (-2)
#define RETIRED (-3)

typedef struct {
    const Layout *layout;
    _Atomic uint64_t *cells;
    int fd;
    uint64_t bytes_max; /* of the payload of one exchange */
    double idle_s, stall_s, bytes_a_second, until_s;
    /* The request under way. */
    uint32_t id, count, sent;
    size_t frame_bytes, piece_count;
    uint64_t total;
    const char *slots, *generations, *lengths; /* in `frame`, unaligned */
    char frame[FRAME_BYTES_MAX], reply[64 + OBJECTS_MAX], *statuses;
    struct iovec pieces[OBJECTS_MAX + 2];
    Header headers[OBJECTS_MAX];
    char copied[COPIED_BYTES];
} Lane;

static uint64_t load_u64(const char *column, uint32_t i) {
    uint64_t value;
    memcpy(&value, column + 8 * (size_t)i, sizeof value);
    return value;
}

static uint32_t load_u32(const char *column, uint32_t i) {
    uint32_t value;
    memcpy(&value, column + 4 * (size_t)i, sizeof value);
    return value;
}

/* A MessagePack byte string at `*at`, and how long it is. NULL where there is none that ends by `end`. */
static const char *byte_string(const char **at, const char *end, uint64_t *bytes) {
    const unsigned char *from = (const unsigned char *)*at;
    size_t left = (size_t)(end - *at);
    size_t width = left && from[0] >= 0xc4 && from[0] <= 0xc6 ? (size_t)1 << (from[0] - 0xc4) : 0;
    if (!width || left < 1 + width)
        return NULL;
    *bytes = 0;
    for (size_t i = 1; i <= width; i++)
        *bytes = *bytes << 8 | from[i];
    if (*bytes > left - 1 - width)
        return NULL;
    *at += 1 + width + *bytes;
    return *at - *bytes;
}

/* Whether `frame` holds a LaneRead and nothing else. */
static int parse(Lane *lane) {
    const char *at = lane->frame + FRAME_PREFIX_BYTES + LANE_TAG_BYTES, *end = lane->frame + lane->frame_bytes;
    uint64_t slots, generations, lengths;
    lane->slots = byte_string(&at, end, &slots);
    lane->generations = lane->slots ? byte_string(&at, end, &generations) : NULL;
    lane->lengths = lane->generations ? byte_string(&at, end, &lengths) : NULL;
    if (!lane->lengths || at != end || slots % 4 || slots > 4 * OBJECTS_MAX || generations != 2 * slots || lengths != 2 * slots)
        return 0;
    lane->count = (uint32_t)(slots / 4);
    lane->id = load_u32(lane->frame, 1);
    return 1;
}

/* Looks at the next request where it lies, in the socket, which had so many bytes of it. Whether it is one that can be answered
 * here. */
static int look(Lane *lane, ssize_t there) {
    if (there < (ssize_t)(FRAME_PREFIX_BYTES + LANE_TAG_BYTES) || memcmp(lane->frame + FRAME_PREFIX_BYTES, LANE_READ, LANE_TAG_BYTES))
        return 0;
    lane->frame_bytes = 4 + (size_t)load_u32(lane->frame, 0);
    if (lane->frame_bytes < FRAME_PREFIX_BYTES + LANE_TAG_BYTES || lane->frame_bytes > FRAME_BYTES_MAX)
        return 0;
    if ((size_t)there < lane->frame_bytes) /* the rest is on its way, or else the socket's pause ends this */
        there = recv(lane->fd, lane->frame, lane->frame_bytes, MSG_PEEK | MSG_WAITALL);
    return there >= (ssize_t)lane->frame_bytes && parse(lane);
}

/* Writes the frame of the answer but for its statuses. */
static void begin_reply(Lane *lane) {
    memcpy(lane->reply + FRAME_PREFIX_BYTES, LANE_DATA, LANE_TAG_BYTES);
    lane->statuses = hot_bin_head(lane->reply + FRAME_PREFIX_BYTES + LANE_TAG_BYTES, lane->count);
    hot_frame_prefix(lane->reply, (size_t)(lane->statuses + lane->count - lane->reply), lane->id);
}

/* Finds what is there, as node/lane.py does. No lock: headers are looked at again, and by the reader, behind the payload. */
static void find(Lane *lane) {
    lane->piece_count = 1;
    lane->total = lane->sent = 0;
    for (uint32_t i = 0; i < lane->count; i++) {
        uint32_t slot = load_u32(lane->slots, i);
        uint64_t length = load_u64(lane->lengths, i), at = hot_slot_address(lane->layout, slot, length);
        const volatile Header *header = at ? hot_header(lane->layout, slot) : NULL;
        uint64_t word = load_u64(lane->generations, i) | COMMITTED << GENERATION_BITS;
        int there = header && header->word == word && header->length == length;
        lane->statuses[i] = there ? STATUS_OK : STATUS_MISSING;
        if (!there)
            continue;
        struct iovec *last = &lane->pieces[lane->piece_count - 1];
        if (lane->piece_count > 1 && (uint64_t)(uintptr_t)last->iov_base + last->iov_len == at)
            last->iov_len += length;
        else if (length)
            lane->pieces[lane->piece_count++] = (struct iovec){(void *)(uintptr_t)at, length};
        lane->total += length;
        lane->sent++;
    }
    lane->pieces[0] = (struct iovec){lane->reply, (size_t)(lane->statuses + lane->count - lane->reply)};
}

/* 0, or errno: EAGAIN where the peer took nothing for the socket's pause. */
static int send_all(const Lane *lane, struct iovec *pieces, size_t count, int flags, double deadline_s) {
    while (count) {
        if (hot_now_s() > deadline_s)
            return ETIMEDOUT;
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count < PIECES_PER_CALL ? count : PIECES_PER_CALL};
        ssize_t sent = sendmsg(lane->fd, &message, flags | MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return errno;
        size_t moved = sent < 0 ? 0 : (size_t)sent;
        for (; count && moved >= pieces->iov_len; count--)
            moved -= pieces++->iov_len;
        if (count)
            *pieces = (struct iovec){(char *)pieces->iov_base + moved, pieces->iov_len - moved};
    }
    return 0;
}

/* Of those objects that are sent, as they are now. */
static struct iovec take_headers(Lane *lane) {
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t i = 0, at = 0; i < lane->count; i++)
        if (lane->statuses[i] == STATUS_OK)
            hot_copy_header(&lane->headers[at++], hot_header(lane->layout, load_u32(lane->slots, i)));
    return (struct iovec){lane->headers, sizeof(Header) * lane->sent};
}

/* Puts all payload into one piece, which the headers follow, so that one call sends everything. */
static void copy_payload(Lane *lane) {
    char *at = lane->copied;
    for (size_t i = 1; i < lane->piece_count; i++) {
        memcpy(at, lane->pieces[i].iov_base, lane->pieces[i].iov_len);
        at += lane->pieces[i].iov_len;
    }
    lane->pieces[1] = (struct iovec){lane->copied, (size_t)lane->total};
    lane->pieces[2] = take_headers(lane);
    lane->piece_count = 3;
}

/* Statuses, payloads, then the headers as they are once the last payload byte was copied out (I3). 0, or errno. */
static int answer(Lane *lane) {
    int copies = lane->sent && lane->total <= COPIED_BYTES;
    if (copies)
        copy_payload(lane);
    double deadline_s = hot_now_s() + lane->stall_s + (double)lane->total / lane->bytes_a_second;
    /* A header always follows a payload: until then the last segment isn't sent, and nobody woken for it alone. */
    int trails = lane->sent && !copies;
    int failure = send_all(lane, lane->pieces, lane->piece_count, trails ? MSG_MORE : 0, deadline_s);
    if (!failure && trails) {
        struct iovec trailer = take_headers(lane);
        failure = send_all(lane, &trailer, 1, 0, deadline_s);
    }
    if (!failure)
        atomic_fetch_add(&lane->cells[BYTES_READ], lane->total);
    return failure;
}

/* Sleeps until something has come, as often as the socket's pause asks for. How many bytes there are; -1 where none came. */
static ssize_t wait_for_request(Lane *lane) {
    double until_s = hot_now_s() + lane->idle_s;
    for (;;) {
        ssize_t there = recv(lane->fd, lane->frame, PEEK_BYTES, MSG_PEEK);
        if (there >= 0 || (errno != EAGAIN && errno != EINTR))
            return there < 0 ? 0 : there; /* Python hears what is wrong with it */
        if (hot_now_s() > until_s)
            return -1;
    }
}

/* Until something else than a read is to be done: its outcome. */
static int serve(Lane *lane) {
    for (;;) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t since = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
        atomic_store(&lane->cells[TURN], since);
        ssize_t there = wait_for_request(lane);
        if (!atomic_compare_exchange_strong(&lane->cells[TURN], &since, BUSY))
            return RETIRED;
        if (there < 0)
            return IDLE;
        if (hot_now_s() > lane->until_s || !look(lane, there))
            return PYTHONS;
        begin_reply(lane);
        find(lane);
        if (lane->total > lane->bytes_max)
            return PYTHONS; /* which says so */
        int failure = answer(lane);
        if (failure)
            return failure;
        /* Only now, as nobody waits for it. */
        if (recv(lane->fd, NULL, lane->frame_bytes, MSG_TRUNC) != (ssize_t)lane->frame_bytes)
            return EPIPE;
    }
}

PyObject *hot_serve_reads(PyObject *self, PyObject *arguments) {
    int fd;
    Py_buffer layout, cells;
    unsigned long long bytes_max;
    double idle_s, stall_s, bytes_a_second, until_s;
    if (!PyArg_ParseTuple(arguments, "iy*w*Kdddd", &fd, &layout, &cells, &bytes_max, &idle_s, &stall_s, &bytes_a_second, &until_s))
        return NULL;
    int fit = layout.len == sizeof(Layout) && cells.len == 8 * CELLS, outcome = PYTHONS;
    Lane *lane = fit ? malloc(sizeof *lane) : NULL;
    if (lane) {
        lane->layout = layout.buf, lane->cells = cells.buf, lane->fd = fd, lane->bytes_max = bytes_max;
        lane->idle_s = idle_s, lane->stall_s = stall_s, lane->bytes_a_second = bytes_a_second, lane->until_s = until_s;
        PyThreadState *thread = PyEval_SaveThread();
        outcome = serve(lane);
        PyEval_RestoreThread(thread);
        free(lane);
    } else
        PyErr_SetString(fit ? PyExc_MemoryError : PyExc_ValueError, "no layout, no cells of a lane, or no memory");
    PyBuffer_Release(&layout);
    PyBuffer_Release(&cells);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(outcome);
}

/* Sets the first of some cells to a new value where it still has the one that is expected. Whether it did. */
PyObject *hot_swap(PyObject *self, PyObject *arguments) {
    Py_buffer cells;
    unsigned long long expected, next;
    if (!PyArg_ParseTuple(arguments, "w*KK", &cells, &expected, &next))
        return NULL;
    uint64_t old = expected;
    int done = cells.len >= 8 && atomic_compare_exchange_strong((_Atomic uint64_t *)cells.buf, &old, next);
    PyBuffer_Release(&cells);
    return PyBool_FromLong(done);
}
