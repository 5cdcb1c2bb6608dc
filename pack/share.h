/* share.h: sharing equal parts of code objects, for image_builder.c. */
#ifndef SHARE_H
#define SHARE_H

/* From here on equal parts of functions are shared; returns false without memory. */
int share_begin(void);

/* Stops sharing, before the dump. */
void share_end(void);

#endif
