/* layout.h: which blocks of the image lie together; alloc.c asks, seed.c directs. */
#ifndef PODWIRE_LAYOUT_H
#define PODWIRE_LAYOUT_H

#include <stddef.h>

/* Slots of one class but of different groups never share a page. Group 0 is the rest, and all after the build. */
#define GROUPS 4

/* The group of the block of this class that is about to be allocated. */
unsigned layout_group(unsigned class);

/* That block lies here. */
void layout_placed(const void *block);

/* Uses the groups layout.py made of what an earlier seed learned; none if the file is empty. False if it cannot. */
int layout_load(const char *path);

/* From here on blocks are in group 0 and not numbered. */
void layout_end(void);

/* Learning: remembers from here on which block is which. False if there is no memory. */
int layout_learn(void);

/* Notes from here on which blocks in the first `pages` pages are written to, for each step, 0 to 7. */
int layout_watch(size_t pages);
void layout_step(unsigned step);

/* Ends watching. Writes, for each class, the number of its blocks and a byte for each, in which bits are steps. */
int layout_write(int fd);

/* Nothing of all this shows in the image. */
void layout_forget(void);

#endif
