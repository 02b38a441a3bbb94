/* Exchanges on several data lanes of a node at once, by one thread and without the interpreter's lock: what
 * transports/lane.py does on one. Bytes from the wire go into the pieces, and nowhere else.
 */
#define _GNU_SOURCE
#include "hot.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define LANES_MAX 64
#define PLACES_PER_CALL 1024 /* the kernel's IOV_MAX */
#define REPLY_BYTES 4096     /* of a reply that is Python's to read; more may follow */
#define PREFIX_BYTES 8
#define HEADER_BYTES 128

/* Of all lanes: one entry an object (offsets: one more), one a piece. Headers of a lane's objects that came lie one
 * after the other from its first object's on. */
enum { OFFSETS, ADDRESSES, SIZES, STATUSES, HEADERS, COLUMNS };
enum { SENDING, REPLYING, FILLING, OVER };

/* Outcomes beside errno: what native.py calls LANE_OTHER and LANE_STALE. */
#define OTHER (-1)
#define STALE (-2)

typedef struct {
    int fd, idle, state, outcome, started;
    Py_buffer frame, head; /* the request; what comes before the statuses of its answer, empty for a put */
    Py_ssize_t first, count;
    struct iovec *places; /* what is sent, then what is filled */
    size_t place, place_count;
    char *reply;
    size_t reply_bytes, taken;
} Lane;

typedef struct {
    Py_buffer views[COLUMNS];
    int viewed, count;
    Lane lanes[LANES_MAX];
} Group;

static void release(Group *group) {
    while (group->viewed)
        PyBuffer_Release(&group->views[--group->viewed]);
    while (group->count) {
        Lane *lane = &group->lanes[--group->count];
        PyBuffer_Release(&lane->frame);
        PyBuffer_Release(&lane->head);
        free(lane->places);
        free(lane->reply);
    }
    free(group);
}

/* -1 and an exception where the columns don't fit each other. */
static int take_columns(Group *group, PyObject *const *objects) {
    for (int i = 0; i < COLUMNS; i++, group->viewed++) {
        int flags = PyBUF_C_CONTIGUOUS | (i >= STATUSES ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[i], &group->views[i], flags) < 0)
            return -1;
    }
    Py_buffer *views = group->views;
    Py_ssize_t count = views[OFFSETS].len / 8 - 1, pieces = views[SIZES].len / 8;
    const int64_t *offsets = views[OFFSETS].buf;
    int fit = count >= 0 && views[ADDRESSES].len == views[SIZES].len && views[STATUSES].len == count &&
              views[HEADERS].len == HEADER_BYTES * count && offsets[0] == 0 && offsets[count] == pieces;
    for (Py_ssize_t i = 0; fit && i < count; i++)
        fit = offsets[i] <= offsets[i + 1] && offsets[i + 1] <= pieces;
    if (!fit)
        PyErr_SetString(PyExc_ValueError, "columns that don't fit each other");
    return fit ? 0 : -1;
}

static void add_place(Lane *lane, uint64_t address, uint64_t size) {
    struct iovec *last = lane->place_count ? &lane->places[lane->place_count - 1] : NULL;
    if (last && (uint64_t)(uintptr_t)last->iov_base + last->iov_len == address)
        last->iov_len += size;
    else if (size)
        lane->places[lane->place_count++] = (struct iovec){(void *)(uintptr_t)address, size};
}

static void add_object(const Group *group, Lane *lane, Py_ssize_t object) {
    const int64_t *offsets = group->views[OFFSETS].buf;
    const uint64_t *addresses = group->views[ADDRESSES].buf, *sizes = group->views[SIZES].buf;
    for (int64_t i = offsets[object]; i < offsets[object + 1]; i++)
        add_place(lane, addresses[i], sizes[i]);
}

/* One lane's tuple; -1 and an exception where it is none. */
static int take_lane(Group *group, PyObject *arguments) {
    Lane *lane = &group->lanes[group->count];
    *lane = (Lane){.state = SENDING};
    if (!PyArg_ParseTuple(arguments, "ipy*y*nn", &lane->fd, &lane->idle, &lane->frame, &lane->head, &lane->first, &lane->count))
        return -1;
    group->count++;
    Py_ssize_t objects = group->views[STATUSES].len;
    if (lane->first < 0 || lane->count < 0 || lane->first > objects - lane->count ||
        (lane->head.len && lane->head.len < PREFIX_BYTES)) {
        PyErr_SetString(PyExc_ValueError, "a lane whose objects don't lie in the columns");
        return -1;
    }
    const int64_t *offsets = group->views[OFFSETS].buf;
    int64_t pieces = offsets[lane->first + lane->count] - offsets[lane->first];
    lane->reply_bytes = lane->head.len ? (size_t)(lane->head.len + lane->count) : REPLY_BYTES;
    lane->places = malloc(sizeof *lane->places * (size_t)(pieces + 2));
    lane->reply = malloc(lane->reply_bytes);
    if (lane->places == NULL || lane->reply == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    add_place(lane, (uint64_t)(uintptr_t)lane->frame.buf, (uint64_t)lane->frame.len);
    for (Py_ssize_t i = 0; !lane->head.len && i < lane->count; i++)
        add_object(group, lane, lane->first + i);
    return 0;
}

static void end(Lane *lane, int outcome) {
    lane->state = OVER;
    lane->outcome = outcome;
}

/* All statuses are there: from now on payloads of those objects that are OK come, then their headers. */
static void begin_filling(const Group *group, Lane *lane) {
    const char *statuses = lane->reply + lane->head.len;
    uint64_t sent = 0;
    lane->place = lane->place_count = 0;
    for (Py_ssize_t i = 0; i < lane->count; i++)
        if (!statuses[i]) {
            add_object(group, lane, lane->first + i);
            sent++;
        }
    uint64_t headers = (uint64_t)(uintptr_t)group->views[HEADERS].buf + HEADER_BYTES * (uint64_t)lane->first;
    add_place(lane, headers, HEADER_BYTES * sent);
    lane->state = FILLING;
}

/* Looks at what has come of the reply. Whatever isn't the answer that was hoped for is left to Python. */
static void look_at_reply(const Group *group, Lane *lane) {
    const char *head = lane->head.buf;
    size_t known = (size_t)lane->head.len;
    int other = !known || (lane->taken >= 4 && memcmp(lane->reply, head, 4));
    if (!other && lane->taken < lane->reply_bytes)
        return;
    if (other || memcmp(lane->reply + PREFIX_BYTES, head + PREFIX_BYTES, known - PREFIX_BYTES))
        end(lane, OTHER);
    else
        begin_filling(group, lane);
}

/* `moved` bytes of the places are done. */
static void go_on(const Group *group, Lane *lane, size_t moved) {
    while (lane->place < lane->place_count && moved >= lane->places[lane->place].iov_len)
        moved -= lane->places[lane->place++].iov_len;
    if (lane->place < lane->place_count) {
        struct iovec *rest = &lane->places[lane->place];
        *rest = (struct iovec){(char *)rest->iov_base + moved, rest->iov_len - moved};
    } else if (lane->state == SENDING)
        lane->state = REPLYING;
    else {
        memcpy((char *)group->views[STATUSES].buf + lane->first, lane->reply + lane->head.len, (size_t)lane->count);
        end(lane, 0);
    }
}

/* One call to the kernel. 0 where it would have to wait. */
static int step(const Group *group, Lane *lane) {
    struct msghdr message = {.msg_iov = lane->places + lane->place, .msg_iovlen = lane->place_count - lane->place};
    if (message.msg_iovlen > PLACES_PER_CALL)
        message.msg_iovlen = PLACES_PER_CALL;
    ssize_t moved;
    if (lane->state == SENDING)
        moved = sendmsg(lane->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    else if (lane->state == REPLYING)
        moved = recv(lane->fd, lane->reply + lane->taken, lane->reply_bytes - lane->taken, MSG_DONTWAIT);
    else
        moved = message.msg_iovlen ? recvmsg(lane->fd, &message, MSG_DONTWAIT) : 1;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return errno == EINTR;
    if (moved <= 0) {
        end(lane, moved < 0 ? errno : ECONNRESET);
        return 1;
    }
    lane->started |= lane->state != SENDING;
    if (lane->state == REPLYING) {
        lane->taken += (size_t)moved;
        look_at_reply(group, lane);
    } else
        go_on(group, lane, (size_t)moved);
    return 1;
}

/* Sleeps until a lane can go on. Returns what poll does. */
static int wait_for(const Group *group, double left_s) {
    struct pollfd polls[LANES_MAX];
    nfds_t count = 0;
    for (int i = 0; i < group->count; i++) {
        const Lane *lane = &group->lanes[i];
        if (lane->state != OVER)
            polls[count++] = (struct pollfd){.fd = lane->fd, .events = lane->state == SENDING ? POLLOUT : POLLIN};
    }
    double left_ms = 1e3 * left_s + 1;
    return poll(polls, count, left_ms < 1e9 ? (int)left_ms : 1000000000);
}

/* Until all lanes are over, or a signal has come: then -1. */
static int run(Group *group, double deadline_s) {
    for (;;) {
        int open = 0, moved = 0;
        for (int i = 0; i < group->count; i++)
            if (group->lanes[i].state != OVER) {
                moved |= step(group, &group->lanes[i]);
                open |= group->lanes[i].state != OVER;
            }
        if (!open)
            return 0;
        double left_s = deadline_s - hot_now_s();
        for (int i = 0; left_s <= 0 && i < group->count; i++)
            if (group->lanes[i].state != OVER)
                end(&group->lanes[i], ETIMEDOUT);
        if (left_s > 0 && !moved && wait_for(group, left_s) < 0 && errno == EINTR)
            return -1;
    }
}

/* Lanes that lay idle, and that the node has closed meanwhile, or said something unasked on. */
static void leave_stale(Group *group) {
    for (int i = 0; i < group->count; i++) {
        struct pollfd look = {.fd = group->lanes[i].fd, .events = POLLIN};
        if (group->lanes[i].idle && poll(&look, 1, 0) > 0)
            end(&group->lanes[i], STALE);
    }
}

static PyObject *outcomes(const Group *group) {
    PyObject *list = PyList_New(group->count);
    for (int i = 0; list && i < group->count; i++) {
        const Lane *lane = &group->lanes[i];
        Py_ssize_t taken = lane->outcome == OTHER ? (Py_ssize_t)lane->taken : 0;
        PyObject *outcome = Py_BuildValue("iNy#", lane->outcome, PyBool_FromLong(lane->started), lane->reply, taken);
        if (outcome == NULL || PyList_SetItem(list, i, outcome) < 0)
            Py_CLEAR(list);
    }
    return list;
}

PyObject *hot_exchange_lanes(PyObject *self, PyObject *arguments) {
    PyObject *columns[COLUMNS], *lanes;
    double deadline_s;
    if (!PyArg_ParseTuple(arguments, "(OOOOO)O!d", &columns[0], &columns[1], &columns[2], &columns[3], &columns[4],
                          &PyList_Type, &lanes, &deadline_s))
        return NULL;
    Group *group = calloc(1, sizeof *group);
    if (group == NULL)
        return PyErr_NoMemory();
    int good = take_columns(group, columns) == 0;
    Py_ssize_t count = PyList_Size(lanes);
    if (good && count > LANES_MAX) {
        PyErr_SetString(PyExc_ValueError, "too many lanes");
        good = 0;
    }
    for (Py_ssize_t i = 0; good && i < count; i++)
        good = take_lane(group, PyList_GetItem(lanes, i)) == 0;
    if (good)
        leave_stale(group);
    for (int over = 0; good && !over;) {
        PyThreadState *thread = PyEval_SaveThread();
        over = run(group, deadline_s) == 0;
        PyEval_RestoreThread(thread);
        good = over || PyErr_CheckSignals() == 0;
    }
    PyObject *answer = good ? outcomes(group) : NULL;
    release(group);
    return answer;
}
