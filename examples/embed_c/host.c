/*
 * A C host with its own event loop: two agents take turns on one buffer, and the
 * loop asks svmcore how long each touch takes. Python is started for svmcore
 * alone; the loop itself runs without the GIL.
 */
#include <Python.h>
#include <svmcore/svmcore.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFER UINT64_C(0x7f0000000000)
#define MIB (UINT64_C(1) << 20)

/* ---- the host's event queue: a list in order of time ---- */

struct event {
    uint64_t t_ns;
    void (*run)(struct event *self);
    struct event *next;
    int agent;
    uint64_t offset;
};

static struct event *queue;

static void schedule(struct event *event, uint64_t t_ns)
{
    struct event **at = &queue;
    event->t_ns = t_ns;
    while (*at && (*at)->t_ns <= t_ns)
        at = &(*at)->next;
    event->next = *at;
    *at = event;
}

/* ---- what the host knows of svmcore ---- */

static const svmcore_api_t *api;
static svmcore_space *space;

static void must(int code, const char *what)
{
    char text[256] = "";
    if (code == 0)
        return;
    api->last_error(space, text, sizeof text);
    fprintf(stderr, "%s: errno %d: %s\n", what, -code, text);
    exit(1);
}

static int watch(void *user, const svmcore_event_t *event)
{
    unsigned *unmaps = user;
    if (event->kind == SVMCORE_EVENT_UNMAP)
        ++*unmaps; /* here a host drops the lines of its own TLBs */
    if (event->kind == SVMCORE_EVENT_MIGRATE)
        printf("%10" PRIu64 "  moves %4" PRIu64 " KiB from %u to %u\n", event->t_ns,
               event->value / 1024, event->source, event->target);
    return 0;
}

/* An agent touches 1 MiB, waits for the answer, and goes on after 2 us of work. */
static void agent_step(struct event *self)
{
    svmcore_access_t touch = {sizeof touch, SVMCORE_WRITE | SVMCORE_QUEUE, 0};
    int code;
    touch.by = (uint8_t)self->agent;
    touch.addr = BUFFER + self->offset;
    touch.bytes = MIB;
    touch.t_ns = self->t_ns;
    code = api->access(space, &touch);
    if (code && touch.reason == SVMCORE_REASON_NONE)
        must(code, "access");
    printf("%10" PRIu64 "  %s touches MiB %" PRIu64 ": %s, %u faults, ready at %" PRIu64 "\n",
           self->t_ns, self->agent ? "gpu0" : "cpu", self->offset / MIB,
           api->reason_name(touch.reason), touch.faults, touch.ready_ns);
    self->offset += MIB;
    if (self->offset < 4 * MIB)
        schedule(self, touch.ready_ns + 2000);
}

static void run_loop(void)
{
    while (queue) {
        struct event *event = queue;
        uint64_t due;
        queue = event->next;
        /* What the driver put off comes before the host's next event. */
        must(api->next_event(space, &due), "next_event");
        if (due != SVMCORE_NEVER && due <= event->t_ns) {
            uint64_t now;
            must(api->now(space, &now), "now");
            must(api->step(space, due > now ? due : now), "step");
        }
        event->run(event);
    }
}

static void start_python(const char *program)
{
    PyConfig config;
    PyStatus status;
    PyConfig_InitPythonConfig(&config);
    /* The program's name leads to the (virtual) environment that has svmcore. */
    status = PyConfig_SetBytesString(&config, &config.program_name, program);
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
}

int main(void)
{
    const char *program = getenv("PYTHON");
    struct event gpu = {0, agent_step, NULL, SVMCORE_GPU(0), 0};
    struct event cpu = {0, agent_step, NULL, SVMCORE_CPU, 0};
    svmcore_options_t options = {sizeof options, 0, "gpu-80g", "kfd(granularity=8)", NULL, 0, NULL};
    svmcore_counters_t counters = {sizeof counters, 0};
    PyThreadState *python;
    unsigned unmaps = 0;
    uint64_t now;
    char text[256];

    start_python(program ? program : "python3");
    api = svmcore_import();
    if (api == NULL) {
        PyErr_Print();
        return 1;
    }
    options.error = text;
    options.error_size = sizeof text;
    if (api->create(&options, &space)) {
        fprintf(stderr, "create: %s\n", text);
        return 1;
    }
    must(api->map(space, BUFFER, 4 * MIB, SVMCORE_PROT_READ | SVMCORE_PROT_WRITE,
                  SVMCORE_MAP_ANON, SVMCORE_NOW), "map");
    must(api->set_event_callback(space, watch, &unmaps), "set_event_callback");

    python = PyEval_SaveThread();
    schedule(&gpu, 0);
    schedule(&cpu, 500000);
    run_loop();
    must(api->unmap(space, BUFFER, 4 * MIB, SVMCORE_NOW), "unmap");
    must(api->step(space, SVMCORE_NOW), "step");
    must(api->counters(space, &counters), "counters");
    must(api->now(space, &now), "now");
    PyEval_RestoreThread(python);

    printf("done at %" PRIu64 ": %" PRIu64 " faults, %" PRIu64 " migrations, %" PRIu64
           " KiB moved, %u unmaps seen\n", now, counters.faults, counters.migrations,
           counters.migrated_bytes / 1024, unmaps);
    must(api->destroy(space), "destroy");
    return Py_FinalizeEx() < 0;
}
