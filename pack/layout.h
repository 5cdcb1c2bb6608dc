/* layout.h: which blocks of the image lie together; alloc.c asks, image_builder.c directs. */
#ifndef PODWIRE_LAYOUT_H
#define PODWIRE_LAYOUT_H

#include <stddef.h>

/* The place of the block of this class and size that is about to be allocated, if it is used; NULL: anywhere. */
void *layout_place(unsigned class, size_t size);

/* It lies here; while the layout is learned: a freed one is given again. */
void layout_placed(const void *block, unsigned class);

/* Uses the groups layout.py made of what an earlier image builder learned; none if the file is empty. False if it cannot. */
int layout_load(const char *path);

/* From here on blocks are placed anywhere and not numbered. */
void layout_end(void);

/* Learning: remembers from here on which block is which. False if there is no memory. */
int layout_learn(void);

/* Notes from here on which blocks in the first `pages` pages are written to and read, for each step, 0 to 31. */
int layout_watch(size_t pages);
void layout_step(unsigned step);

/* Ends watching, and writes for layout.py what was learned. */
int layout_write(int fd);

/* Nothing of all this shows in the image. */
void layout_forget(void);

#endif
