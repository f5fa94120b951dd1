/* The standalone program: an interpreter with all of its own modules compiled in.
 *
 * Other modules are in the folder `lib` beside the program or, with -DSINGLE, in an archive at the
 * program's own end, which `pyz/unpack.py` unpacks once.
 *
 * Nothing of the node changes what runs: no environment variable and no file is read for the
 * interpreter's sake, as with `python -I`.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#ifdef SINGLE
#define START_PROGRAM "import unpack; unpack.start()\n"
#else
#define START_PROGRAM                                                                              \
    "import one_file; one_file.install(sys.path[0])\n"                                             \
    "from pycrictl.__main__ import run; run()\n"
#endif

#define START "import sys; sys.frozen = True\n" START_PROGRAM

#define CHECK(call)                                                                                \
    do {                                                                                           \
        PyStatus status = call;                                                                    \
        if (PyStatus_Exception(status)) {                                                          \
            Py_ExitStatusException(status);                                                        \
        }                                                                                          \
    } while (0)

static PyStatus
append_path(PyConfig *config, const char *path)
{
    wchar_t *decoded = Py_DecodeLocale(path, NULL);
    if (decoded == NULL) {
        return PyStatus_NoMemory();
    }
    PyStatus status = PyWideStringList_Append(&config->module_search_paths, decoded);
    PyMem_RawFree(decoded);
    return status;
}

int
main(int argc, char **argv)
{
    char program[PATH_MAX];
    char modules[PATH_MAX + sizeof "/lib"];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) {
        fputs("pycrictl: cannot find its own files: /proc is not mounted\n", stderr);
        return 1;
    }
    program[length] = '\0';
    strcpy(modules, program);
#ifndef SINGLE
    strcpy(strrchr(modules, '/'), "/lib");
#endif

    PyPreConfig preconfig;
    PyPreConfig_InitPythonConfig(&preconfig);
    preconfig.isolated = 1;
    preconfig.use_environment = 0;
    preconfig.parse_argv = 0;
    CHECK(Py_PreInitialize(&preconfig));

    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.isolated = 1;
    config.use_environment = 0;
    config.parse_argv = 0;
    config.safe_path = 1;
    config.site_import = 0;
    /* Ctrl-C shall end the program at once until it says otherwise: the interpreter's own handler
     * would show where it was while modules were loaded. */
    config.install_signal_handlers = 0;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    config.user_site_directory = 0;
    config.write_bytecode = 0;
    config.module_search_paths_set = 1;
    CHECK(append_path(&config, modules));
    CHECK(PyConfig_SetBytesString(&config, &config.executable, program));
    CHECK(PyConfig_SetBytesString(&config, &config.program_name, program));
    CHECK(PyConfig_SetBytesString(&config, &config.prefix, modules));
    CHECK(PyConfig_SetBytesString(&config, &config.exec_prefix, modules));
    CHECK(PyConfig_SetBytesString(&config, &config.base_prefix, modules));
    CHECK(PyConfig_SetBytesString(&config, &config.base_exec_prefix, modules));
    CHECK(PyConfig_SetBytesArgv(&config, argc, argv));
    CHECK(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
    /* As config.run_command it would load linecache, for tracebacks that show it. */
    int status = PyRun_SimpleString(START);
    return Py_FinalizeEx() < 0 || status < 0;
}
