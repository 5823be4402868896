/*
 * What a call through the C interface costs over the same call inside the compiled
 * replay loop. Both serve the same touches (and raw faults) of pages that are mapped,
 * in turns; the least of the rounds counts. Build and run as the Makefile of
 * examples/embed_c does:
 *
 *     cc -O2 $(python -m svmcore --cflags) bench/capi_overhead.c -o capi_overhead \
 *         $(python -m svmcore --ldflags) && PYTHON=$(which python) ./capi_overhead
 *
 * Prints one JSON object; `over_ns` is the figure that has a bar of 15 ns.
 */
#define _POSIX_C_SOURCE 200809L
#include <Python.h>
#include <svmcore/svmcore.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLS = 200000, ROUNDS = 15, PAGES = 4096 };
static const uint64_t BASE = UINT64_C(0x7f0000000000);

/* Both loops see the addresses in the same scattered order. */
static uint64_t address(uint32_t i) { return BASE + (uint64_t)(i * 2654435761u % PAGES) * 4096; }

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static const char SETUP[] =
    "import numpy as np, svmcore\n"
    "from svmcore._replay import OUTCOME, replay_chunk\n"
    "from svmcore.records import RECORD\n"
    "def prepare(kind):\n"
    "    space = svmcore.Space('gpu-80g')\n"
    "    space.map(BASE, PAGES * 4096)\n"
    "    space.access(BASE, PAGES * 4096, by='gpu0', write=True)\n"
    "    records = np.zeros(CALLS, RECORD)\n"
    "    i = np.arange(CALLS, dtype=np.uint32)\n"
    "    records['addr'] = BASE + (i * np.uint32(2654435761) % PAGES).astype('u8') * 4096\n"
    "    records['size'] = 64\n"
    "    records['kind'] = kind\n"
    "    records['proc'] = 1\n"
    "    outcomes = np.zeros(CALLS, OUTCOME)\n"
    "    def run():\n"
    "        replay_chunk(space.process, records, outcomes, raw=True)\n"
    "    return space, run\n";

static void die(const char *what)
{
    if (PyErr_Occurred())
        PyErr_Print();
    fprintf(stderr, "%s failed\n", what);
    exit(1);
}

static double host_access(const svmcore_api_t *api, svmcore_space *space)
{
    svmcore_access_t touch = {sizeof touch, 0, SVMCORE_GPU(0)};
    double start = seconds();
    uint32_t i;
    touch.bytes = 64;
    touch.t_ns = SVMCORE_NOW;
    for (i = 0; i < CALLS; ++i) {
        touch.addr = address(i);
        if (api->access(space, &touch) || touch.faults)
            die("access");
    }
    return seconds() - start;
}

static double host_fault(const svmcore_api_t *api, svmcore_space *space)
{
    svmcore_fault_t fault = {sizeof fault, 0, SVMCORE_GPU(0)};
    double start = seconds();
    uint32_t i;
    fault.t_ns = SVMCORE_NOW;
    for (i = 0; i < CALLS; ++i) {
        fault.addr = address(i);
        if (api->fault(space, &fault))
            die("fault");
    }
    return seconds() - start;
}

static double host_many(const svmcore_api_t *api, svmcore_space *space, svmcore_access_t *touches)
{
    double start = seconds();
    if (api->access_many(space, touches, CALLS, NULL))
        die("access_many");
    return seconds() - start;
}

static double loop(PyObject *run)
{
    double start = seconds();
    PyObject *done = PyObject_CallNoArgs(run);
    if (done == NULL)
        die("replay_chunk");
    Py_DECREF(done);
    return seconds() - start;
}

static void least(double *best, double value)
{
    if (value < *best)
        *best = value;
}

int main(void)
{
    const char *program = getenv("PYTHON");
    double best[5] = {1e9, 1e9, 1e9, 1e9, 1e9};
    const double ns = 1e9 / CALLS;
    const svmcore_api_t *api;
    svmcore_access_t *touches = calloc(CALLS, sizeof *touches);
    PyObject *globals, *prepared[2];
    svmcore_space *space[2];
    PyConfig config;
    PyStatus status;
    int kind, round;
    uint32_t i;

    PyConfig_InitPythonConfig(&config);
    status = PyConfig_SetBytesString(&config, &config.program_name, program ? program : "python3");
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
    api = svmcore_import();
    if (api == NULL || touches == NULL)
        die("svmcore_import");
    globals = PyDict_New();
    PyDict_SetItemString(globals, "__builtins__", PyEval_GetBuiltins());
    PyDict_SetItemString(globals, "BASE", PyLong_FromUnsignedLongLong(BASE));
    PyDict_SetItemString(globals, "PAGES", PyLong_FromLong(PAGES));
    PyDict_SetItemString(globals, "CALLS", PyLong_FromLong(CALLS));
    if (PyRun_String(SETUP, Py_file_input, globals, globals) == NULL)
        die("setup");
    for (kind = 0; kind < 2; ++kind) {
        prepared[kind] = PyObject_CallFunction(PyDict_GetItemString(globals, "prepare"), "i", kind);
        if (prepared[kind] == NULL)
            die("prepare");
        if (api->from_object(PyTuple_GetItem(prepared[kind], 0), &space[kind]))
            die("from_object");
    }
    for (i = 0; i < CALLS; ++i) {
        touches[i].size = sizeof *touches;
        touches[i].by = SVMCORE_GPU(0);
        touches[i].addr = address(i);
        touches[i].bytes = 64;
        touches[i].t_ns = SVMCORE_NOW;
    }
    for (round = 0; round < ROUNDS; ++round) {
        least(&best[0], loop(PyTuple_GetItem(prepared[0], 1)));
        least(&best[1], host_access(api, space[0]));
        least(&best[2], host_many(api, space[0], touches));
        least(&best[3], loop(PyTuple_GetItem(prepared[1], 1)));
        least(&best[4], host_fault(api, space[1]));
    }
    printf("{\"access\": {\"loop_ns\": %.1f, \"call_ns\": %.1f, \"over_ns\": %.1f, "
           "\"many_ns\": %.1f}, \"fault\": {\"loop_ns\": %.1f, \"call_ns\": %.1f, "
           "\"over_ns\": %.1f}}\n",
           best[0] * ns, best[1] * ns, (best[1] - best[0]) * ns, best[2] * ns, best[3] * ns,
           best[4] * ns, (best[4] - best[3]) * ns);
    for (kind = 0; kind < 2; ++kind)
        api->destroy(space[kind]);
    free(touches);
    return 0;
}
