/* Slots and their headers in a mapped segment, for the files that read them. */
#ifndef MOONPOOL_HOT_SLOTS_H
#define MOONPOOL_HOT_SLOTS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

/* schemas/header.py */
typedef struct {
    uint64_t word, keyspace;
    uint16_t rank, hash_bytes;
    uint32_t position;
    uint64_t length, checksum, session;
    char block_hash[32], parent_hash[32];
    uint32_t shard;
    uint16_t key_bytes, flags;
    uint64_t put_id;
} Header;
#define HEADER_BYTES 128
_Static_assert(sizeof(Header) == HEADER_BYTES, "a header has 128 bytes");

#define COMMITTED 2ULL
#define GENERATION_BITS 56
#define SLOT_INDEX_BITS 16

/* What transports/mapped.py says of a segment: addresses in this process, and how its pages are cut. */
typedef struct {
    uint64_t data, headers, page_table, page_bytes, page_count, headers_per_page;
} Layout;

/* Where a slot's bytes begin; 0 where slot and length don't lie inside their page as it is cut now. */
static inline uint64_t hot_slot_address(const Layout *layout, uint32_t slot, uint64_t length) {
    uint64_t page = slot >> SLOT_INDEX_BITS, index = slot & ((1 << SLOT_INDEX_BITS) - 1);
    if (page >= layout->page_count)
        return 0;
    uint64_t size = ((const volatile uint32_t *)(uintptr_t)layout->page_table)[page];
    if (!size || index >= layout->page_bytes / size || index >= layout->headers_per_page || length > size)
        return 0;
    return layout->data + page * layout->page_bytes + index * size;
}

static inline const volatile Header *hot_header(const Layout *layout, uint32_t slot) {
    uint64_t row = (slot >> SLOT_INDEX_BITS) * layout->headers_per_page + (slot & ((1 << SLOT_INDEX_BITS) - 1));
    return (const volatile Header *)(uintptr_t)layout->headers + row;
}

/* A header as it is at one moment, as far as its word is what it was before: whoever takes a slot changes the word first and
 * writes it last (I3), so what was read before the word belongs to it, or the word is another one. */
static inline void hot_copy_header(Header *to, const volatile Header *from) {
    memcpy(to, (const void *)from, sizeof *to);
    atomic_thread_fence(memory_order_acquire);
    to->word = from->word;
}

/* What a header has to say of an object's bytes (I3): schemas/header.py's holds. `hash` may be shorter than a header's,
 * which has zeros behind it then. */
typedef struct {
    uint64_t generation, keyspace, length;
    int rank;
    const char *hash;
    size_t hash_bytes;
} Asked;

static inline int hot_holds(const volatile Header *header, Asked asked) {
    static const char zeros[32];
    const char *hash = (const char *)header->block_hash;
    return header->word == (asked.generation | COMMITTED << GENERATION_BITS) && header->keyspace == asked.keyspace &&
           header->rank == asked.rank && header->length == asked.length && !memcmp(hash, asked.hash, asked.hash_bytes) &&
           !memcmp(hash + asked.hash_bytes, zeros, sizeof zeros - asked.hash_bytes);
}

#endif
