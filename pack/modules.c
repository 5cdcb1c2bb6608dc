/* modules.c: the modules in C that the executable has; it takes the place of libpython's own table, which names them all.
 *
 * One rule: what is not named here is not linked. Some modules have large tables (unicodedata, a megabyte), and some
 * must not be there: to look up users, `pwd`, `grp` and `spwd` let libc load what the host's nsswitch.conf names: shared
 * libraries, which crash a static program. Host names have the same trouble: the application uses addresses only.
 */
#include <Python.h>

/* Those whose names and functions agree. */
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

/* Of Python 3.12, traceback imports tokenize. */
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
