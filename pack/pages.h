/* pages.h: the pages of the heap, for alloc.c and layout.c; callers hold the lock. */
#ifndef PODWIRE_PAGES_H
#define PODWIRE_PAGES_H

#include "alloc.h"

#include <stdint.h>

#define PAGE HEAP_PAGE
#define PAGES (HEAP_SIZE / PAGE)

/* page_kind: PAGE_FREE, the class of a page of slots, PACKED, or the first or last page of a run. */
enum { PAGE_FREE = 0, PACKED = 253, RUN_USED = 254, RUN_FREE = 255 };
extern unsigned char page_kind[PAGES];
extern uint32_t run_length[PAGES]; /* in pages: at the first page of a run, and at the last page of a free one */

/* SEALED: the image is complete, so freed bytes are not wiped, and large blocks may be mappings. WATCHED: learning. */
enum { SEALED = 1, WATCHED = 2 };
extern int heap_sealed;

/* Allocates a run of that many pages; returns NULL if the array is full. */
void *run_allocate(size_t pages, unsigned char kind);

/* Resizes the run at page `first` without moving it; returns false if the following pages are in use. */
int run_resize(size_t first, size_t pages);

/* Frees `pages` pages from `first` on. */
void run_release(size_t first, size_t pages);

/* Counts one free slot of a page; called once for each. The count is in `run_length`, which is 1 for a page of slots.
 * Releases the page when all its slots are free. */
void page_count_free(const void *slot);

void pages_begin_image(void);
void pages_seal(void);

/* Returns the class of a slot or packed block, 0 for other addresses. */
unsigned class_of(const void *slot);
void set_packed_class(const void *block, unsigned class);

/* Returns the slot size of a class (1 and up). */
size_t slot_size(unsigned class);

/* Prints a message and aborts. */
_Noreturn void heap_broken(const char *message);

static inline int in_heap(const void *p)
{
    return (const char *)p >= heap && (const char *)p < heap + HEAP_SIZE;
}

static inline size_t page_of(const void *p)
{
    return (size_t)((const char *)p - heap) / PAGE;
}

static inline void *page_address(size_t page)
{
    return heap + page * PAGE;
}

static inline size_t pages_for(size_t n)
{
    return (n + PAGE - 1) / PAGE;
}

#endif
