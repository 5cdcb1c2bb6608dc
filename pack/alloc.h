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
extern size_t heap_image_pages; /* in the file */

/* Numbers of pages from HEAP_PACKED_PAGE on, each including the one before: up to the end of the packed blocks that every
 * start writes to, that most verbs write to, and that both only read. */
extern size_t heap_hot_pages, heap_warm_pages, heap_common_pages;

/* libc allocates blocks before main(), in every process: the image begins after these pages. */
#define HEAP_LIBC_PAGES 16
void heap_begin_image(void);

/* The area of the image's large blocks: of these verbs read a tenth, and a start from disk reads all of them at once. If
 * it is full, the others are among the small blocks. */
#define HEAP_LARGE_PAGES 176
#define HEAP_PACKED_PAGE (HEAP_LIBC_PAGES + HEAP_LARGE_PAGES)

/* Reserves `size` bytes for packed blocks; `hot`, `warm` and `common` are the ends of the parts above, in bytes. Returns
 * their start, or NULL. */
char *heap_pack(size_t size, size_t hot, size_t warm, size_t common);

/* Ends the build: wipes and forgets all free blocks. From here on large blocks may be separate mappings. */
void heap_seal(void);

void heap_lock(void);
void heap_unlock(void);

#endif
