/* alloc.c: the malloc of the whole program, in one static array.
 *
 * Python's heap has to be part of the start-up image, so it must be one block at an address the linker chose: `heap`.
 * pymalloc is switched off (image_builder.c), so every Python object lives here as well, and there is one heap to understand.
 *
 * One rule: what a block needs to be freed is found from its address alone (page_kind, run_length, packed_class), so
 * that nothing but the caller's bytes lie in the heap and a build in which freed bytes are wiped is the same byte for
 * byte.
 *
 *   up to 2048 bytes   a slot in a page that holds slots of one size only; in the image, blocks that are used (layout.c)
 *                      are packed one behind the other, and a table has their sizes
 *   more               a run of whole pages; neighbouring free runs are joined. Also what is to be aligned to more than
 *                      16 bytes, as no packed block is, which is a slot like others when it has been freed
 *   256 KiB and more, or when the array is used up: a mapping of its own, never while the image is built
 *
 * The exception are small blocks when the array is used up: a mapping of a page for each would be 50 times what was
 * asked for. They share mappings, each with its size before it, and are kept for blocks of the same size when freed.
 *
 * Slots and runs left free by the build are forgotten by heap_seal(): a start writes to fresh zero pages, side by
 * side, instead of copying many pages of the image for the sake of one free slot on each.
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

#define OWN_MAPPING (256ul << 10)
#define TOO_MUCH (1ul << 46)

/* The slot sizes: steps of 16 bytes up to 512, then as many slots as fit a page 7, 6, ... 2 times. */
#define STEPS 32
#define SMALL_MAX 2048ul
static const unsigned short wide_slots[] = {576, 672, 816, 1024, 1360, 2048};

typedef struct slot {
    struct slot *next;
} Slot;

/* Lies directly before the caller's bytes of a mapping of its own; without `base` it is a slot of a shared one. */
typedef struct {
    void *base;
    size_t size;
} Mapping;

#define CLASSES (STEPS + 1 + sizeof wide_slots / sizeof *wide_slots)

static Slot *free_slots[CLASSES];

/* What follows the array when it is used up: slots that were freed, and the rest of the last shared mapping. */
#define SHARED_MAPPING (1ul << 20)
static Slot *spare_slots[CLASSES];
static char *shared, *shared_end;

/* Few programs here have threads, so a lock that yields is enough; fork() must not copy it held (launch.c). Without any
 * it is not taken, which saves 4 % of a verb's time. Opening it costs nothing. */
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

_Noreturn void heap_broken(const char *what)
{
    ssize_t ignored = write(2, what, strlen(what));

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

/* ---- slots and mappings of their own ---- */

static void *slot_allocate(unsigned class)
{
    Slot **list = &free_slots[class], *slot;
    size_t size = slot_size(class);

    slot = heap_sealed ? NULL : layout_place(class, size);
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
        layout_placed(slot, class);
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

/* Any block of n bytes; `alignment` is a power of two, 16 or more. */
static void *allocate(size_t alignment, size_t n)
{
    void *p = NULL;

    if (n > TOO_MUCH || alignment > TOO_MUCH) {
        errno = ENOMEM;
        return NULL;
    }
    if (alignment > 16 && n <= SMALL_MAX)
        n = SMALL_MAX + 1;
    heap_lock();
    if (n <= SMALL_MAX)
        p = slot_allocate(slot_class(n));
    else if (alignment <= PAGE && (n < OWN_MAPPING || !heap_sealed))
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
        heap_broken("free() or realloc() of what is not allocated\n");
    return slot_size(kind);
}

void free(void *p)
{
    int saved_errno = errno; /* POSIX 2024: free() keeps errno */
    size_t size = malloc_usable_size(p);

    if (!p)
        return;
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
        memset(p, 0, size); /* what was freed must not show in the image */
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

/* Whether the block could be made to hold n bytes without moving, giving back what it no longer needs. */
static int resize_in_place(void *p, size_t usable, size_t n)
{
    int fits = n <= usable && (n > usable / 2 || usable <= 64);

    if (in_heap(p) && page_kind[page_of(p)] == RUN_USED && n > SMALL_MAX && (n < OWN_MAPPING || !heap_sealed)) {
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

/* Forgets, and wipes, the links of all free slots. */
static void forget_free_slots(void)
{
    for (Slot **list = free_slots; list < free_slots + CLASSES; list++)
        while (*list) {
            Slot *slot = *list;

            *list = slot->next;
            slot->next = NULL;
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
