/* Row names of keys: the first half of each text's SHA-256 (FIPS 180-4). */
#include "hot.h"
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#define HAS_SHA_NI 1
#endif

#define PAIRED_BLOCKS 4 /* keys of at most so many are hashed two at a time; longer ones hardly occur */

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

/* Two texts of as many blocks side by side. An instruction's answer takes longer than the next one of the other text, so
 * two cost little more than one. */
__attribute__((target("sha,sse4.1,ssse3"))) static void pair_sha_ni(const uint8_t *const data[2], size_t blocks,
                                                                    uint8_t *const digests[2]) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bULL, 0x0405060700010203ULL);
    __m128i abef[2], cdgh[2];
    abef[0] = abef[1] = _mm_set_epi32((int)START[0], (int)START[1], (int)START[4], (int)START[5]);
    cdgh[0] = cdgh[1] = _mm_set_epi32((int)START[2], (int)START[3], (int)START[6], (int)START[7]);
    for (size_t block = 0; block < blocks; block++) {
        __m128i abef_before[2] = {abef[0], abef[1]}, cdgh_before[2] = {cdgh[0], cdgh[1]}, w[2][4];
        for (int i = 0; i < 8; i++)
            w[i & 1][i / 2] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data[i & 1] + 64 * block + 16 * (i / 2))), swap);
#pragma GCC unroll 16
        for (int turn = 0; turn < 16; turn++) {
            __m128i k = _mm_loadu_si128((const __m128i *)(K + 4 * turn)), sum[2];
            for (int i = 0; i < 2; i++) {
                sum[i] = _mm_add_epi32(w[i][turn & 3], k);
                cdgh[i] = _mm_sha256rnds2_epu32(cdgh[i], abef[i], sum[i]);
            }
            for (int i = 0; i < 2; i++)
                abef[i] = _mm_sha256rnds2_epu32(abef[i], cdgh[i], _mm_shuffle_epi32(sum[i], 0x0e));
            for (int i = 0; turn < 12 && i < 2; i++) { /* as above */
                __m128i next = _mm_sha256msg1_epu32(w[i][turn & 3], w[i][(turn + 1) & 3]);
                __m128i back = _mm_alignr_epi8(w[i][(turn + 3) & 3], w[i][(turn + 2) & 3], 4);
                w[i][turn & 3] = _mm_sha256msg2_epu32(_mm_add_epi32(next, back), w[i][(turn + 3) & 3]);
            }
        }
        for (int i = 0; i < 2; i++) {
            abef[i] = _mm_add_epi32(abef[i], abef_before[i]);
            cdgh[i] = _mm_add_epi32(cdgh[i], cdgh_before[i]);
        }
    }
    const __m128i reverse = _mm_set_epi64x(0x08090a0b0c0d0e0fULL, 0x0001020304050607ULL);
    for (int i = 0; i < 2; i++) /* B A D C, from low to high */
        _mm_storeu_si128((__m128i *)digests[i], _mm_shuffle_epi8(_mm_unpackhi_epi64(abef[i], cdgh[i]), reverse));
}
#endif

static void (*hash_blocks)(uint32_t state[8], const uint8_t *data, size_t blocks) = blocks_portable;
static void (*hash_pair)(const uint8_t *const data[2], size_t blocks, uint8_t *const digests[2]) = NULL;

void hot_choose_hash(void) {
#ifdef HAS_SHA_NI
    __builtin_cpu_init();
    uint32_t a, b, c, d;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    if (b >> 29 & 1 && __builtin_cpu_supports("sse4.1")) {
        hash_blocks = blocks_sha_ni;
        hash_pair = pair_sha_ni;
    }
#endif
}

/* How many blocks `length` bytes of text are with what follows them. */
static size_t blocks_of(size_t length) { return (length + 8) / 64 + 1; }

/* The last blocks of a text of `length` bytes, of which `rest` are left. */
static void pad(uint8_t *blocks, const uint8_t *text, size_t rest, size_t length) {
    size_t end = 64 * blocks_of(rest);
    memcpy(blocks, text, rest);
    memset(blocks + rest, 0, end - rest);
    blocks[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        blocks[end - 1 - i] = (uint8_t)((uint64_t)length * 8 >> 8 * i);
}

static void sha256_half(const uint8_t *text, size_t length, uint8_t digest[16]) {
    uint32_t state[8];
    uint8_t tail[128];
    size_t whole = length / 64, rest = length % 64;
    memcpy(state, START, sizeof state);
    if (whole)
        hash_blocks(state, text, whole);
    pad(tail, text + 64 * whole, rest, length);
    hash_blocks(state, tail, blocks_of(rest));
    for (int i = 0; i < 16; i++)
        digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

/* A text that waits for another one of as many blocks. */
typedef struct {
    const uint8_t *text;
    size_t length;
    uint8_t *digest; /* NULL: none waits */
} Waiting;

static void finish(Waiting *waiting) {
    if (waiting->digest)
        sha256_half(waiting->text, waiting->length, waiting->digest);
    waiting->digest = NULL;
}

/* Hashes a text, now or with the next one. */
static void add(Waiting *waiting, const uint8_t *text, size_t length, uint8_t *digest) {
    size_t blocks = blocks_of(length);
    int alike = waiting->digest && blocks_of(waiting->length) == blocks;
    if (!alike)
        finish(waiting);
    if (alike) {
        uint8_t padded[2][64 * PAIRED_BLOCKS];
        pad(padded[0], waiting->text, waiting->length, waiting->length);
        pad(padded[1], text, length, length);
        hash_pair((const uint8_t *[2]){padded[0], padded[1]}, blocks, (uint8_t *[2]){waiting->digest, digest});
        waiting->digest = NULL;
    } else if (hash_pair && blocks <= PAIRED_BLOCKS)
        *waiting = (Waiting){text, length, digest};
    else
        sha256_half(text, length, digest);
}

PyObject *hot_hash_keys(PyObject *self, PyObject *arguments) {
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
    Waiting waiting = {0};
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t length = 0;
        PyObject *key = PyList_GetItem(keys, i);
        const char *text = key && PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, &length) : NULL;
        if (text == NULL || length < 1 || length > bytes_max) {
            PyErr_Clear();
            Py_DECREF(packed);
            return PyLong_FromSsize_t(i); /* the first key that can't be one */
        }
        add(&waiting, (const uint8_t *)text, (size_t)length, digests + 16 * i);
    }
    finish(&waiting);
    return packed;
}
