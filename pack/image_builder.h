/* image_builder.h: what the two halves of the executable share: image_builder.c runs at build time, launch.c at every start. */
#ifndef PODWIRE_IMAGE_BUILDER_H
#define PODWIRE_IMAGE_BUILDER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Part of the image: */
extern int image_ready;         /* false only in the image builder, which thereby knows that it has an image to make */
extern PyObject *image_start;   /* boot.start: runs the application, returns the exit status */
extern PyObject *image_environ; /* the dictionary behind os.environ */

/* Builds the image, or learns its layout: image-builder dump|learn FILE GROUPS BUNDLE... */
int image_builder_main(int argc, char **argv);

/* Undoes, before the dump, what launch.c does again at every start. */
void forget_process(void);

#endif
