/* Exchanges on several data lanes of a node at once, by one thread and without the interpreter's lock: what
 * transports/lane.py does on one. Bytes from the wire go into the pieces, and nowhere else.
 */
#define _GNU_SOURCE
#include "hot_lanes.h"
#include "hot_frames.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define LANES_MAX 64
#define PLACES_PER_CALL 1024 /* the kernel's IOV_MAX */
#define REPLY_BYTES 4096     /* of a reply that is Python's to read; more may follow */
#define HEADER_BYTES 128

enum { SENDING, REPLYING, FILLING, OVER };

LaneGroup *hot_new_lanes(Py_ssize_t count) {
    LaneGroup *group = calloc(1, sizeof *group + (size_t)count * sizeof(Lane));
    if (group == NULL)
        PyErr_NoMemory();
    return group;
}

void hot_free_lanes(LaneGroup *group) {
    while (group->count) {
        Lane *lane = &group->lanes[--group->count];
        free(lane->places);
        free(lane->reply);
    }
    free(group);
}

static void add_place(Lane *lane, uint64_t address, uint64_t size) {
    struct iovec *last = lane->place_count ? &lane->places[lane->place_count - 1] : NULL;
    if (last && (uint64_t)(uintptr_t)last->iov_base + last->iov_len == address)
        last->iov_len += size;
    else if (size)
        lane->places[lane->place_count++] = (struct iovec){(void *)(uintptr_t)address, size};
}

static void add_object(const LaneGroup *group, Lane *lane, Py_ssize_t object) {
    for (int64_t i = group->offsets[object]; i < group->offsets[object + 1]; i++)
        add_place(lane, group->addresses[i], group->sizes[i]);
}

int hot_ready_lane(LaneGroup *group) {
    Lane *lane = &group->lanes[group->count++];
    int64_t pieces = group->offsets[lane->first + lane->count] - group->offsets[lane->first];
    lane->reply_bytes = lane->head_bytes ? lane->head_bytes + (size_t)lane->count : REPLY_BYTES;
    lane->places = malloc(sizeof *lane->places * (size_t)(pieces + 2));
    lane->reply = malloc(lane->reply_bytes);
    if (lane->places == NULL || lane->reply == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    lane->places[0] = (struct iovec){(char *)lane->frame, lane->frame_bytes};
    lane->place_count = 1;
    for (Py_ssize_t i = 0; !lane->head_bytes && i < lane->count; i++)
        add_object(group, lane, lane->first + i);
    return 0;
}

static void end(Lane *lane, int outcome) {
    lane->state = OVER;
    lane->outcome = outcome;
}

/* All statuses are there: from now on payloads of those objects that are OK come, then their headers. */
static void begin_filling(const LaneGroup *group, Lane *lane) {
    const char *statuses = lane->reply + lane->head_bytes;
    uint64_t sent = 0;
    lane->place = lane->place_count = 0;
    for (Py_ssize_t i = 0; i < lane->count; i++)
        if (!statuses[i]) {
            add_object(group, lane, lane->first + i);
            sent++;
        }
    add_place(lane, (uint64_t)(uintptr_t)group->headers + HEADER_BYTES * (uint64_t)lane->first, HEADER_BYTES * sent);
    lane->state = FILLING;
}

/* Looks at what has come of the reply. Whatever isn't the answer that was hoped for is left to Python. */
static void look_at_reply(const LaneGroup *group, Lane *lane) {
    const char *head = lane->head;
    size_t known = lane->head_bytes;
    int other = !known || (lane->taken >= 4 && memcmp(lane->reply, head, 4));
    if (!other && lane->taken < lane->reply_bytes)
        return;
    if (other || memcmp(lane->reply + FRAME_PREFIX_BYTES, head + FRAME_PREFIX_BYTES, known - FRAME_PREFIX_BYTES))
        end(lane, LANE_OTHER);
    else
        begin_filling(group, lane);
}

/* `moved` bytes of the places are done. */
static void go_on(const LaneGroup *group, Lane *lane, size_t moved) {
    while (lane->place < lane->place_count && moved >= lane->places[lane->place].iov_len)
        moved -= lane->places[lane->place++].iov_len;
    if (lane->place < lane->place_count) {
        struct iovec *rest = &lane->places[lane->place];
        *rest = (struct iovec){(char *)rest->iov_base + moved, rest->iov_len - moved};
    } else if (lane->state == SENDING)
        lane->state = REPLYING;
    else {
        memcpy(group->statuses + lane->first, lane->reply + lane->head_bytes, (size_t)lane->count);
        end(lane, 0);
    }
}

/* One call to the kernel. 0 where it would have to wait, or will: no answer is there when the request has just gone. */
static int step(const LaneGroup *group, Lane *lane) {
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
        return 1;
    }
    go_on(group, lane, (size_t)moved);
    return lane->state != REPLYING;
}

/* Sleeps until a lane can go on. Returns what poll does. */
static int wait_for(const LaneGroup *group, double left_s) {
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
static int run(LaneGroup *group, double deadline_s) {
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
static void leave_stale(LaneGroup *group) {
    for (int i = 0; i < group->count; i++) {
        struct pollfd look = {.fd = group->lanes[i].fd, .events = POLLIN};
        if (group->lanes[i].idle && poll(&look, 1, 0) > 0)
            end(&group->lanes[i], LANE_STALE);
    }
}

int hot_run_lanes(LaneGroup *group, double deadline_s) {
    leave_stale(group);
    for (int over = 0; !over;) {
        PyThreadState *thread = PyEval_SaveThread();
        over = run(group, deadline_s) == 0;
        PyEval_RestoreThread(thread);
        if (!over && PyErr_CheckSignals() < 0)
            return -1;
    }
    return 0;
}

PyObject *hot_lane_taken(const Lane *lane) {
    return PyBytes_FromStringAndSize(lane->reply, lane->outcome == LANE_OTHER ? (Py_ssize_t)lane->taken : 0);
}

/* ------------------------------------------------------------------ several lanes, as Python describes them */

enum { OFFSETS, ADDRESSES, SIZES, STATUSES, HEADERS, COLUMNS };

typedef struct {
    Py_buffer views[COLUMNS + 2 * LANES_MAX]; /* columns; request and answer's head of each lane */
    int viewed;
    LaneGroup *group;
} Call;

/* -1 and an exception where the columns don't fit each other. */
static int take_columns(Call *call, PyObject *const *objects) {
    for (int i = 0; i < COLUMNS; i++, call->viewed++) {
        int flags = PyBUF_C_CONTIGUOUS | (i >= STATUSES ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[i], &call->views[i], flags) < 0)
            return -1;
    }
    Py_buffer *views = call->views;
    Py_ssize_t count = views[OFFSETS].len / 8 - 1, pieces = views[SIZES].len / 8;
    const int64_t *offsets = views[OFFSETS].buf;
    int fit = count >= 0 && views[ADDRESSES].len == views[SIZES].len && views[STATUSES].len == count &&
              views[HEADERS].len == HEADER_BYTES * count && offsets[0] == 0 && offsets[count] == pieces;
    for (Py_ssize_t i = 0; fit && i < count; i++)
        fit = offsets[i] <= offsets[i + 1] && offsets[i + 1] <= pieces;
    if (!fit) {
        PyErr_SetString(PyExc_ValueError, "columns that don't fit each other");
        return -1;
    }
    LaneGroup *group = call->group;
    group->offsets = offsets, group->addresses = views[ADDRESSES].buf, group->sizes = views[SIZES].buf;
    group->statuses = views[STATUSES].buf, group->headers = views[HEADERS].buf;
    return 0;
}

/* One lane's tuple; -1 and an exception where it is none. */
static int take_lane(Call *call, PyObject *arguments) {
    Lane *lane = &call->group->lanes[call->group->count];
    Py_buffer *frame = &call->views[call->viewed], *head = frame + 1;
    if (!PyArg_ParseTuple(arguments, "ipy*y*nn", &lane->fd, &lane->idle, frame, head, &lane->first, &lane->count))
        return -1;
    call->viewed += 2;
    lane->frame = frame->buf, lane->frame_bytes = (size_t)frame->len;
    lane->head = head->buf, lane->head_bytes = (size_t)head->len;
    Py_ssize_t objects = call->views[STATUSES].len;
    if (lane->first < 0 || lane->count < 0 || lane->first > objects - lane->count ||
        (head->len && head->len < FRAME_PREFIX_BYTES)) {
        PyErr_SetString(PyExc_ValueError, "a lane whose objects don't lie in the columns");
        return -1;
    }
    return hot_ready_lane(call->group);
}

static PyObject *outcomes(const LaneGroup *group) {
    PyObject *list = PyList_New(group->count);
    for (int i = 0; list && i < group->count; i++) {
        const Lane *lane = &group->lanes[i];
        PyObject *outcome = Py_BuildValue("iNN", lane->outcome, PyBool_FromLong(lane->started), hot_lane_taken(lane));
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
    Py_ssize_t count = PyList_Size(lanes);
    if (count > LANES_MAX) {
        PyErr_SetString(PyExc_ValueError, "too many lanes");
        return NULL;
    }
    Call call = {.group = hot_new_lanes(count)};
    if (call.group == NULL)
        return NULL;
    int good = take_columns(&call, columns) == 0;
    for (Py_ssize_t i = 0; good && i < count; i++)
        good = take_lane(&call, PyList_GetItem(lanes, i)) == 0;
    good = good && hot_run_lanes(call.group, deadline_s) == 0;
    PyObject *answer = good ? outcomes(call.group) : NULL;
    hot_free_lanes(call.group);
    while (call.viewed)
        PyBuffer_Release(&call.views[--call.viewed]);
    return answer;
}
