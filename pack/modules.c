/* modules.c: the executable's modules in C; it replaces libpython's table, which lists all modules.
 *
 * One rule: modules that are not listed here are not linked. Some have large tables (unicodedata, a megabyte), and some
 * are harmful: `pwd`, `grp` and `spwd` have libc load the shared libraries that the host's nsswitch.conf names, which
 * crash a static program. Resolving host names does the same: the application uses addresses only.
 */
#include <Python.h>

/* The modules whose initialising function is PyInit_ and the name. */
#define NEEDED(X)                                                                                                     \
    X(_abc) X(_blake2) X(_codecs) X(_collections) X(_contextvars) X(_functools) X(_imp) X(_io) X(_json) X(_locale)    \
    X(_md5) X(_operator) X(_podwire) X(_sha1) X(_sha3) X(_signal) X(_socket) X(_sre) X(_stat) X(_string) X(_struct)   \
    X(_thread) X(_weakref) X(array) X(atexit) X(binascii) X(errno) X(fcntl) X(gc) X(itertools) X(posix) X(select)     \
    X(time)

#ifdef MORE_MODULES /* CPython's own tests */
#define MORE(X)                                                                                                       \
    X(_ast) X(_bisect) X(_csv) X(_datetime) X(_elementtree) X(_heapq) X(_opcode) X(_pickle) X(_posixsubprocess)       \
    X(_random) X(_statistics) X(_symtable) X(_tracemalloc) X(cmath) X(faulthandler) X(math) X(pyexpat) X(syslog)      \
    X(unicodedata) X(zlib)
#else
#define MORE(X)
#endif

#if PY_VERSION_HEX >= 0x030C0000
#define VERSION_S(X) X(_sha2) X(_typing)
#elif defined MORE_MODULES
#define VERSION_S(X) X(_sha256) X(_sha512) X(xxsubtype)
#else
#define VERSION_S(X) X(_sha256) X(_sha512)
#endif

/* In Python 3.12 traceback imports tokenize. */
#if PY_VERSION_HEX >> 16 == 0x030C || defined MORE_MODULES
#define TOKENS(X) X(_tokenize)
#else
#define TOKENS(X)
#endif

#define MODULES(X) NEEDED(X) VERSION_S(X) TOKENS(X) MORE(X)

PyObject *PyMarshal_Init(void);
PyObject *_PyWarnings_Init(void);
#define DECLARED(name) PyObject *PyInit_##name(void);
MODULES(DECLARED)

#define NAMED(name) {#name, PyInit_##name},
struct _inittab _PyImport_Inittab[] = {
    {"builtins", NULL},
    {"sys", NULL},
    {"marshal", PyMarshal_Init},
    {"_warnings", _PyWarnings_Init},
    MODULES(NAMED)
    {NULL, NULL},
};
