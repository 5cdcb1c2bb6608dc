/* alloc.h: the heap, for image_builder.c and launch.c. */
#ifndef PODWIRE_ALLOC_H
#define PODWIRE_ALLOC_H

#include <stddef.h>

/* Address space, not memory: a process under `ulimit -v` needs this much and some 30 MiB for the file. */
#define HEAP_PAGE 4096ul
#ifndef HEAP_SIZE
#define HEAP_SIZE (64ul << 20)
#endif

extern char heap[HEAP_SIZE];
extern size_t heap_pages_used;

/* After libc's pages: the number of pages with packed blocks that every start writes to, and that most verbs do. */
extern size_t heap_hot_pages, heap_warm_pages;

/* libc allocates blocks before main(), in every process: the image begins after these pages. */
#define HEAP_LIBC_PAGES 16
void heap_begin_image(void);

/* Reserves `size` bytes for packed blocks, first `hot` and `warm` bytes of them; returns their start, or NULL. */
char *heap_pack(size_t size, size_t hot, size_t warm);

/* Ends the build: wipes and forgets all free blocks. From here on large blocks may be separate mappings. */
void heap_seal(void);

void heap_lock(void);
void heap_unlock(void);

#endif
