/* One program with a hard link for each program's name; it runs the sources in PROJECT with .venv's packages.
 *
 * One rule: apart from the time to start, a program behaves as the built file: argv[0] and /proc/self/exe name it, and
 * Python reads neither the environment nor the disk for its configuration (compare pack/image_builder.c).
 */
#include <Python.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#define LIBRARY "/usr/lib/python" VERSION

static void check(PyStatus status)
{
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
}

/* As pack/launch.c does. */
static void occupy_standard_fds(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 1 ? O_RDONLY : O_RDWR) < 0 && open("/", O_PATH) < 0)
            _exit(1);
}

static void initialise_python(int argc, char **argv)
{
    static const wchar_t *const paths[] = {
        L"" PROJECT, L"" LIBRARY, L"" LIBRARY "/lib-dynload", L"" PROJECT "/.venv/lib/python" VERSION "/site-packages",
    };
    PyPreConfig pre;
    PyConfig config;

    PyPreConfig_InitIsolatedConfig(&pre);
    pre.utf8_mode = 1;
    check(Py_PreInitialize(&pre));
    PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0;
    config.pathconfig_warnings = 0;
    config.write_bytecode = 0;
    config.optimization_level = 2;
    config.parse_argv = 0;
    config.use_hash_seed = 1;
    config.hash_seed = 0;
    config.module_search_paths_set = 1;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        check(PyWideStringList_Append(&config.module_search_paths, paths[i]));
    check(PyConfig_SetBytesString(&config, &config.program_name, "podwire"));
    check(PyConfig_SetBytesString(&config, &config.home, "/"));
    check(PyConfig_SetBytesString(&config, &config.pycache_prefix, BYTECODE));
    check(PyConfig_SetBytesArgv(&config, argc, argv));
    check(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
}

int main(int argc, char **argv)
{
    PyObject *module, *status;

    occupy_standard_fds();
    initialise_python(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    module = PyImport_ImportModule("tests.mutants.start");
    status = module ? PyObject_CallMethod(module, "start", NULL) : NULL;
    if (!status) {
        PyErr_Print();
        _exit(1);
    }
    _exit((int)PyLong_AsLong(status));
}
