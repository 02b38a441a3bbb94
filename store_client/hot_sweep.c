/* Slots that a removal by name means: what node/drops.py looks for in whole pages. */
#include "hot.h"
#include "hot_slots.h"
#include <stdlib.h>
#include <string.h>

#define HASH_BYTES 32

typedef struct {
    uint64_t keyspace, before; /* 0: whatever its generation */
    uint32_t shard;
    const char *hashes; /* ascending; NULL: all */
    Py_ssize_t count;
    uint8_t begins[UINT16_MAX / 8 + 1]; /* a bit for each two bytes that a hash begins with: nearly all others end here */
} Wanted;

static uint16_t beginning(const char *hash) {
    uint16_t value;
    memcpy(&value, hash, sizeof value);
    return value;
}

static int named(const Wanted *wanted, const char *hash) {
    Py_ssize_t low = 0, high = wanted->count;
    uint16_t begin = beginning(hash);
    if (!(wanted->begins[begin / 8] >> begin % 8 & 1))
        return 0;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        int order = memcmp(hash, wanted->hashes + HASH_BYTES * middle, HASH_BYTES);
        if (order == 0)
            return 1;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return 0;
}

static int meant(const Wanted *wanted, const Header *header) {
    return header->keyspace == wanted->keyspace && header->word >> GENERATION_BITS && header->shard == wanted->shard &&
           (!wanted->before || (header->word & ((1ULL << GENERATION_BITS) - 1)) < wanted->before) &&
           (!wanted->hashes || named(wanted, header->block_hash));
}

/* How many slots of those pages are meant; their numbers go to `found`. */
static Py_ssize_t sweep(const Layout *layout, uint64_t first, uint64_t end, const Wanted *wanted, uint32_t *found) {
    Py_ssize_t count = 0;
    for (uint64_t page = first; page < end; page++) {
        uint64_t size = ((const uint32_t *)(uintptr_t)layout->page_table)[page], slots = size ? layout->page_bytes / size : 0;
        const Header *header = (const Header *)(uintptr_t)layout->headers + page * layout->headers_per_page;
        for (uint64_t index = 0; index < slots && index < layout->headers_per_page; index++)
            if (meant(wanted, &header[index]))
                found[count++] = (uint32_t)(page << SLOT_INDEX_BITS | index);
    }
    return count;
}

PyObject *hot_sweep(PyObject *self, PyObject *arguments) {
    PyObject *answer = NULL;
    Py_buffer layout_view;
    unsigned long long first, end, keyspace, before;
    unsigned shard;
    const char *hashes;
    Py_ssize_t bytes;
    if (!PyArg_ParseTuple(arguments, "y*KKKKIz#", &layout_view, &first, &end, &keyspace, &before, &shard, &hashes, &bytes))
        return NULL;
    const Layout *layout = layout_view.buf;
    if (layout_view.len == sizeof *layout && first <= end && end <= layout->page_count && bytes % HASH_BYTES == 0) {
        Wanted wanted = {.keyspace = keyspace, .before = before, .shard = shard, .hashes = hashes, .count = bytes / HASH_BYTES};
        for (Py_ssize_t i = 0; i < wanted.count; i++) {
            uint16_t begin = beginning(hashes + HASH_BYTES * i);
            wanted.begins[begin / 8] |= (uint8_t)(1 << begin % 8);
        }
        uint32_t *found = malloc((size_t)((end - first) * layout->headers_per_page + 1) * sizeof *found);
        if (found == NULL)
            PyErr_NoMemory();
        else
            answer = PyBytes_FromStringAndSize((const char *)found, 4 * sweep(layout, first, end, &wanted, found));
        free(found);
    } else
        PyErr_SetString(PyExc_ValueError, "no such pages, or no hashes");
    PyBuffer_Release(&layout_view);
    return answer;
}
