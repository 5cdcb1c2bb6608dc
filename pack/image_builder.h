/* image_builder.h: shared by image_builder.c, which runs at build time, and launch.c, which runs at every start. */
#ifndef PODWIRE_IMAGE_BUILDER_H
#define PODWIRE_IMAGE_BUILDER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Part of the image: */
extern int image_ready;         /* false in the image builder, true in the executable */
extern PyObject *image_start;   /* boot.start: runs the application, returns the exit status */
extern PyObject *image_environ; /* the dictionary behind os.environ */

/* Builds the image, or learns its layout: image-builder dump|learn FILE OBJECTS GROUPS BUNDLE... Before the dump, it
 * writes the number of objects of each type to the file OBJECTS. */
int image_builder_main(int argc, char **argv);

/* Resets, before the dump, the state that launch.c sets at every start. */
void forget_process(void);

#endif
