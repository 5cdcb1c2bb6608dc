/* frozen.c: takes the place of what libpython has in it of the standard library in Python: one copy is enough.
 *
 * libpython holds the code of importlib, os and others as C data, nearly a megabyte, whose reference counts, which
 * change whenever something is used, lie scattered over 200 pages; layout.c can only bring together what is in the heap.
 * So all of it comes from the bundles (freeze.py), importlib too.
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
