/* pages.h: pages of the heap, as pages.c keeps them and alloc.c uses them; the caller holds the lock. */
#ifndef PODWIRE_PAGES_H
#define PODWIRE_PAGES_H

#include "alloc.h"

#include <stdint.h>

#define PAGE HEAP_PAGE
#define PAGES (HEAP_SIZE / PAGE)

/* page_kind: PAGE_FREE, the class of a page of slots, a page of packed blocks, or what begins or ends there. */
enum { PAGE_FREE = 0, PACKED = 253, RUN_USED = 254, RUN_FREE = 255 };
extern unsigned char page_kind[PAGES];
extern uint32_t run_length[PAGES]; /* pages, at the first page of a run and at the last page of a free one */

/* The image is complete: freed bytes need no wiping, large blocks may lie elsewhere. WATCHED while the layout is learned. */
enum { SEALED = 1, WATCHED = 2 };
extern int heap_sealed;

/* A new run of that many pages, or NULL when the array is used up. */
void *run_allocate(size_t pages, unsigned char kind);

/* Makes the run at page `first` longer or shorter where it stands; false if what follows is in use. */
int run_resize(size_t first, size_t pages);

/* Frees that many pages from `first` on. */
void run_release(size_t first, size_t pages);

void pages_begin_image(void);
void pages_seal(void);

/* The class of a slot or packed block; 0 where there is none. */
unsigned class_of(const void *slot);
void set_packed_class(const void *block, unsigned class);

/* The size of the slots of a class, 1 and up. */
size_t slot_size(unsigned class);

/* Says what is wrong, and aborts. */
_Noreturn void heap_broken(const char *what);

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
