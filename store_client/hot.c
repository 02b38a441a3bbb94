/* The few loops that neither Python nor numpy does fast enough. native.py has the same in Python and says what each
 * one does; a build without a compiler does without this file. Stable ABI: one build serves all Pythons from 3.11 on.
 */
#include "hot.h"
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#define HAS_SHA_NI 1
#endif

/* ------------------------------------------------------------------ SHA-256 (FIPS 180-4) */

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static const uint32_t START[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static uint32_t big_endian(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static uint32_t rotate(uint32_t value, int bits) { return value >> bits | value << (32 - bits); }

static void blocks_portable(uint32_t state[8], const uint8_t *data, size_t blocks) {
    for (; blocks; blocks--, data += 64) {
        uint32_t w[64], s[8];
        for (int i = 0; i < 16; i++)
            w[i] = big_endian(data + 4 * i);
        for (int i = 16; i < 64; i++) {
            uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
            uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + a + w[i - 7] + b;
        }
        memcpy(s, state, sizeof s);
        for (int i = 0; i < 64; i++) {
            uint32_t e = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
            uint32_t first = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[i] + w[i];
            uint32_t a = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
            uint32_t second = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += first;
            s[0] = first + second;
        }
        for (int i = 0; i < 8; i++)
            state[i] += s[i];
    }
}

#ifdef HAS_SHA_NI
/* The processor's own instructions: state in two registers, (A B E F) and (C D G H); four rounds a turn. */
__attribute__((target("sha,sse4.1,ssse3"))) static void blocks_sha_ni(uint32_t state[8], const uint8_t *data,
                                                                      size_t blocks) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bULL, 0x0405060700010203ULL);
    __m128i abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    __m128i cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    for (; blocks; blocks--, data += 64) {
        __m128i abef_before = abef, cdgh_before = cdgh, w[4];
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), swap);
        for (int turn = 0; turn < 16; turn++) {
            __m128i sum = _mm_add_epi32(w[turn & 3], _mm_loadu_si128((const __m128i *)(K + 4 * turn)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
            if (turn < 12) { /* w[turn] becomes the words of four turns later */
                __m128i next = _mm_sha256msg1_epu32(w[turn & 3], w[(turn + 1) & 3]);
                __m128i back = _mm_alignr_epi8(w[(turn + 3) & 3], w[(turn + 2) & 3], 4);
                w[turn & 3] = _mm_sha256msg2_epu32(_mm_add_epi32(next, back), w[(turn + 3) & 3]);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    uint32_t low[4], high[4];
    _mm_storeu_si128((__m128i *)low, abef);
    _mm_storeu_si128((__m128i *)high, cdgh);
    state[0] = low[3], state[1] = low[2], state[4] = low[1], state[5] = low[0];
    state[2] = high[3], state[3] = high[2], state[6] = high[1], state[7] = high[0];
}
#endif

static void (*hash_blocks)(uint32_t state[8], const uint8_t *data, size_t blocks) = blocks_portable;

static void sha256_half(const uint8_t *text, size_t length, uint8_t digest[16]) {
    uint32_t state[8];
    uint8_t tail[128] = {0};
    size_t whole = length / 64, rest = length % 64, tail_bytes = rest < 56 ? 64 : 128;
    memcpy(state, START, sizeof state);
    if (whole)
        hash_blocks(state, text, whole);
    memcpy(tail, text + 64 * whole, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        tail[tail_bytes - 1 - i] = (uint8_t)((uint64_t)length * 8 >> 8 * i);
    hash_blocks(state, tail, tail_bytes / 64);
    for (int i = 0; i < 16; i++)
        digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

static PyObject *hash_keys(PyObject *self, PyObject *arguments) {
    PyObject *keys;
    Py_ssize_t bytes_max;
    if (!PyArg_ParseTuple(arguments, "On", &keys, &bytes_max))
        return NULL;
    if (!PyList_Check(keys)) {
        PyErr_SetString(PyExc_TypeError, "not a list");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(keys);
    PyObject *packed = PyBytes_FromStringAndSize(NULL, 16 * count);
    if (packed == NULL)
        return NULL;
    uint8_t *digests = (uint8_t *)PyBytes_AsString(packed);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t length = 0;
        PyObject *key = PyList_GetItem(keys, i);
        const char *text = key && PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, &length) : NULL;
        if (text == NULL || length < 1 || length > bytes_max) {
            PyErr_Clear();
            Py_DECREF(packed);
            return PyLong_FromSsize_t(i); /* the first key that can't be one */
        }
        sha256_half((const uint8_t *)text, (size_t)length, digests + 16 * i);
    }
    return packed;
}

/* ------------------------------------------------------------------ the index's map from hash to row */

static PyObject *find_rows(PyObject *self, PyObject *arguments) {
    PyObject *parts, *packed, *found;
    Py_ssize_t hash_bytes, part_count;
    Py_buffer rows;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(arguments, "OOnO", &parts, &packed, &hash_bytes, &found))
        return NULL;
    char *hashes;
    Py_ssize_t packed_bytes;
    if (!PyList_Check(parts) || (part_count = PyList_Size(parts)) < 1 || hash_bytes < 1) {
        PyErr_SetString(PyExc_ValueError, "a list of dicts and the size of a hash");
        return NULL;
    }
    if (PyBytes_AsStringAndSize(packed, &hashes, &packed_bytes) < 0)
        return NULL;
    if (hot_view_u64(found, &rows, PyBUF_WRITABLE, &count) < 0)
        return NULL;
    PyObject *failed = NULL;
    if (packed_bytes != count * hash_bytes)
        failed = PyExc_ValueError;
    int64_t *row_of = rows.buf;
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        const char *hash = hashes + i * hash_bytes;
        PyObject *part = PyList_GetItem(parts, (unsigned char)hash[0] % part_count);
        PyObject *key = PyBytes_FromStringAndSize(hash, hash_bytes);
        PyObject *row = part && key ? PyDict_GetItemWithError(part, key) : NULL;
        Py_XDECREF(key);
        row_of[i] = row ? PyLong_AsLongLong(row) : -1;
        if (PyErr_Occurred())
            failed = PyErr_Occurred();
    }
    PyBuffer_Release(&rows);
    if (failed) {
        if (!PyErr_Occurred())
            PyErr_SetString(failed, "hashes and rows of different number");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ pieces of memory */

Py_ssize_t hot_append_u64s(PyObject *list, uint64_t *values) {
    Py_ssize_t length = PyList_Size(list);
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *value = PyList_GetItem(list, i);
        if (!PyLong_CheckExact(value))
            return -1;
        values[i] = PyLong_AsUnsignedLongLong(value);
        if (values[i] == UINT64_MAX && PyErr_Occurred()) {
            PyErr_Clear();
            return -1;
        }
    }
    return length;
}

static PyObject *pieces(PyObject *self, PyObject *arguments) {
    PyObject *addresses, *sizes;
    if (!PyArg_ParseTuple(arguments, "OO", &addresses, &sizes))
        return NULL;
    if (!PyList_Check(addresses) || !PyList_Check(sizes) || PyList_Size(addresses) != PyList_Size(sizes))
        Py_RETURN_NONE;
    Py_ssize_t objects = PyList_Size(addresses), total = 0;
    for (Py_ssize_t i = 0; i < objects; i++) {
        PyObject *starts = PyList_GetItem(addresses, i), *ends = PyList_GetItem(sizes, i);
        if (!PyList_Check(starts) || !PyList_Check(ends) || PyList_Size(starts) != PyList_Size(ends))
            Py_RETURN_NONE;
        total += PyList_Size(starts);
    }
    Py_ssize_t counts[4] = {total, total, objects + 1, objects}; /* addresses, sizes, offsets, lengths */
    PyObject *packed = PyTuple_New(4);
    uint64_t *columns[4];
    for (int i = 0; packed && i < 4; i++) {
        PyObject *column = PyBytes_FromStringAndSize(NULL, 8 * counts[i]);
        if (column == NULL || PyTuple_SetItem(packed, i, column) < 0) {
            Py_CLEAR(packed);
            return NULL;
        }
        columns[i] = (uint64_t *)(void *)PyBytes_AsString(column);
    }
    if (packed == NULL)
        return NULL;
    uint64_t at = columns[2][0] = 0;
    for (Py_ssize_t i = 0; i < objects; i++) {
        Py_ssize_t count = hot_append_u64s(PyList_GetItem(addresses, i), columns[0] + at);
        int good = count >= 0 && hot_append_u64s(PyList_GetItem(sizes, i), columns[1] + at) == count;
        uint64_t length = 0;
        for (uint64_t end = at + (uint64_t)count; good && at < end; at++) {
            uint64_t start = columns[0][at], size = columns[1][at];
            good = start <= ~size && (start || !size);
            length += size;
        }
        if (!good) {
            Py_DECREF(packed);
            Py_RETURN_NONE;
        }
        columns[3][i] = length;
        columns[2][i + 1] = at;
    }
    return packed;
}

/* ------------------------------------------------------------------ the module */

static PyMethodDef methods[] = {
    {"copy_pieces", hot_copy_pieces, METH_VARARGS, NULL},
    {"read_slots", hot_read_slots, METH_VARARGS, NULL},
    {"fill_slots", hot_fill_slots, METH_VARARGS, NULL},
    {"exchange_lanes", hot_exchange_lanes, METH_VARARGS, NULL},
    {"read_lane", hot_read_lane, METH_VARARGS, NULL},
    {"serve_reads", hot_serve_reads, METH_VARARGS, NULL},
    {"swap", hot_swap, METH_VARARGS, NULL},
    {"name_slots", hot_name_slots, METH_VARARGS, NULL},
    {"hash_keys", hash_keys, METH_VARARGS, NULL},
    {"find_rows", find_rows, METH_VARARGS, NULL},
    {"name_rows", hot_name_rows, METH_VARARGS, NULL},
    {"forget_rows", hot_forget_rows, METH_VARARGS, NULL},
    {"fill_rows", hot_fill_rows, METH_VARARGS, NULL},
    {"take_ghosts", hot_take_ghosts, METH_VARARGS, NULL},
    {"find_present", hot_find_present, METH_VARARGS, NULL},
    {"find_places", hot_find_places, METH_VARARGS, NULL},
    {"pieces", pieces, METH_VARARGS, NULL},
    {"gather", hot_gather, METH_VARARGS, NULL},
    {"exchange", hot_exchange, METH_VARARGS, NULL},
    {"send", hot_send, METH_VARARGS, NULL},
    {"probe_points", hot_probe_points, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_hot", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__hot(void) {
#ifdef HAS_SHA_NI
    __builtin_cpu_init();
    uint32_t a, b, c, d;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    if (b >> 29 & 1 && __builtin_cpu_supports("sse4.1"))
        hash_blocks = blocks_sha_ni;
#endif
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "FORMAT", HOT_FORMAT) < 0)
        Py_CLEAR(made);
    return made;
}
