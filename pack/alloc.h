/* alloc.h: what image_builder.c and launch.c need to know of the heap. */
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

/* Behind libc's: as many pages with packed blocks that every start writes to, and that most verbs do. */
extern size_t heap_hot_pages, heap_warm_pages;

/* What libc allocates before main() is its own, and new in every process: the image begins behind these pages. */
#define HEAP_LIBC_PAGES 16
void heap_begin_image(void);

/* Makes room for that many bytes of packed blocks, of which the first are hot, or warm. Returns where, or NULL. */
char *heap_pack(size_t size, size_t hot, size_t warm);

/* Ends the build: wipes and forgets all free blocks. From here on large blocks may be mappings of their own. */
void heap_seal(void);

void heap_lock(void);
void heap_unlock(void);

#endif
