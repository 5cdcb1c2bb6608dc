/* pages.c: the heap's array, and the used and free runs of its pages.
 *
 * One rule: the free list never has two adjacent runs, which limits fragmentation; except at the first page of an area,
 * since a run never crosses it.
 */
#include "pages.h"

#include <string.h>

/* A separate section puts the array after all other data: the file contains only its used part. */
char heap[HEAP_SIZE] __attribute__((aligned(4096), section(".bss.heap")));
size_t heap_pages_used, heap_image_pages;
int heap_sealed;

/* The first page of the area of large blocks that was never used; before pages_begin_image() the area counts as full. */
static size_t large_pages_end = HEAP_PACKED_PAGE;

unsigned char page_kind[PAGES];
uint32_t run_length[PAGES];

/* At the start of each free run. */
typedef struct run {
    struct run *next, *previous;
} Run;

static Run free_runs = {&free_runs, &free_runs};

static void run_unlink(size_t first)
{
    Run *run = page_address(first);

    run->previous->next = run->next;
    run->next->previous = run->previous;
    if (!heap_sealed)
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

static int begins_area(size_t page)
{
    return page == 0 || page == HEAP_LIBC_PAGES || page == HEAP_PACKED_PAGE;
}

void run_release(size_t first, size_t pages)
{
    size_t after = first + pages;

    page_kind[first] = PAGE_FREE;
    if (after < heap_pages_used && !begins_area(after) && page_kind[after] == RUN_FREE) {
        pages += run_length[after];
        run_unlink(after);
        page_kind[after] = PAGE_FREE;
    }
    if (!begins_area(first) && page_kind[first - 1] == RUN_FREE) {
        size_t before = run_length[first - 1];

        page_kind[first - 1] = PAGE_FREE;
        first -= before;
        pages += before;
        run_unlink(first);
    }
    run_mark_free(first, pages);
}

/* Allocates the first `pages` pages of the free run at `first`. */
static void run_take(size_t first, size_t pages)
{
    size_t length = run_length[first];

    run_unlink(first);
    page_kind[first] = page_kind[first + length - 1] = PAGE_FREE;
    if (length > pages)
        run_mark_free(first + pages, length - pages);
}

/* Returns the first page of a free run of at least `pages` pages that begins at `from` or later and before `to`; PAGES if
 * there is none. */
static size_t run_find(size_t pages, size_t from, size_t to)
{
    for (Run *run = free_runs.next; run != &free_runs; run = run->next) {
        size_t first = page_of(run);

        if (run_length[first] >= pages && first >= from && first < to)
            return first;
    }
    return PAGES;
}

/* Allocates from the area of large blocks; returns PAGES if it is full. */
static size_t large_allocate(size_t pages)
{
    size_t first = run_find(pages, HEAP_LIBC_PAGES, HEAP_PACKED_PAGE);

    if (first != PAGES) {
        run_take(first, pages);
    } else if (pages <= HEAP_PACKED_PAGE - large_pages_end) {
        first = large_pages_end;
        large_pages_end += pages;
    }
    return first;
}

void *run_allocate(size_t pages, unsigned char kind)
{
    size_t first = kind == RUN_USED && !heap_sealed ? large_allocate(pages) : PAGES;

    if (first == PAGES) {
        first = run_find(pages, heap_sealed ? 0 : HEAP_PACKED_PAGE, PAGES);
        if (first != PAGES)
            run_take(first, pages);
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

int run_resize(size_t first, size_t pages)
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
        else if (after == large_pages_end && more <= HEAP_PACKED_PAGE - large_pages_end && !heap_sealed)
            large_pages_end += more;
        else if (after < heap_pages_used && !begins_area(after) && page_kind[after] == RUN_FREE
                 && run_length[after] >= more)
            run_take(after, more);
        else
            return 0;
        run_length[first] = (uint32_t)pages;
    }
    return 1;
}

void page_count_free(const void *slot)
{
    size_t page = page_of(slot);

    if (page >= HEAP_LIBC_PAGES && page_kind[page] < PACKED && ++run_length[page] > PAGE / slot_size(page_kind[page]))
        run_release(page, 1);
}

/* Empties the list of free runs, and wipes its links. */
static void forget_free_runs(void)
{
    while (free_runs.next != &free_runs) {
        size_t first = page_of(free_runs.next);

        page_kind[first] = page_kind[first + run_length[first] - 1] = PAGE_FREE;
        run_unlink(first);
    }
}

void pages_begin_image(void)
{
    if (heap_pages_used > HEAP_LIBC_PAGES)
        heap_broken("libc allocated more than expected before main(): raise HEAP_LIBC_PAGES\n");
    forget_free_runs();
    heap_pages_used = HEAP_PACKED_PAGE;
    large_pages_end = HEAP_LIBC_PAGES;
}

/* Returns the first page after the last used one; wipes the lengths of the runs that were freed. */
static size_t forget_lengths(void)
{
    size_t end = 0, length;

    for (size_t page = 0; page < heap_pages_used; page += length) {
        int is_run = page_kind[page] == RUN_USED;

        length = is_run ? run_length[page] : 1;
        memset(&run_length[page + is_run], 0, (length - is_run) * sizeof *run_length);
        if (page_kind[page] != PAGE_FREE)
            end = page + length;
    }
    return end;
}

void pages_seal(void)
{
    forget_free_runs();
    heap_pages_used = heap_image_pages = forget_lengths();
    memset(page_kind, PAGE_FREE, HEAP_LIBC_PAGES);
    memset(run_length, 0, HEAP_LIBC_PAGES * sizeof *run_length);
    heap_sealed = SEALED;
}

/* ---- packed blocks ---- */

/* The packed blocks, and the class of the one that begins at each multiple of 16 bytes. */
static char *packed;
static unsigned char *packed_class;
size_t heap_hot_pages, heap_warm_pages, heap_common_pages;

char *heap_pack(size_t size, size_t hot, size_t warm, size_t common)
{
    size_t first, pages = pages_for(size);

    packed = run_allocate(pages, PACKED);
    packed_class = run_allocate(pages_for(pages * PAGE / 16), RUN_USED);
    if (!packed || !packed_class)
        return NULL;
    first = page_of(packed);
    memset(&page_kind[first], PACKED, pages);
    heap_hot_pages = pages_for(hot);
    heap_warm_pages = pages_for(warm);
    heap_common_pages = pages_for(common);
    return packed;
}

unsigned class_of(const void *slot)
{
    unsigned kind = page_kind[page_of(slot)];

    return kind == PACKED ? packed_class[((const char *)slot - packed) / 16] : kind;
}

void set_packed_class(const void *block, unsigned class)
{
    packed_class[((const char *)block - packed) / 16] = (unsigned char)class;
}
