/* pages.c: the array that is the heap, and runs of its pages in use or free.
 *
 * One rule: the free list of a zone never has two runs that touch, so that large blocks do not crumble.
 *
 * While the image is built each group of blocks (layout.h) has its zone of the array; a process has one zone.
 */
#include "pages.h"

#include "layout.h"

#include <string.h>

/* A section name of its own puts the array behind all other data: only its used part goes into the file. */
char heap[HEAP_SIZE] __attribute__((aligned(4096), section(".bss.heap")));
int heap_sealed;

unsigned char page_kind[PAGES];
uint32_t run_length[PAGES];

/* Lies at the start of a free run. */
typedef struct run {
    struct run *next, *previous;
} Run;

/* Pages `first` to `limit`, of which those from `end` on were never used. */
typedef struct {
    size_t first, end, limit;
    Run *free;
} Zone;

static Zone zones[GROUPS] = {{.limit = PAGES}};

unsigned group_at(size_t page)
{
    unsigned group = heap_sealed ? 0 : GROUPS - 1;

    while (group && !(page >= zones[group].first && page < zones[group].limit))
        group--;
    return group;
}

size_t heap_pages_used(void)
{
    return zones[0].end;
}

static void run_unlink(size_t first)
{
    Run *run = page_address(first);

    if (run->next)
        run->next->previous = run->previous;
    *(run->previous ? &run->previous->next : &zones[group_at(first)].free) = run->next;
    if (!heap_sealed)
        memset(run, 0, sizeof *run);
}

static void run_mark_free(size_t first, size_t pages)
{
    Run *run = page_address(first), **list = &zones[group_at(first)].free;

    page_kind[first] = page_kind[first + pages - 1] = RUN_FREE;
    run_length[first] = run_length[first + pages - 1] = (uint32_t)pages;
    *run = (Run){*list, NULL};
    if (*list)
        (*list)->previous = run;
    *list = run;
}

void run_release(size_t first, size_t pages)
{
    Zone *zone = &zones[group_at(first)];
    size_t after = first + pages;

    page_kind[first] = PAGE_FREE;
    if (after < zone->end && page_kind[after] == RUN_FREE) {
        pages += run_length[after];
        run_unlink(after);
        page_kind[after] = PAGE_FREE;
    }
    if (first > zone->first && page_kind[first - 1] == RUN_FREE) {
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

void *run_allocate(unsigned group, size_t pages, unsigned char kind)
{
    Zone *zone = &zones[group];
    Run *run = zone->free;
    size_t first;

    while (run && run_length[page_of(run)] < pages)
        run = run->next;
    if (run) {
        first = page_of(run);
        run_take(first, pages);
    } else if (pages <= zone->limit - zone->end) {
        first = zone->end;
        zone->end += pages;
    } else {
        return group ? run_allocate(0, pages, kind) : NULL;
    }
    page_kind[first] = kind;
    run_length[first] = (uint32_t)pages;
    return page_address(first);
}

int run_resize(size_t first, size_t pages)
{
    Zone *zone = &zones[group_at(first)];
    size_t old = run_length[first], after = first + old;

    if (pages < old) {
        run_length[first] = (uint32_t)pages;
        run_release(first + pages, old - pages);
        return 1;
    }
    if (pages > old) {
        size_t more = pages - old;

        if (!heap_sealed)
            return 0; /* whether a block moves, and counts as a new one, must not depend on its neighbours (layout.c) */
        if (after == zone->end && more <= zone->limit - zone->end)
            zone->end += more;
        else if (after < zone->end && page_kind[after] == RUN_FREE && run_length[after] >= more)
            run_take(after, more);
        else
            return 0;
        run_length[first] = (uint32_t)pages;
    }
    return 1;
}

/* Forgets, and wipes, the links of all free runs. */
static void forget_free_runs(void)
{
    for (Zone *zone = zones; zone < zones + GROUPS; zone++)
        while (zone->free) {
            size_t first = page_of(zone->free);

            page_kind[first] = page_kind[first + run_length[first] - 1] = PAGE_FREE;
            run_unlink(first);
        }
}

void pages_begin_image(void)
{
    if (zones[0].end > HEAP_LIBC_PAGES)
        heap_broken("libc allocated more than expected before main(): raise HEAP_LIBC_PAGES\n");
    forget_free_runs();
    zones[0].first = zones[0].end = HEAP_LIBC_PAGES;
}

void pages_divide(const uint32_t *pages)
{
    size_t next = HEAP_LIBC_PAGES;

    for (unsigned group = 1; group < GROUPS; group++) {
        zones[group] = (Zone){next, next, next + pages[group], NULL};
        next = zones[group].limit;
    }
    zones[0] = (Zone){next, next, PAGES, NULL};
}

void pages_seal(void)
{
    forget_free_runs();
    memset(&zones[1], 0, sizeof zones - sizeof zones[0]);
    zones[0].first = 0;
    memset(page_kind, PAGE_FREE, HEAP_LIBC_PAGES);
    memset(run_length, 0, HEAP_LIBC_PAGES * sizeof *run_length);
    heap_sealed = 1;
}
