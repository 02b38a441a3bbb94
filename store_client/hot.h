/* What the files of the module _hot share. */
#ifndef MOONPOOL_HOT_H
#define MOONPOOL_HOT_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <time.h>

/* What a call takes and gives; native.py names the one it was written for. One more with each change of either. */
#define HOT_FORMAT 18

/* A column of u64, to be released; -1 and an exception where it is none. */
int hot_view_u64(PyObject *object, Py_buffer *view, int flags, Py_ssize_t *count);

/* Appends a list's integers; how many, or -1 where one is no plain u64. */
Py_ssize_t hot_append_u64s(PyObject *list, uint64_t *values);

/* time.monotonic() */
static inline double hot_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Which of the ways to hash this machine has. Before the first hash_keys. */
void hot_choose_hash(void);

PyObject *hot_hash_keys(PyObject *self, PyObject *arguments);
PyObject *hot_find_rows(PyObject *self, PyObject *arguments);
PyObject *hot_set_name(PyObject *self, PyObject *arguments);
PyObject *hot_remove_name(PyObject *self, PyObject *arguments);
PyObject *hot_name_rows(PyObject *self, PyObject *arguments);
PyObject *hot_forget_rows(PyObject *self, PyObject *arguments);
PyObject *hot_find_present(PyObject *self, PyObject *arguments);
PyObject *hot_find_places(PyObject *self, PyObject *arguments);
PyObject *hot_fill_rows(PyObject *self, PyObject *arguments);
PyObject *hot_take_ghosts(PyObject *self, PyObject *arguments);
PyObject *hot_copy_pieces(PyObject *self, PyObject *arguments);
PyObject *hot_sums(PyObject *self, PyObject *arguments);
PyObject *hot_read_slots(PyObject *self, PyObject *arguments);
PyObject *hot_fill_slots(PyObject *self, PyObject *arguments);
PyObject *hot_exchange(PyObject *self, PyObject *arguments);
PyObject *hot_send(PyObject *self, PyObject *arguments);
PyObject *hot_exchange_lanes(PyObject *self, PyObject *arguments);
PyObject *hot_read_lane(PyObject *self, PyObject *arguments);
PyObject *hot_serve_reads(PyObject *self, PyObject *arguments);
PyObject *hot_swap(PyObject *self, PyObject *arguments);
PyObject *hot_gather(PyObject *self, PyObject *arguments);
PyObject *hot_probe_points(PyObject *self, PyObject *arguments);
PyObject *hot_sweep(PyObject *self, PyObject *arguments);
PyObject *hot_name_slots(PyObject *self, PyObject *arguments);

#endif
