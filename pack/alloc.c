/* alloc.c: the malloc of the whole program, in one static array.
 *
 * Python's heap has to be part of the start-up image, so it must be one block at an address the linker chose: `heap`.
 * pymalloc is switched off (seed.c), so every Python object lives here as well, and there is one heap to understand.
 *
 * One rule: what a block needs to be freed is found from its address alone (page_kind, run_length), so that nothing
 * but the caller's bytes lie in the heap and a build in which freed bytes are wiped is the same byte for byte.
 *
 *   up to 2048 bytes   a slot in a page that holds slots of one size only
 *   more               a run of whole pages; neighbouring free runs are joined
 *   256 KiB and more, or when the array is used up: a mapping of its own, never while the image is built
 *
 * Slots and runs left free by the build are forgotten by heap_seal(): a start writes to fresh zero pages, side by
 * side, instead of copying many pages of the image for the sake of one free slot on each.
 */
#define _GNU_SOURCE
#include "alloc.h"

#include <errno.h>
#include <malloc.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES (HEAP_SIZE / PAGE)
#define OWN_MAPPING (256ul << 10)
#define TOO_MUCH (1ul << 46)

/* The slot sizes: steps of 16 bytes up to 512, then as many slots as fit a page 7, 6, ... 2 times. */
#define STEPS 32
#define SMALL_MAX 2048ul
static const unsigned short wide_slots[] = {576, 672, 816, 1024, 1360, 2048};

/* page_kind: PAGE_FREE, a slot class (1 and up), or the first page of a run. */
enum { PAGE_FREE = 0, RUN_USED = 254, RUN_FREE = 255 };

/* A section name of its own puts the array behind all other data: only its used part goes into the file. */
char heap[HEAP_SIZE] __attribute__((aligned(4096), section(".bss.heap")));
size_t heap_pages_used;

static unsigned char page_kind[PAGES];
static uint32_t run_length[PAGES]; /* pages, at the first page of a run and at the last page of a free one */
static int sealed;

typedef struct slot {
    struct slot *next;
} Slot;

typedef struct run {
    struct run *next, *previous;
} Run;

/* Lies directly before the caller's bytes of a mapping of its own. */
typedef struct {
    void *base;
    size_t size;
} Mapping;

static Slot *free_slots[STEPS + 1 + sizeof wide_slots / sizeof *wide_slots];
static Run free_runs = {&free_runs, &free_runs};

/* Few programs here have threads, so a lock that yields is enough; fork() must not copy it held (launch.c). */
static int locked;

void heap_lock(void)
{
    while (__atomic_exchange_n(&locked, 1, __ATOMIC_ACQUIRE))
        sched_yield();
}

void heap_unlock(void)
{
    __atomic_store_n(&locked, 0, __ATOMIC_RELEASE);
}

static _Noreturn void broken(const char *what)
{
    ssize_t ignored = write(2, what, strlen(what));

    (void)ignored;
    abort();
}

static int in_heap(const void *p)
{
    return (const char *)p >= heap && (const char *)p < heap + HEAP_SIZE;
}

static size_t page_of(const void *p)
{
    return (size_t)((const char *)p - heap) / PAGE;
}

static void *page_address(size_t page)
{
    return heap + page * PAGE;
}

static size_t pages_for(size_t n)
{
    return (n + PAGE - 1) / PAGE;
}

/* ---- slots ---- */

static unsigned slot_class(size_t n)
{
    unsigned wide = 0;

    if (n <= 16 * STEPS)
        return n ? (unsigned)((n + 15) / 16) : 1;
    while (wide_slots[wide] < n)
        wide++;
    return STEPS + 1 + wide;
}

static size_t slot_size(unsigned class)
{
    return class <= STEPS ? class * 16ul : wide_slots[class - STEPS - 1];
}

/* ---- runs of pages ---- */

static void run_unlink(size_t first)
{
    Run *run = page_address(first);

    run->previous->next = run->next;
    run->next->previous = run->previous;
    if (!sealed)
        memset(run, 0, sizeof *run);
}

static void run_mark_free(size_t first, size_t pages)
{
    Run *run = page_address(first);

    page_kind[first] = page_kind[first + pages - 1] = RUN_FREE;
    run_length[first] = run_length[first + pages - 1] = (uint32_t)pages;
    run->next = free_runs.next;
    run->previous = &free_runs;
    run->next->previous = run->previous->next = run;
}

static void run_release(size_t first, size_t pages)
{
    size_t after = first + pages;

    page_kind[first] = PAGE_FREE;
    if (after < heap_pages_used && page_kind[after] == RUN_FREE) {
        pages += run_length[after];
        run_unlink(after);
        page_kind[after] = PAGE_FREE;
    }
    if (first > 0 && page_kind[first - 1] == RUN_FREE) {
        size_t before = run_length[first - 1];

        page_kind[first - 1] = PAGE_FREE;
        first -= before;
        pages += before;
        run_unlink(first);
    }
    run_mark_free(first, pages);
}

/* Takes `pages` pages from the front of the free run at `first`. */
static void run_take(size_t first, size_t pages)
{
    size_t length = run_length[first];

    run_unlink(first);
    page_kind[first] = page_kind[first + length - 1] = PAGE_FREE;
    if (length > pages)
        run_mark_free(first + pages, length - pages);
}

static void *run_allocate(size_t pages, unsigned char kind)
{
    size_t first = PAGES;

    for (Run *run = free_runs.next; run != &free_runs; run = run->next)
        if (run_length[page_of(run)] >= pages) {
            first = page_of(run);
            run_take(first, pages);
            break;
        }
    if (first == PAGES) {
        if (pages > PAGES - heap_pages_used)
            return NULL;
        first = heap_pages_used;
        heap_pages_used += pages;
    }
    page_kind[first] = kind;
    run_length[first] = (uint32_t)pages;
    return page_address(first);
}

/* Makes the run at `first` longer or shorter where it stands; false if what follows is in use. */
static int run_resize(size_t first, size_t pages)
{
    size_t old = run_length[first], after = first + old;

    if (pages < old) {
        run_length[first] = (uint32_t)pages;
        run_release(first + pages, old - pages);
        return 1;
    }
    if (pages > old) {
        size_t more = pages - old;

        if (after == heap_pages_used && more <= PAGES - heap_pages_used)
            heap_pages_used += more;
        else if (after < heap_pages_used && page_kind[after] == RUN_FREE && run_length[after] >= more)
            run_take(after, more);
        else
            return 0;
        run_length[first] = (uint32_t)pages;
    }
    return 1;
}

static void *slot_allocate(unsigned class)
{
    Slot *slot = free_slots[class];
    size_t size = slot_size(class);

    if (!slot) {
        char *page = run_allocate(1, (unsigned char)class);

        if (!page)
            return NULL;
        for (char *p = page + (PAGE / size - 1) * size; p >= page; p -= size) {
            ((Slot *)p)->next = slot;
            slot = (Slot *)p;
        }
    }
    free_slots[class] = slot->next;
    slot->next = NULL;
    return slot;
}

/* ---- mappings of their own ---- */

static void *mapping_allocate(size_t alignment, size_t n)
{
    size_t size = pages_for(n + alignment + sizeof(Mapping)) * PAGE;
    char *base, *p;

    if (!sealed)
        broken("the heap array is too small for the image: raise HEAP_SIZE\n");
    base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    p = (char *)(((uintptr_t)base + sizeof(Mapping) + alignment - 1) & ~(alignment - 1));
    ((Mapping *)p)[-1] = (Mapping){base, size};
    return p;
}

static size_t mapping_usable(void *p)
{
    Mapping *mapping = (Mapping *)p - 1;

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
    if (n < alignment && alignment > 16)
        n = alignment; /* a slot whose size is a power of two is aligned to it, as its page is */
    if (alignment > 16 && n <= SMALL_MAX && (n & (n - 1)))
        n = 1ul << (64 - __builtin_clzl(n));
    heap_lock();
    if (n <= SMALL_MAX)
        p = slot_allocate(slot_class(n));
    else if (alignment <= PAGE && (n < OWN_MAPPING || !sealed))
        p = run_allocate(pages_for(n), RUN_USED);
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
    if (kind == PAGE_FREE || kind == RUN_FREE)
        broken("free() or realloc() of what is not allocated\n");
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

        munmap(mapping.base, mapping.size);
        errno = saved_errno;
        return;
    }
    if (!sealed)
        memset(p, 0, size); /* what was freed must not show in the image */
    heap_lock();
    if (page_kind[page_of(p)] == RUN_USED) {
        run_release(page_of(p), run_length[page_of(p)]);
    } else {
        Slot **list = &free_slots[page_kind[page_of(p)]];

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
    if (p && in_heap(p)) /* a new mapping is zero */
        memset(p, 0, n);
    return p;
}

/* Whether the block could be made to hold n bytes without moving, giving back what it no longer needs. */
static int resize_in_place(void *p, size_t usable, size_t n)
{
    int fits = n <= usable && (n > usable / 2 || usable <= 64);

    if (in_heap(p) && page_kind[page_of(p)] == RUN_USED && n > SMALL_MAX && (n < OWN_MAPPING || !sealed)) {
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
    if (!sealed && n < usable)
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

/* ---- the end of the build ---- */

void heap_seal(void)
{
    for (size_t class = 0; class < sizeof free_slots / sizeof *free_slots; class++)
        while (free_slots[class]) {
            Slot *slot = free_slots[class];

            free_slots[class] = slot->next;
            slot->next = NULL;
        }
    while (free_runs.next != &free_runs) {
        size_t first = page_of(free_runs.next);

        page_kind[first] = page_kind[first + run_length[first] - 1] = PAGE_FREE;
        run_unlink(first);
    }
    sealed = 1;
}
