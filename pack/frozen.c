/* frozen.c: replaces libpython's frozen modules of the standard library, which would be a second copy.
 *
 * libpython has the code of importlib, os and others as C data: nearly a megabyte. Each use of an object changes its
 * reference count, and these are scattered over 200 pages; layout.c can only group objects in the heap. So all modules
 * come from the bundles (freeze.py), including importlib.
 */
#include <Python.h>

#define Py_BUILD_CORE 1
#include "internal/pycore_import.h"

static const struct _frozen none[] = {{0}};
static const struct _module_alias no_aliases[] = {{0}};

const struct _frozen *_PyImport_FrozenBootstrap = none, *_PyImport_FrozenStdlib = none, *_PyImport_FrozenTest = none;
const struct _module_alias *_PyImport_FrozenAliases = no_aliases;
const struct _frozen *PyImport_FrozenModules; /* image_builder.c sets it */

#if PY_VERSION_HEX < 0x030D0000
int _Py_Deepfreeze_Init(void);
void _Py_Deepfreeze_Fini(void);

int _Py_Deepfreeze_Init(void)
{
    return 0;
}

void _Py_Deepfreeze_Fini(void)
{
}
#endif

#if PY_VERSION_HEX >> 16 == 0x030C
uint32_t _Py_next_func_version = 1; /* as no function has one yet */
#endif
