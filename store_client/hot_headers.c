/* Headers of slots that one put has: what node/naming.py does for each of them. */
#include "hot.h"
#include "hot_slots.h"
#include <stdatomic.h>
#include <string.h>

#define CLASS_BYTES_MIN 1024 /* node/layout.py: object_slot_bytes */
#define CLASS_STEPS 8
#define KEY_SHARE 64
#define KEY_BYTES_MIN 64
#define KEY_BYTES_MAX 4096
#define LENGTH_MAX (1ULL << 40)

typedef struct {
    Py_buffer layout, slots, header, lengths;
    PyObject *keys;
    const char *hashes, *parent;
    Py_ssize_t count, hash_bytes, parent_bytes;
    uint64_t generation, slot_bytes;
    int by_class;
} Names;

static uint64_t class_bytes(uint64_t size) {
    uint64_t power = 1, keyed, step;
    size = size < CLASS_BYTES_MIN ? CLASS_BYTES_MIN : size;
    while (power * 2 < size)
        power *= 2;
    keyed = power / KEY_SHARE < KEY_BYTES_MIN ? KEY_BYTES_MIN : power / KEY_SHARE;
    keyed = power + (keyed > KEY_BYTES_MAX ? KEY_BYTES_MAX : keyed);
    step = power / CLASS_STEPS;
    return size <= keyed ? keyed : (size + step - 1) / step * step;
}

/* The key text of an object, empty where there are none; NULL where it is something else. */
static const char *key_of(const Names *names, Py_ssize_t i, Py_ssize_t *length) {
    char *text = NULL;
    *length = 0;
    if (names->keys == NULL)
        return "";
    if (PyBytes_AsStringAndSize(PyList_GetItem(names->keys, i), &text, length) < 0)
        PyErr_Clear();
    return text;
}

/* Whether each object fits its slot, and each slot its page. */
static int fit(const Names *names, uint64_t *total) {
    const Layout *layout = names->layout.buf;
    *total = 0;
    for (Py_ssize_t i = 0; i < names->count; i++) {
        uint32_t slot = ((const uint32_t *)names->slots.buf)[i];
        uint64_t page = slot >> SLOT_INDEX_BITS, index = slot & ((1 << SLOT_INDEX_BITS) - 1);
        uint64_t length = ((const uint64_t *)names->lengths.buf)[i];
        Py_ssize_t key_bytes;
        if (key_of(names, i, &key_bytes) == NULL)
            return 0;
        if (page >= layout->page_count || index >= layout->headers_per_page || index >= layout->page_bytes / names->slot_bytes)
            return 0;
        if (length > LENGTH_MAX || key_bytes > UINT16_MAX || length + (uint64_t)key_bytes > names->slot_bytes)
            return 0;
        if (names->by_class && class_bytes(length + (uint64_t)key_bytes) != names->slot_bytes)
            return 0;
        *total += length;
    }
    return 1;
}

/* Everything, and only then the words (I3). */
static void name_all(const Names *names) {
    const Layout *layout = names->layout.buf;
    const Header *like = names->header.buf;
    for (int words = 0; words < 2; words++) {
        for (Py_ssize_t i = 0; i < names->count; i++) {
            uint32_t slot = ((const uint32_t *)names->slots.buf)[i];
            uint64_t page = slot >> SLOT_INDEX_BITS, index = slot & ((1 << SLOT_INDEX_BITS) - 1);
            Header *header = (Header *)(uintptr_t)layout->headers + page * layout->headers_per_page + index;
            if (words) {
                *(volatile uint64_t *)&header->word = like->word + names->generation + (uint64_t)i;
                continue;
            }
            Header made = *like;
            Py_ssize_t key_bytes;
            const char *key = key_of(names, i, &key_bytes), *hash = names->hashes + i * names->hash_bytes;
            made.length = ((const uint64_t *)names->lengths.buf)[i];
            made.key_bytes = (uint16_t)key_bytes;
            memcpy(made.block_hash, hash, (size_t)names->hash_bytes);
            if (names->parent_bytes) { /* of a chain: each the parent of the next one */
                made.position += (uint32_t)i;
                memcpy(made.parent_hash, i ? hash - names->hash_bytes : names->parent, (size_t)names->hash_bytes);
            }
            uint64_t at = layout->data + page * layout->page_bytes + index * names->slot_bytes + made.length;
            memcpy((void *)(uintptr_t)at, key, (size_t)key_bytes);
            memcpy((char *)header + 8, (const char *)&made + 8, sizeof made - 8);
        }
        atomic_thread_fence(memory_order_seq_cst);
    }
}

PyObject *hot_name_slots(PyObject *self, PyObject *arguments) {
    PyObject *objects[4];
    unsigned long long generation, slot_bytes;
    Py_ssize_t hashes_bytes;
    Names names = {0};
    if (!PyArg_ParseTuple(arguments, "(OOOO)KKpy#y#O", &objects[0], &objects[1], &objects[2], &objects[3], &generation,
                          &slot_bytes, &names.by_class, &names.hashes, &hashes_bytes, &names.parent, &names.parent_bytes,
                          &names.keys))
        return NULL;
    Py_buffer *views[4] = {&names.layout, &names.slots, &names.header, &names.lengths};
    int viewed = 0;
    while (viewed < 4 && !PyObject_GetBuffer(objects[viewed], views[viewed], PyBUF_C_CONTIGUOUS))
        viewed++;
    uint64_t total = 0;
    int named = -1;
    if (viewed == 4) {
        names.generation = generation, names.slot_bytes = slot_bytes;
        names.count = names.lengths.len / 8;
        names.hash_bytes = names.count ? hashes_bytes / names.count : 0;
        names.keys = names.keys == Py_None ? NULL : names.keys;
        if (names.layout.len == sizeof(Layout) && names.header.len == sizeof(Header) && names.lengths.len == 8 * names.count &&
            names.count <= names.slots.len / 4 && names.hash_bytes <= 32 && names.hash_bytes * names.count == hashes_bytes &&
            (!names.parent_bytes || names.parent_bytes == names.hash_bytes) && slot_bytes &&
            (!names.keys || (PyList_Check(names.keys) && PyList_Size(names.keys) == names.count)))
            named = fit(&names, &total);
        else
            PyErr_SetString(PyExc_ValueError, "columns that don't fit each other");
        if (named == 1)
            name_all(&names);
    }
    while (viewed)
        PyBuffer_Release(views[--viewed]);
    if (named < 0)
        return NULL;
    return named ? PyLong_FromUnsignedLongLong(total) : PyLong_FromLong(-1);
}
