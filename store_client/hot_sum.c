/* XXH3 with 64 bits and no seed, written from its specification: the same as xxhash.xxh3_64. */
#include "hot_sum.h"
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define STRIPE_BYTES 64
#define STRIPES_PER_BLOCK 16

static const uint64_t P32_1 = 0x9E3779B1, P32_2 = 0x85EBCA77, P32_3 = 0xC2B2AE3D;
static const uint64_t P64_1 = 0x9E3779B185EBCA87, P64_2 = 0xC2B2AE3D27D4EB4F, P64_3 = 0x165667B19E3779F9,
                      P64_4 = 0x85EBCA77C2B2AE63, P64_5 = 0x27D4EB2F165667C5;

static const unsigned char secret[192] __attribute__((aligned(64))) = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f,
    0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static uint64_t u64(const void *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t u32(const void *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* ------------------------------------------------------------------ mixing */

static uint64_t folded(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t avalanche(uint64_t h) {
    h = (h ^ h >> 37) * 0x165667919E3779F9;
    return h ^ h >> 32;
}

static uint64_t avalanche_64(uint64_t h) {
    h = (h ^ h >> 33) * P64_2;
    h = (h ^ h >> 29) * P64_3;
    return h ^ h >> 32;
}

static uint64_t rotated(uint64_t value, int bits) {
    return value << bits | value >> (64 - bits);
}

static uint64_t mixed_16(const char *at, size_t key) {
    return folded(u64(at) ^ u64(secret + key), u64(at + 8) ^ u64(secret + key + 8));
}

/* ------------------------------------------------------------------ up to 240 bytes */

static uint64_t sum_16(const char *at, uint64_t n) {
    const unsigned char *byte = (const unsigned char *)at;
    if (n > 8) {
        uint64_t low = u64(at) ^ u64(secret + 24) ^ u64(secret + 32), high = u64(at + n - 8) ^ u64(secret + 40) ^ u64(secret + 48);
        return avalanche(n + __builtin_bswap64(low) + high + folded(low, high));
    }
    if (n > 3) {
        uint64_t h = (u32(at + n - 4) + (u32(at) << 32)) ^ u64(secret + 8) ^ u64(secret + 16);
        h = (h ^ rotated(h, 49) ^ rotated(h, 24)) * 0x9FB21C651E98DF25;
        h = (h ^ ((h >> 35) + n)) * 0x9FB21C651E98DF25;
        return h ^ h >> 28;
    }
    if (n)
        return avalanche_64(((uint64_t)byte[0] << 16 | (uint64_t)byte[n >> 1] << 24 | byte[n - 1] | n << 8) ^ u32(secret) ^
                            u32(secret + 4));
    return avalanche_64(u64(secret + 56) ^ u64(secret + 64));
}

static uint64_t sum_240(const char *at, uint64_t n) {
    uint64_t h = n * P64_1;
    if (n <= 16)
        return sum_16(at, n);
    if (n <= 128) {
        for (uint64_t i = (n - 1) / 32 + 1; i--;)
            h += mixed_16(at + 16 * i, 32 * i) + mixed_16(at + n - 16 * (i + 1), 32 * i + 16);
        return avalanche(h);
    }
    for (uint64_t i = 0; i < n / 16; i++)
        h = i == 8 ? avalanche(h) + mixed_16(at + 128, 3) : h + mixed_16(at + 16 * i, i < 8 ? 16 * i : 16 * (i - 8) + 3);
    return avalanche((n < 144 ? avalanche(h) : h) + mixed_16(at + n - 16, 136 - 17));
}

/* ------------------------------------------------------------------ stripes */

static void add_stripe(uint64_t lanes[8], const char *at, const unsigned char *key) {
    for (int i = 0; i < 8; i++) {
        uint64_t value = u64(at + 8 * i), keyed = value ^ u64(key + 8 * i);
        lanes[i ^ 1] += value;
        lanes[i] += (keyed & UINT32_MAX) * (keyed >> 32);
    }
}

/* Copies `count` stripes as `how` says, and adds them. */
typedef void AddStripes(Sum *sum, char *to, const char *from, uint64_t count, int how);

static void add_stripes_plainly(Sum *sum, char *to, const char *from, uint64_t count, int how) {
    for (uint64_t i = 0; i < count; i++, sum->stripe++) {
        uint64_t in_block = sum->stripe % STRIPES_PER_BLOCK, *lanes = sum->lanes;
        memcpy(sum->last, from + STRIPE_BYTES * i, STRIPE_BYTES);
        if (how != NO_COPY)
            memcpy(to + STRIPE_BYTES * i, sum->last, STRIPE_BYTES);
        add_stripe(lanes, sum->last, secret + 8 * in_block);
        for (int lane = 0; in_block == STRIPES_PER_BLOCK - 1 && lane < 8; lane++)
            lanes[lane] = (lanes[lane] ^ lanes[lane] >> 47 ^ u64(secret + 128 + 8 * lane)) * P32_1;
    }
}

static AddStripes *add_stripes = add_stripes_plainly;

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
#define AVX2_INLINE __attribute__((target("avx2"), always_inline)) static inline

AVX2_INLINE __m256i half(const void *at) {
    return _mm256_loadu_si256(at);
}

AVX2_INLINE void put_half(void *all, uint64_t at, __m256i value, int how) {
    if (how == COPY)
        _mm256_storeu_si256((__m256i *)((char *)all + at), value);
    else if (how == COPY_PAST_CACHES)
        _mm256_stream_si256((__m256i *)((char *)all + at), value);
}

AVX2_INLINE __m256i scrambled(__m256i lanes, __m256i key) {
    __m256i prime = _mm256_set1_epi64x((long long)P32_1);
    __m256i x = _mm256_xor_si256(_mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47)), key);
    __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(x, prime), _mm256_slli_epi64(high, 32));
}

AVX2_INLINE __m256i added(__m256i lanes, __m256i value, __m256i key) {
    __m256i keyed = _mm256_xor_si256(value, key);
    __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    return _mm256_add_epi64(lanes, _mm256_add_epi64(product, _mm256_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2))));
}

/* One for each `how`, which is known where this is compiled into it. */
AVX2_INLINE void add_stripes_how(Sum *sum, char *to, const char *from, uint64_t count, int how) {
    __m256i low = half(sum->lanes), high = half(sum->lanes + 4), left = half(from), right = half(from + 32);
    for (uint64_t i = 0; i < count;) {
        uint64_t in_block = (sum->stripe + i) % STRIPES_PER_BLOCK, end = i + STRIPES_PER_BLOCK - in_block;
        const unsigned char *key = secret + 8 * in_block;
        for (; i < end && i < count; i++, key += 8) {
            left = half(from + STRIPE_BYTES * i), right = half(from + STRIPE_BYTES * i + 32);
            put_half(to, STRIPE_BYTES * i, left, how);
            put_half(to, STRIPE_BYTES * i + 32, right, how);
            low = added(low, left, half(key));
            high = added(high, right, half(key + 32));
        }
        if (i == end)
            low = scrambled(low, half(secret + 128)), high = scrambled(high, half(secret + 160));
    }
    put_half(sum->lanes, 0, low, COPY);
    put_half(sum->lanes, 32, high, COPY);
    put_half(sum->last, 0, left, COPY);
    put_half(sum->last, 32, right, COPY);
    sum->stripe += count;
}

AVX2 static void add_stripes_avx2(Sum *sum, char *to, const char *from, uint64_t count, int how) {
    if (how == NO_COPY)
        add_stripes_how(sum, to, from, count, NO_COPY);
    else if (how == COPY_PAST_CACHES && (uintptr_t)to % 32 == 0)
        add_stripes_how(sum, to, from, count, COPY_PAST_CACHES);
    else
        add_stripes_how(sum, to, from, count, COPY);
}
#endif

void hot_choose_sum(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        add_stripes = add_stripes_avx2;
#endif
}

/* ------------------------------------------------------------------ an object */

void hot_sum_begin(Sum *sum, uint64_t length) {
    const uint64_t lanes[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    memcpy(sum->lanes, lanes, sizeof lanes);
    sum->length = length;
    sum->stripe = 0, sum->stripes = length > SUM_SHORT_BYTES ? (length - 1) / STRIPE_BYTES : 0;
    sum->kept_bytes = 0;
}

/* Stripes of a short object, which none are taken of, are as long as it may be. */
static uint64_t stripe_bytes(const Sum *sum) {
    return sum->length <= SUM_SHORT_BYTES ? SUM_SHORT_BYTES : STRIPE_BYTES;
}

/* Bytes that end a stripe that has begun, or begin one that doesn't end there. Returns how many. */
static uint64_t keep(Sum *sum, void *to, const char *from, uint64_t size, int how) {
    uint64_t some = stripe_bytes(sum) - sum->kept_bytes;
    char *kept = sum->kept + sum->kept_bytes;
    some = some < size ? some : size;
    memcpy(kept, from, some);
    if (how != NO_COPY)
        memcpy(to, kept, some);
    sum->kept_bytes += (uint32_t)some;
    if (sum->kept_bytes == STRIPE_BYTES && sum->stripe < sum->stripes) {
        add_stripes(sum, NULL, sum->kept, 1, NO_COPY);
        sum->kept_bytes = 0;
    }
    return some;
}

void hot_sum_add(Sum *sum, void *to, const void *from, uint64_t size, int how) {
    const char *at = from;
    char *copy = to;
    while (size) {
        uint64_t whole = size / STRIPE_BYTES, left = sum->stripes - sum->stripe, some;
        whole = sum->kept_bytes ? 0 : whole < left ? whole : left;
        if (whole) {
            some = STRIPE_BYTES * whole;
            add_stripes(sum, copy, at, whole, how);
        } else
            some = keep(sum, copy, at, size, how);
        at += some, size -= some;
        if (how != NO_COPY)
            copy += some;
    }
}

uint64_t hot_sum_end(const Sum *sum) {
    uint64_t lanes[8], h = sum->length * P64_1;
    if (sum->length <= SUM_SHORT_BYTES)
        h = sum_240(sum->kept, sum->length);
    else {
        memcpy(lanes, sum->lanes, sizeof lanes);
        add_stripe(lanes, sum->last + sum->kept_bytes, secret + 192 - 64 - 7); /* the last 64 bytes, whatever is in already */
        for (int i = 0; i < 4; i++)
            h += folded(lanes[2 * i] ^ u64(secret + 11 + 16 * i), lanes[2 * i + 1] ^ u64(secret + 11 + 16 * i + 8));
        h = avalanche(h);
    }
    return h ? h : 1;
}
