/* alloc.c: the malloc of the whole program, in one static array.
 *
 * Python's heap is part of the start-up image, so it must be one block at an address that the linker chooses: `heap`.
 * pymalloc is disabled (image_builder.c), so all Python objects are in this heap, too.
 *
 * One rule: the address of a block determines how to free it (page_kind, run_length, packed_class). So the heap
 * contains only the callers' bytes, and since freed bytes are wiped, two builds have the same bytes.
 *
 *   up to 2048 bytes      a slot in a page of slots of one size. In the image, used blocks (layout.c) are packed
 *                         without gaps, and a table has their sizes; a freed packed block is a slot like any other
 *   more, or aligned to   a run of whole pages; adjacent free runs are merged
 *   more than 16 bytes
 *   256 KiB and more      a separate mapping, never while the image is built
 *
 * If the array is full, a block is a separate mapping, too. Small blocks then share mappings, since a page for each
 * would need 50 times the memory: each has its size before it, and a freed one is reused for a block of the same size.
 *
 * heap_seal() forgets the slots and runs that the build leaves free: a start writes to new zero pages, which are
 * adjacent, and copies no page of the image for a single free slot.
 */
#define _GNU_SOURCE
#include "alloc.h"
#include "layout.h"
#include "pages.h"

#include <errno.h>
#include <malloc.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>
#include <unistd.h>

#define MAPPING_MIN (256ul << 10)
#define SIZE_LIMIT (1ul << 46)

/* The slot sizes: steps of 16 bytes up to 512, then those of which 7, 6, ... 2 fill a page. */
#define STEPS 32
#define SMALL_MAX 2048ul
static const unsigned short wide_slots[] = {576, 672, 816, 1024, 1360, 2048};

typedef struct slot {
    struct slot *next;
} Slot;

/* Directly precedes the caller's bytes in a separate mapping; without `base` it is a slot of a shared mapping. */
typedef struct {
    void *base;
    size_t size;
} Mapping;

#define CLASSES (STEPS + 1 + sizeof wide_slots / sizeof *wide_slots)

static Slot *free_slots[CLASSES];

/* Outside the array, when it is full: freed slots, and the unused rest of the last shared mapping. */
#define SHARED_MAPPING (1ul << 20)
static Slot *spare_slots[CLASSES];
static char *shared, *shared_end;

/* Few programs here have threads, so a lock that yields is enough; fork() must not copy a locked lock (launch.c). A
 * process without threads does not lock, which saves 4 % of a verb's time; unlocking costs nothing. */
static int locked;

void heap_lock(void)
{
    if (__libc_single_threaded)
        return;
    while (__atomic_exchange_n(&locked, 1, __ATOMIC_ACQUIRE))
        sched_yield();
}

void heap_unlock(void)
{
    __atomic_store_n(&locked, 0, __ATOMIC_RELEASE);
}

_Noreturn void heap_broken(const char *message)
{
    ssize_t ignored = write(2, message, strlen(message));

    (void)ignored;
    abort();
}

static unsigned slot_class(size_t n)
{
    unsigned wide = 0;

    if (n <= 16 * STEPS)
        return n ? (unsigned)((n + 15) / 16) : 1;
    while (wide_slots[wide] < n)
        wide++;
    return STEPS + 1 + wide;
}

size_t slot_size(unsigned class)
{
    return class <= STEPS ? class * 16ul : wide_slots[class - STEPS - 1];
}

/* ---- slots and separate mappings ---- */

static void *slot_allocate(unsigned class)
{
    Slot **list = &free_slots[class], *slot;
    size_t size = slot_size(class);

    slot = heap_sealed ? NULL : layout_address(class, size);
    if (slot) {
        set_packed_class(slot, class);
        return slot;
    }
    slot = *list;
    if (!slot) {
        char *page = run_allocate(1, (unsigned char)class);

        if (!page)
            return NULL;
        for (char *p = page + (PAGE / size - 1) * size; p >= page; p -= size) {
            ((Slot *)p)->next = slot;
            slot = (Slot *)p;
        }
    }
    *list = slot->next;
    slot->next = NULL;
    if (heap_sealed != SEALED)
        layout_allocated(slot, class);
    return slot;
}

static void *mapping_allocate(size_t alignment, size_t n)
{
    size_t size = pages_for(n + alignment + sizeof(Mapping)) * PAGE;
    char *base, *p;

    if (!heap_sealed)
        heap_broken("the heap array is too small for the image: raise HEAP_SIZE\n");
    base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    p = (char *)(((uintptr_t)base + sizeof(Mapping) + alignment - 1) & ~(alignment - 1));
    ((Mapping *)p)[-1] = (Mapping){base, size};
    return p;
}

/* A slot outside the array. */
static void *spare_allocate(unsigned class)
{
    size_t size = slot_size(class);
    Slot *slot = spare_slots[class];

    if (slot) {
        spare_slots[class] = slot->next;
        return slot;
    }
    if ((size_t)(shared_end - shared) < sizeof(Mapping) + size) {
        void *base = mmap(NULL, SHARED_MAPPING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (base == MAP_FAILED)
            return NULL;
        shared = base;
        shared_end = shared + SHARED_MAPPING;
    }
    *(Mapping *)shared = (Mapping){NULL, size};
    slot = (Slot *)(shared + sizeof(Mapping));
    shared += sizeof(Mapping) + size;
    return slot;
}

static size_t mapping_usable(void *p)
{
    Mapping *mapping = (Mapping *)p - 1;

    if (!mapping->base)
        return mapping->size;
    return (size_t)((char *)mapping->base + mapping->size - (char *)p);
}

/* ---- malloc and its family ---- */

/* Allocates a block of n bytes; `alignment` is a power of two, 16 or more. */
static void *allocate(size_t alignment, size_t n)
{
    void *p = NULL;

    if (n > SIZE_LIMIT || alignment > SIZE_LIMIT) {
        errno = ENOMEM;
        return NULL;
    }
    if (alignment > 16 && n <= SMALL_MAX)
        n = SMALL_MAX + 1;
    heap_lock();
    if (n <= SMALL_MAX)
        p = slot_allocate(slot_class(n));
    else if (alignment <= PAGE && (n < MAPPING_MIN || !heap_sealed))
        p = run_allocate(pages_for(n), RUN_USED);
    if (!p && heap_sealed && n <= SMALL_MAX)
        p = spare_allocate(slot_class(n));
    if (!p)
        p = mapping_allocate(alignment, n);
    heap_unlock();
    if (!p)
        errno = ENOMEM;
    return p;
}

void *malloc(size_t n)
{
    return allocate(16, n);
}

size_t malloc_usable_size(void *p)
{
    unsigned char kind;

    if (!p)
        return 0;
    if (!in_heap(p))
        return mapping_usable(p);
    kind = page_kind[page_of(p)];
    if (kind == RUN_USED)
        return run_length[page_of(p)] * PAGE;
    kind = kind == RUN_FREE ? PAGE_FREE : (unsigned char)class_of(p);
    if (kind == PAGE_FREE)
        heap_broken("free() or realloc() of memory that is not allocated\n");
    return slot_size(kind);
}

void free(void *p)
{
    int saved_errno = errno; /* POSIX 2024: free() keeps errno */
    size_t size = malloc_usable_size(p);

    if (!p)
        return;
    if (layout_watches(p)) {
        ((Slot *)p)->next = NULL; /* the write of a free() outside the build is a use, too */
        return;
    }
    if (!in_heap(p)) {
        Mapping mapping = ((Mapping *)p)[-1];

        if (mapping.base) {
            munmap(mapping.base, mapping.size);
        } else {
            heap_lock();
            ((Slot *)p)->next = spare_slots[slot_class(size)];
            spare_slots[slot_class(size)] = p;
            heap_unlock();
        }
        errno = saved_errno;
        return;
    }
    if (!heap_sealed)
        memset(p, 0, size); /* freed bytes must not be in the image */
    heap_lock();
    if (page_kind[page_of(p)] == RUN_USED) {
        run_release(page_of(p), run_length[page_of(p)]);
    } else {
        Slot **list = &free_slots[class_of(p)];

        ((Slot *)p)->next = *list;
        *list = p;
    }
    heap_unlock();
}

void *calloc(size_t count, size_t size)
{
    size_t n;
    void *p;

    if (__builtin_mul_overflow(count, size, &n)) {
        errno = ENOMEM;
        return NULL;
    }
    p = malloc(n);
    if (p && (in_heap(p) || n <= SMALL_MAX)) /* a new mapping is zero */
        memset(p, 0, n);
    return p;
}

/* Resizes a block without moving it, and frees the rest; returns false if it must be moved. */
static int resize_in_place(void *p, size_t usable, size_t n)
{
    int fits = n <= usable && (n > usable / 2 || usable <= 64);

    if (in_heap(p) && page_kind[page_of(p)] == RUN_USED && n > SMALL_MAX && (n < MAPPING_MIN || !heap_sealed)) {
        heap_lock();
        fits = run_resize(page_of(p), pages_for(n));
        heap_unlock();
    }
    return fits;
}

void *realloc(void *p, size_t n)
{
    size_t usable;
    void *moved;

    if (!p)
        return malloc(n);
    if (!n) {
        free(p);
        return NULL;
    }
    usable = malloc_usable_size(p);
    if (!heap_sealed && n < usable)
        memset((char *)p + n, 0, usable - n);
    if (resize_in_place(p, usable, n))
        return p;
    moved = malloc(n);
    if (!moved)
        return n <= usable ? p : NULL;
    memcpy(moved, p, n < usable ? n : usable);
    free(p);
    return moved;
}

int posix_memalign(void **result, size_t alignment, size_t n)
{
    int saved_errno = errno;
    void *p;

    if (alignment < sizeof(void *) || (alignment & (alignment - 1)))
        return EINVAL;
    p = allocate(alignment < 16 ? 16 : alignment, n);
    errno = saved_errno;
    if (!p)
        return ENOMEM;
    *result = p;
    return 0;
}

void *memalign(size_t alignment, size_t n)
{
    void *p = NULL;
    int error;

    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    error = posix_memalign(&p, alignment, n);
    if (error)
        errno = error;
    return p;
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return memalign(alignment, n);
}

void *valloc(size_t n)
{
    return memalign(PAGE, n);
}

void *pvalloc(size_t n)
{
    return memalign(PAGE, pages_for(n) * PAGE);
}

/* ---- the build ---- */

/* Empties the lists of free slots, wipes their links, and releases pages without a used slot. */
static void forget_free_slots(void)
{
    for (Slot **list = free_slots; list < free_slots + CLASSES; list++)
        while (*list) {
            Slot *slot = *list;

            *list = slot->next;
            slot->next = NULL;
            page_count_free(slot);
        }
}

void heap_begin_image(void)
{
    forget_free_slots();
    pages_begin_image();
}

void heap_seal(void)
{
    forget_free_slots();
    pages_seal();
}
