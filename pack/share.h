/* share.h: what image_builder.c asks of share.c. */
#ifndef SHARE_H
#define SHARE_H

/* From here on equal parts of functions are shared; whether it can be done. */
int share_begin(void);

/* Up to here, before the dump. */
void share_end(void);

#endif
