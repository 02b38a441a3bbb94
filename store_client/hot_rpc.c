/* A client's exchange with its server: send a frame, wait, receive one. What rpc/wire.py does with a plain socket. */
#define _GNU_SOURCE
#include "hot.h"
#include "hot_frames.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#define FIRST_BYTES (64 << 10)
#define SHORT_BYTES 4096 /* bodies up to here are copied behind their prefix: cheaper than two pieces for the kernel */

typedef struct {
    int fd;
    struct iovec unsent[2];
    char *data, *more; /* `more`: where `data` lies once it doesn't fit the first buffer */
    size_t have, room;
    uint64_t limit; /* of a frame's length; 0: not at the beginning of a frame, whatever comes is good */
    int64_t deadline_ns;
} Exchange;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Sleeps until the socket is ready: 0, or an errno. */
static int wait_for(int fd, short events, int64_t deadline_ns) {
    int64_t left_ns = deadline_ns - now_ns();
    if (left_ns <= 0)
        return ETIMEDOUT;
    struct pollfd one = {.fd = fd, .events = events};
    struct timespec left = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
    int ready = ppoll(&one, 1, &left, NULL);
    return ready > 0 ? 0 : ready ? errno : ETIMEDOUT;
}

/* Bytes that the first frame has together with its prefix; 0 where that isn't known yet. */
static uint64_t frame_bytes(const Exchange *x) {
    if (x->have < 4)
        return 0;
    const uint8_t *prefix = (const uint8_t *)x->data;
    return 4 + ((uint64_t)prefix[0] | (uint64_t)prefix[1] << 8 | (uint64_t)prefix[2] << 16 | (uint64_t)prefix[3] << 24);
}

/* Whether there is enough: a frame, or bytes that can't be one, or begin one that is too long. */
static int enough(const Exchange *x) {
    if (!x->limit)
        return x->have > 0;
    uint64_t bytes = frame_bytes(x);
    return bytes && (bytes <= 8 || bytes - 4 > x->limit || x->have >= bytes);
}

/* Room for more bytes, twice as much each time: a length that is only promised takes no memory. 0: there is none. */
static int make_room(Exchange *x) {
    if (x->have < x->room)
        return 1;
    uint64_t wanted = frame_bytes(x), room = 2 * (uint64_t)x->room;
    if (wanted > x->have && wanted < room)
        room = wanted;
    char *more = realloc(x->more, room);
    if (more == NULL)
        return 0;
    if (x->more == NULL)
        memcpy(more, x->data, x->have);
    x->data = x->more = more;
    x->room = room;
    return 1;
}

static ssize_t send_some(const Exchange *x) {
    int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    if (!x->unsent[1].iov_len)
        return send(x->fd, x->unsent[0].iov_base, x->unsent[0].iov_len, flags);
    struct msghdr message = {.msg_iov = (struct iovec *)x->unsent, .msg_iovlen = 2};
    return sendmsg(x->fd, &message, flags);
}

static void take_off(Exchange *x, size_t sent) {
    for (int i = 0; i < 2; i++) {
        size_t part = sent < x->unsent[i].iov_len ? sent : x->unsent[i].iov_len;
        x->unsent[i].iov_base = (char *)x->unsent[i].iov_base + part;
        x->unsent[i].iov_len -= part;
        sent -= part;
    }
}

/* Goes on until the end: 0, or an errno. After EINTR it may be called again. */
static int go_on(Exchange *x) {
    int failed;
    while (x->unsent[0].iov_len | x->unsent[1].iov_len) {
        ssize_t sent = send_some(x);
        if (sent >= 0)
            take_off(x, (size_t)sent);
        else if (errno != EAGAIN)
            return errno;
        else if ((failed = wait_for(x->fd, POLLOUT, x->deadline_ns)))
            return failed;
    }
    while (x->room && !enough(x)) {
        if (!make_room(x))
            return ENOMEM;
        ssize_t came = recv(x->fd, x->data + x->have, x->room - x->have, MSG_DONTWAIT);
        if (came > 0)
            x->have += (size_t)came;
        else if (came == 0)
            return 0;
        else if (errno != EAGAIN)
            return errno;
        else if ((failed = wait_for(x->fd, POLLIN, x->deadline_ns)))
            return failed;
    }
    return 0;
}

/* Without the interpreter's lock. 0, or -1 and an exception. What has come before a failure is kept: the next call meets
 * the failure again. */
static int run(Exchange *x, double deadline_s) {
    int failed = ETIMEDOUT;
    x->deadline_ns = deadline_s < 9e9 ? (int64_t)(deadline_s * 1e9) : INT64_MAX / 2;
    if (x->deadline_ns > now_ns())
        do {
            PyThreadState *thread = PyEval_SaveThread();
            failed = go_on(x);
            PyEval_RestoreThread(thread);
            if (failed == EINTR && PyErr_CheckSignals() < 0)
                return -1;
        } while (failed == EINTR);
    if (!failed || (x->have && failed != ENOMEM))
        return 0;
    errno = failed;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

/* What is to be sent: the body behind its prefix, which is written to `head` (FRAME_PREFIX_BYTES + SHORT_BYTES). */
static void frame(Exchange *x, char *head, unsigned request_id, const char *body, size_t bytes) {
    hot_frame_prefix(head, FRAME_PREFIX_BYTES + bytes, request_id);
    x->unsent[0] = (struct iovec){.iov_base = head, .iov_len = FRAME_PREFIX_BYTES};
    if (bytes > SHORT_BYTES) {
        x->unsent[1] = (struct iovec){.iov_base = (char *)body, .iov_len = bytes};
        return;
    }
    memcpy(head + FRAME_PREFIX_BYTES, body, bytes);
    x->unsent[0].iov_len += bytes;
}

/* (request id, body) where one good frame has come and nothing else, the usual case; else the bytes as they are. */
static PyObject *found(const Exchange *x) {
    if (!x->limit || x->have <= FRAME_PREFIX_BYTES || frame_bytes(x) != x->have || x->have - 4 > x->limit)
        return PyBytes_FromStringAndSize(x->data, (Py_ssize_t)x->have);
    uint32_t request_id;
    memcpy(&request_id, x->data + 4, 4);
    return Py_BuildValue("Iy#", request_id, x->data + FRAME_PREFIX_BYTES, (Py_ssize_t)(x->have - FRAME_PREFIX_BYTES));
}

PyObject *hot_exchange(PyObject *self, PyObject *arguments) {
    char first[FIRST_BYTES], head[FRAME_PREFIX_BYTES + SHORT_BYTES];
    Exchange x = {.data = first, .room = FIRST_BYTES};
    const char *body;
    Py_ssize_t body_bytes;
    unsigned request_id;
    unsigned long long limit;
    double deadline_s;
    if (!PyArg_ParseTuple(arguments, "iIy#dK", &x.fd, &request_id, &body, &body_bytes, &deadline_s, &limit))
        return NULL;
    if (body_bytes)
        frame(&x, head, request_id, body, (size_t)body_bytes);
    x.limit = limit;
    PyObject *came = run(&x, deadline_s) ? NULL : found(&x);
    free(x.more);
    return came;
}

PyObject *hot_send(PyObject *self, PyObject *arguments) {
    char head[FRAME_PREFIX_BYTES + SHORT_BYTES];
    Exchange x = {0}; /* no room: nothing is received */
    const char *body;
    Py_ssize_t body_bytes;
    unsigned request_id;
    double deadline_s;
    if (!PyArg_ParseTuple(arguments, "iIy#d", &x.fd, &request_id, &body, &body_bytes, &deadline_s))
        return NULL;
    frame(&x, head, request_id, body, (size_t)body_bytes);
    if (run(&x, deadline_s) < 0)
        return NULL;
    Py_RETURN_NONE;
}
