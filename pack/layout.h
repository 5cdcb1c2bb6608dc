/* layout.h: the grouping of the image's blocks, for alloc.c and image_builder.c. */
#ifndef PODWIRE_LAYOUT_H
#define PODWIRE_LAYOUT_H

#include <stddef.h>

/* Returns the address for the next block of this class and size if verbs use it, NULL for any address. */
void *layout_address(unsigned class, size_t size);

/* Records the address of that block. */
void layout_allocated(const void *block, unsigned class);

/* Returns whether the uses of this block are recorded now. If it were freed and allocated again, the uses of the new
 * block would be recorded as its own, and which one that is depends on process IDs and times. */
int layout_watches(const void *block);

/* Loads the groups that layout.py computed, none from an empty file; returns false on failure. */
int layout_load(const char *path);

/* From here on blocks are neither grouped nor numbered. */
void layout_end(void);

/* From here on records the number of each block; returns false without memory. */
int layout_learn(void);

/* From here on records which blocks of the first `pages` pages are written and read. */
int layout_watch(size_t pages);

/* Begins a step, 0 to 31, whose uses are recorded separately; returns false for more, since a block has 32 bits. */
int layout_step(unsigned step);

/* Stops recording, and writes the uses for layout.py. */
int layout_write(int fd);

/* Resets the state of this module, which must not be in the image. */
void layout_forget(void);

#endif
