/* Exchanges on data lanes, for the files that begin them. */
#ifndef MOONPOOL_HOT_LANES_H
#define MOONPOOL_HOT_LANES_H

#include "hot.h"
#include <sys/uio.h>

/* Outcomes beside errno: what native_lanes.py calls LANE_OTHER and LANE_STALE. */
#define LANE_OTHER (-1)
#define LANE_STALE (-2)

typedef struct {
    int fd, idle, state, outcome, started;
    const char *frame, *head; /* the request; what comes before the statuses of its answer, empty for a put */
    size_t frame_bytes, head_bytes;
    Py_ssize_t first, count; /* of its objects */
    struct iovec *places;    /* what is sent, then what is filled */
    size_t place, place_count;
    char *reply;
    size_t reply_bytes, taken;
} Lane;

/* `offsets`, `addresses` and `sizes` of the pieces of all lanes' objects: one entry an object (offsets: one more), one a
 * piece. Headers of a lane's objects that came lie one after the other from its first object's on. */
typedef struct {
    const int64_t *offsets;
    const uint64_t *addresses, *sizes;
    char *statuses, *headers;
    int count;
    Lane lanes[];
} LaneGroup;

/* NULL and an exception where there is no memory. */
LaneGroup *hot_new_lanes(Py_ssize_t count);
void hot_free_lanes(LaneGroup *group);

/* Makes the last lane, which says what is to be done, ready for that: -1 and an exception where there is no memory. */
int hot_ready_lane(LaneGroup *group);

/* Until all lanes are over, without the interpreter's lock: one that lay idle has to have stayed so. -1 and an exception after a signal that raised one. */
int hot_run_lanes(LaneGroup *group, double deadline_s);

/* What it answered so far where that is Python's to read. */
PyObject *hot_lane_taken(const Lane *lane);

#endif
