/* Every misuse that the header documents, from C: a code, never a crash. Then the calls with
   each policy that an argument names. Prints "ok". */
#define _POSIX_C_SOURCE 200809L
#include <Python.h>
#include <svmcore/svmcore.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE UINT64_C(0x7f0000000000)
#define MIB (UINT64_C(1) << 20)
#define RW (SVMCORE_PROT_READ | SVMCORE_PROT_WRITE)

static int failures;
static const svmcore_api_t *api;

#define EXPECT(expression, wanted)                                                             \
    do {                                                                                       \
        long long got_ = (long long)(expression), wanted_ = (long long)(wanted);               \
        if (got_ != wanted_) {                                                                 \
            printf("line %d: %s is %lld, expected %lld\n", __LINE__, #expression, got_,        \
                   wanted_);                                                                   \
            ++failures;                                                                        \
        }                                                                                      \
    } while (0)

static svmcore_space *make(const char *policy)
{
    svmcore_options_t options = {sizeof options, 0, "gpu-80g", NULL, NULL, 0, NULL};
    svmcore_space *space = NULL;
    options.policy = policy;
    EXPECT(api->create(&options, &space), 0);
    EXPECT(api->map(space, BASE, 16 * MIB, RW, SVMCORE_MAP_ANON, SVMCORE_NOW), 0);
    return space;
}

static svmcore_access_t touch_of(uint64_t addr)
{
    svmcore_access_t touch;
    memset(&touch, 0, sizeof touch);
    touch.size = sizeof touch;
    touch.by = SVMCORE_GPU(0);
    touch.addr = addr;
    touch.bytes = 4096;
    touch.t_ns = SVMCORE_NOW;
    return touch;
}

static int said(svmcore_space *space, const char *words)
{
    char text[256] = "";
    EXPECT(api->last_error(space, text, sizeof text), 0);
    if (strstr(text, words))
        return 1;
    printf("text is \"%s\", expected \"%s\" in it\n", text, words);
    return 0;
}

static void import_checks(void)
{
    const svmcore_api_t *none = svmcore_import_abi(SVMCORE_ABI + 1, sizeof *api);
    EXPECT(none == NULL, 1);
    EXPECT(PyErr_ExceptionMatches(PyExc_ImportError), 1);
    PyErr_Clear();
    none = svmcore_import_abi(SVMCORE_ABI, sizeof *api + 8);
    EXPECT(none == NULL, 1);
    EXPECT(PyErr_ExceptionMatches(PyExc_ImportError), 1);
    PyErr_Clear();
    /* A host compiled against a shorter table goes on working. */
    EXPECT(svmcore_import_abi(SVMCORE_ABI, sizeof *api - 8) == api, 1);
    EXPECT(api->abi, SVMCORE_ABI);
    EXPECT(api->size, sizeof *api);
    EXPECT(strlen(api->version) > 0, 1);
    EXPECT(strcmp(api->reason_name(SVMCORE_REASON_OK), "ok"), 0);
    EXPECT(strcmp(api->reason_name(SVMCORE_REASON_DUPLICATE), "duplicate"), 0);
    EXPECT(strcmp(api->reason_name(SVMCORE_REASON_XNACK_OFF), "xnack_off"), 0);
    EXPECT(api->reason_name(1000) == NULL, 1);
}

static void null_checks(void)
{
    svmcore_space *out;
    svmcore_access_t touch = touch_of(BASE);
    svmcore_fault_t fault = {sizeof fault, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    svmcore_counters_t counters;
    svmcore_info_t info;
    svmcore_attr_t attr = {SVMCORE_ATTR_GRANULARITY, 3};
    uint64_t t;
    uint32_t where;
    void *object;
    char text[8];
    counters.size = sizeof counters;
    info.size = sizeof info;
    EXPECT(api->create(NULL, &out), -SVMCORE_EINVAL);
    EXPECT(api->create(NULL, NULL), -SVMCORE_EINVAL);
    EXPECT(api->load(NULL, NULL, &out), -SVMCORE_EINVAL);
    EXPECT(api->load("x", NULL, NULL), -SVMCORE_EINVAL);
    EXPECT(api->from_object(NULL, &out), -SVMCORE_EINVAL);
    EXPECT(api->from_object(Py_None, &out), -SVMCORE_EINVAL);
    EXPECT(api->from_object(Py_None, NULL), -SVMCORE_EINVAL);
    EXPECT(api->to_object(NULL, &object), -SVMCORE_EINVAL);
    EXPECT(api->destroy(NULL), -SVMCORE_EINVAL);
    EXPECT(api->save(NULL, "x"), -SVMCORE_EINVAL);
    EXPECT(api->map(NULL, BASE, MIB, RW, 0, 0), -SVMCORE_EINVAL);
    EXPECT(api->unmap(NULL, BASE, MIB, 0), -SVMCORE_EINVAL);
    EXPECT(api->protect(NULL, BASE, MIB, RW, 0), -SVMCORE_EINVAL);
    EXPECT(api->invalidate(NULL, BASE, MIB, 0), -SVMCORE_EINVAL);
    EXPECT(api->set_attr(NULL, BASE, MIB, &attr, 1, 0), -SVMCORE_EINVAL);
    EXPECT(api->get_attr(NULL, BASE, MIB, &attr, 1, 0), -SVMCORE_EINVAL);
    EXPECT(api->prefetch(NULL, BASE, MIB, 0, 0), -SVMCORE_EINVAL);
    EXPECT(api->access(NULL, &touch), -SVMCORE_EINVAL);
    EXPECT(api->access_many(NULL, &touch, 1, &t), -SVMCORE_EINVAL);
    EXPECT(t, 0);
    EXPECT(api->fault(NULL, &fault), -SVMCORE_EINVAL);
    EXPECT(api->evict(NULL, BASE, 0), -SVMCORE_EINVAL);
    EXPECT(api->step(NULL, 0), -SVMCORE_EINVAL);
    EXPECT(api->next_event(NULL, &t), -SVMCORE_EINVAL);
    EXPECT(api->now(NULL, &t), -SVMCORE_EINVAL);
    EXPECT(api->where(NULL, BASE, &where), -SVMCORE_EINVAL);
    EXPECT(api->counters(NULL, &counters), -SVMCORE_EINVAL);
    EXPECT(api->info(NULL, &info), -SVMCORE_EINVAL);
    EXPECT(api->set_event_callback(NULL, NULL, NULL), -SVMCORE_EINVAL);
    EXPECT(api->last_error(NULL, text, sizeof text), -SVMCORE_EINVAL);
}

static void create_checks(void)
{
    char text[200], small[8];
    struct {
        svmcore_options_t known;
        uint64_t more;
    } longer;
    svmcore_options_t options = {sizeof options, 0, "no-such-machine", NULL, NULL, 0, NULL};
    svmcore_space *space = (svmcore_space *)&options;
    options.error = text;
    options.error_size = sizeof text;
    EXPECT(api->create(&options, &space), -SVMCORE_EINVAL);
    EXPECT(space == NULL, 1);
    EXPECT(strstr(text, "gpu-80g") != NULL, 1);
    options.error = small;
    options.error_size = sizeof small;
    EXPECT(api->create(&options, &space), -SVMCORE_EINVAL);
    EXPECT(strlen(small), sizeof small - 1);
    options.error = text;
    options.error_size = sizeof text;
    options.machine = NULL;
    options.policy = "kfd(granularity=99)";
    EXPECT(api->create(&options, &space), -SVMCORE_EINVAL);
    options.policy = "\xff\xfe";
    EXPECT(api->create(&options, &space), -SVMCORE_EINVAL);
    options.policy = NULL;
    options.flags = 1;
    EXPECT(api->create(&options, &space), -SVMCORE_EOPNOTSUPP);
    options.flags = 0;
    options.size = 8;
    EXPECT(api->create(&options, &space), -SVMCORE_EINVAL);
    options.size = 0x7fffffff;
    EXPECT(api->create(&options, &space), -SVMCORE_EINVAL);
    options.size = sizeof options;
    memset(&longer, 0, sizeof longer);
    longer.known = options;
    longer.known.size = sizeof longer;
    EXPECT(api->create(&longer.known, &space), 0);
    EXPECT(api->destroy(space), 0);
    longer.more = 1;
    EXPECT(api->create(&longer.known, &space), -SVMCORE_EOPNOTSUPP);
    EXPECT(api->load("/nowhere/at/all.svm", NULL, &space) < 0, 1);
    EXPECT(PyErr_Occurred() == NULL, 1);
    /* An error that the host itself has pending survives a call. */
    PyErr_SetString(PyExc_KeyError, "the host's");
    EXPECT(api->create(&options, &space), 0);
    EXPECT(PyErr_ExceptionMatches(PyExc_KeyError), 1);
    PyErr_Clear();
    EXPECT(api->destroy(space), 0);
}

static void argument_checks(void)
{
    svmcore_space *space = make("kfd");
    svmcore_access_t touch = touch_of(BASE), many[3];
    svmcore_fault_t fault;
    svmcore_counters_t counters;
    svmcore_info_t info;
    svmcore_attr_t attr = {SVMCORE_ATTR_GRANULARITY, 3}, wrong = {99, 0};
    uint64_t t = 0, done = 9, before;
    struct {
        svmcore_access_t known;
        uint64_t more;
    } longer;
    EXPECT(api->now(space, &before), 0);

    touch.size = 0;
    EXPECT(api->access(space, &touch), -SVMCORE_EINVAL);
    touch.size = sizeof touch - 1;
    EXPECT(api->access(space, &touch), -SVMCORE_EINVAL);
    EXPECT(said(space, "size"), 1);
    touch.size = SVMCORE_STRUCT_MAX + 8;
    EXPECT(api->access(space, &touch), -SVMCORE_EINVAL);
    touch.size = sizeof touch;
    touch.flags = 0x80;
    EXPECT(api->access(space, &touch), -SVMCORE_EOPNOTSUPP);
    touch.flags = 0;
    touch.by = SVMCORE_GPU(7);
    touch.reason = 77;
    EXPECT(api->access(space, &touch), -SVMCORE_EINVAL);
    EXPECT(touch.reason, SVMCORE_REASON_NONE);
    EXPECT(said(space, "by 8"), 1);
    touch.by = SVMCORE_GPU(0);
    touch.bytes = 0;
    EXPECT(api->access(space, &touch), -SVMCORE_EINVAL);
    touch.bytes = UINT64_MAX;
    EXPECT(api->access(space, &touch), -SVMCORE_EOVERFLOW);
    EXPECT(api->access(space, NULL), -SVMCORE_EINVAL);
    EXPECT(api->access_many(space, NULL, 2, &done), -SVMCORE_EINVAL);
    EXPECT(done, 0);
    EXPECT(api->access_many(space, NULL, 0, NULL), 0);

    EXPECT(api->map(space, BASE + 1, MIB, RW, 0, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->map(space, BASE, 0, RW, 0, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->map(space, BASE, MIB, 4, 0, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->map(space, BASE, MIB, RW, 6, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->map(space, UINT64_MAX - 4095, 2 * MIB, RW, 0, SVMCORE_NOW), -SVMCORE_EOVERFLOW);
    EXPECT(api->map(space, BASE, MIB, RW, 0, SVMCORE_NOW), -SVMCORE_EEXIST);
    EXPECT(api->unmap(space, BASE, 17, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->protect(space, BASE, MIB, 9, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->protect(space, BASE - 16 * MIB, MIB, RW, SVMCORE_NOW), -SVMCORE_ENOMEM);
    EXPECT(api->invalidate(space, BASE, 1, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->set_attr(space, BASE, MIB, NULL, 1, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->set_attr(space, BASE, MIB, &wrong, 1, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(said(space, "set_attr"), 1);
    EXPECT(api->set_attr(space, BASE - MIB, MIB, &attr, 1, SVMCORE_NOW), -SVMCORE_EFAULT);
    EXPECT(api->get_attr(space, BASE, MIB, NULL, 1, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->get_attr(space, BASE, MIB, &wrong, 1, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->prefetch(space, BASE, MIB, 12345, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->evict(space, BASE, SVMCORE_NOW), -SVMCORE_ENOENT);
    EXPECT(api->next_event(space, NULL), -SVMCORE_EINVAL);
    EXPECT(api->now(space, NULL), -SVMCORE_EINVAL);
    EXPECT(api->where(space, BASE, NULL), -SVMCORE_EINVAL);
    EXPECT(api->to_object(space, NULL), -SVMCORE_EINVAL);
    EXPECT(api->save(space, NULL), -SVMCORE_EINVAL);
    EXPECT(api->save(space, "/nowhere/at/all.svm") < 0, 1);
    EXPECT(api->last_error(space, NULL, 0), -SVMCORE_EINVAL);
    counters.size = 4;
    EXPECT(api->counters(space, &counters), -SVMCORE_EINVAL);
    info.size = 0;
    EXPECT(api->info(space, &info), -SVMCORE_EINVAL);
    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.addr = BASE;
    EXPECT(api->fault(space, &fault), -SVMCORE_EINVAL);
    fault.by = SVMCORE_GPU(1);
    EXPECT(api->fault(space, &fault), -SVMCORE_EINVAL);
    /* All of it was refused: nothing has happened yet. */
    EXPECT(api->now(space, &t), 0);
    EXPECT(t, before);
    counters.size = sizeof counters;
    EXPECT(api->counters(space, &counters), 0);
    EXPECT(counters.faults + counters.pages_touched + counters.migration_attempts, 0);

    /* A longer struct: its known part works, an unknown request does not. */
    memset(&longer, 0, sizeof longer);
    longer.known = touch_of(BASE);
    longer.known.size = sizeof longer;
    EXPECT(api->access(space, &longer.known), 0);
    EXPECT(longer.known.reason, SVMCORE_REASON_OK);
    longer.more = 1;
    EXPECT(api->access(space, &longer.known), -SVMCORE_EOPNOTSUPP);

    /* Time never goes back, unless the touch queues. */
    touch = touch_of(BASE + MIB);
    touch.t_ns = 1;
    EXPECT(api->access(space, &touch), -SVMCORE_EINVAL);
    EXPECT(said(space, "never goes back"), 1);
    EXPECT(api->step(space, 1), -SVMCORE_EINVAL);
    touch.flags = SVMCORE_QUEUE;
    EXPECT(api->access(space, &touch), 0);

    /* Fatal touches are answers and do not stop a batch; a refusal does. */
    many[0] = touch_of(BASE - MIB);
    many[1] = touch_of(BASE);
    many[2] = touch_of(BASE);
    EXPECT(api->access_many(space, many, 3, &done), 0);
    EXPECT(done, 3);
    EXPECT(many[0].code, -SVMCORE_EFAULT);
    EXPECT(many[0].reason, SVMCORE_REASON_NO_RANGE);
    EXPECT(many[0].fatal_addr, BASE - MIB);
    EXPECT(many[1].code, 0);
    many[1].by = 200;
    EXPECT(api->access_many(space, many, 3, &done), -SVMCORE_EINVAL);
    EXPECT(done, 1);
    many[1].by = SVMCORE_CPU;
    many[1].size = 8;
    EXPECT(api->access_many(space, many, 3, &done), -SVMCORE_EINVAL);
    EXPECT(done, 1);
    EXPECT(api->destroy(space), 0);
}

/* ---- callbacks ---- */

struct watcher {
    svmcore_space *space;
    int seen, answer_at, answer;
    uint64_t t_ns;
};

static int inside(void *user, const svmcore_event_t *event)
{
    struct watcher *w = user;
    svmcore_access_t touch = touch_of(BASE);
    uint64_t t;
    char text[8];
    EXPECT(event->size, sizeof *event);
    EXPECT(event->t_ns >= w->t_ns, 1);
    w->t_ns = event->t_ns;
    EXPECT(api->access(w->space, &touch), -SVMCORE_EDEADLK);
    EXPECT(api->now(w->space, &t), -SVMCORE_EDEADLK);
    EXPECT(api->save(w->space, "x"), -SVMCORE_EDEADLK);
    EXPECT(api->set_event_callback(w->space, NULL, NULL), -SVMCORE_EDEADLK);
    EXPECT(api->last_error(w->space, text, sizeof text), -SVMCORE_EDEADLK);
    EXPECT(api->destroy(w->space), -SVMCORE_EDEADLK);
    return ++w->seen == w->answer_at ? w->answer : 0;
}

static void callback_checks(void)
{
    struct watcher w = {NULL, 0, 0, 0, 0};
    svmcore_access_t touch = touch_of(BASE), many[2];
    svmcore_counters_t counters = {sizeof counters, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    uint64_t done = 0;
    w.space = make("kfd");
    EXPECT(api->set_event_callback(w.space, inside, &w), 0);
    EXPECT(api->access(w.space, &touch), 0);
    EXPECT(w.seen > 0, 1);
    /* A callback that fails: carried out, and the code says so. */
    w.seen = 0;
    w.answer_at = 1;
    w.answer = -7;
    touch = touch_of(BASE + 4 * MIB);
    EXPECT(api->access(w.space, &touch), -SVMCORE_EIO);
    EXPECT(touch.code, 0);
    EXPECT(touch.faults, 1);
    EXPECT(said(w.space, "returned -7"), 1);
    EXPECT(w.seen, 1);
    many[0] = touch_of(BASE + 8 * MIB);
    many[1] = touch_of(BASE + 10 * MIB);
    w.seen = 0;
    EXPECT(api->access_many(w.space, many, 2, &done), -SVMCORE_EIO);
    EXPECT(done, 1);
    /* One that leaves a Python error behind. */
    w.answer_at = 0;
    EXPECT(api->unmap(w.space, BASE, 16 * MIB, SVMCORE_NOW), 0);
    EXPECT(api->set_event_callback(w.space, NULL, NULL), 0);
    EXPECT(api->counters(w.space, &counters), 0);
    EXPECT(counters.faults, 3);
    EXPECT(api->destroy(w.space), 0);
}

static int raises(void *user, const svmcore_event_t *event)
{
    (void)user;
    (void)event;
    if (PyErr_Occurred() == NULL)
        PyErr_SetString(PyExc_RuntimeError, "in the callback");
    return -1;
}

static void raising_callback_checks(void)
{
    svmcore_space *space = make("kfd");
    svmcore_attr_t attr = {SVMCORE_ATTR_GRANULARITY, 0};
    svmcore_access_t touch = touch_of(BASE);
    EXPECT(api->set_event_callback(space, raises, NULL), 0);
    EXPECT(api->access(space, &touch), -SVMCORE_EIO);
    EXPECT(PyErr_ExceptionMatches(PyExc_RuntimeError), 1);
    /* With the error still pending, calls through Python work and keep it. */
    EXPECT(api->get_attr(space, BASE, MIB, &attr, 1, SVMCORE_NOW), 0);
    EXPECT(attr.value, 9);
    EXPECT(PyErr_ExceptionMatches(PyExc_RuntimeError), 1);
    PyErr_Clear();
    EXPECT(api->destroy(space), 0);
}

/* ---- threads ---- */

static pthread_barrier_t barrier;

static int hold(void *user, const svmcore_event_t *event)
{
    int *times = user;
    (void)event;
    if ((*times)++ == 0) {
        pthread_barrier_wait(&barrier); /* inside a call now */
        pthread_barrier_wait(&barrier); /* until the other thread has tried */
    }
    return 0;
}

static void *run_access(void *space)
{
    svmcore_access_t touch = touch_of(BASE + 2 * MIB);
    EXPECT(api->access(space, &touch), 0);
    return NULL;
}

static void thread_checks(void)
{
    svmcore_space *space = make("kfd"), *mate = NULL, *none = NULL;
    svmcore_options_t options = {sizeof options, 0, NULL, NULL, NULL, 0, NULL};
    svmcore_access_t touch = touch_of(BASE);
    pthread_t thread;
    int times = 0;
    uint64_t t;
    options.neighbour = space;
    options.machine = "mi300a";
    EXPECT(api->create(&options, &mate), -SVMCORE_EINVAL);
    options.machine = NULL;
    EXPECT(api->create(&options, &mate), 0);
    EXPECT(api->set_event_callback(space, hold, &times), 0);
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, run_access, space);
    pthread_barrier_wait(&barrier);
    EXPECT(api->access(space, &touch), -SVMCORE_EBUSY);
    EXPECT(api->now(space, &t), -SVMCORE_EBUSY);
    EXPECT(api->destroy(space), -SVMCORE_EBUSY);
    EXPECT(api->now(mate, &t), -SVMCORE_EBUSY);
    EXPECT(api->create(&options, &none), -SVMCORE_EBUSY);
    EXPECT(none == NULL, 1);
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&barrier);
    EXPECT(api->access(space, &touch), 0);
    EXPECT(api->destroy(mate), 0);
    EXPECT(api->destroy(space), 0);
}

struct foreign {
    const char *policy;
    int done;
};

static void *run_without_python(void *out)
{
    /* A thread that Python never saw: the functions take the GIL themselves. */
    struct foreign *mine = out;
    svmcore_space *space = make(mine->policy);
    run_access(space);
    EXPECT(api->destroy(space), 0);
    mine->done = 1;
    return NULL;
}

static void foreign_thread_checks(const char *policy)
{
    PyThreadState *python = PyEval_SaveThread();
    pthread_t threads[2];
    struct foreign both[2] = {{policy, 0}, {policy, 0}};
    int i;
    for (i = 0; i < 2; ++i)
        pthread_create(&threads[i], NULL, run_without_python, &both[i]);
    for (i = 0; i < 2; ++i)
        pthread_join(threads[i], NULL);
    PyEval_RestoreThread(python);
    EXPECT(both[0].done + both[1].done, 2);
}

static void lifetime_checks(void)
{
    svmcore_space *space = make("kfd"), *again = NULL;
    void *object = NULL;
    uint64_t t;
    EXPECT(api->to_object(space, &object), 0);
    EXPECT(api->from_object(object, &again), 0);
    EXPECT(again == space, 1);
    EXPECT(api->destroy(again), 0);
    EXPECT(api->now(space, &t), 0);
    EXPECT(api->destroy(space), 0);
    /* The Python object lives on; the handle is no longer one. */
    EXPECT(api->now(space, &t), -SVMCORE_EINVAL);
    EXPECT(api->destroy(space), -SVMCORE_EINVAL);
    EXPECT(api->from_object(object, &again), 0);
    EXPECT(api->now(again, &t), 0);
    Py_DECREF((PyObject *)object);
    EXPECT(api->now(again, &t), 0);
    EXPECT(api->destroy(again), 0);
}

/* ---- every policy ---- */

struct moves {
    int seen;
    uint64_t bytes;
};

static int add_moves(void *user, const svmcore_event_t *event)
{
    struct moves *moves = user;
    moves->seen += event->kind == SVMCORE_EVENT_MIGRATE;
    moves->bytes += event->kind == SVMCORE_EVENT_MIGRATE ? event->value : 0;
    return 0;
}

static uint32_t where(svmcore_space *space, uint64_t addr)
{
    uint32_t processor = 77;
    EXPECT(api->where(space, addr, &processor), 0);
    return processor;
}

static void policy_touches(svmcore_space *space, const char *policy)
{
    svmcore_access_t touch = touch_of(BASE), many[3];
    svmcore_fault_t fault;
    svmcore_counters_t counters;
    struct moves moves = {0, 0};
    uint64_t done = 0, before = 0, t = 0;
    EXPECT(where(space, BASE), SVMCORE_NOWHERE);
    touch.by = SVMCORE_CPU;
    touch.flags = SVMCORE_WRITE;
    touch.bytes = 16 * MIB;
    EXPECT(api->access(space, &touch), 0);
    EXPECT(where(space, BASE), SVMCORE_CPU);
    EXPECT(api->now(space, &before), 0);

    /* A touch moves the page, and the callback hears of it. */
    EXPECT(api->set_event_callback(space, add_moves, &moves), 0);
    touch = touch_of(BASE);
    EXPECT(api->access(space, &touch), 0);
    EXPECT(touch.reason, SVMCORE_REASON_OK);
    EXPECT(touch.faults, 1);
    EXPECT(touch.served_from, SVMCORE_GPU(0));
    EXPECT(touch.moved_bytes > 0, 1);
    EXPECT(touch.took_ns > 0, 1);
    EXPECT(touch.ready_ns, before + touch.took_ns);
    EXPECT(where(space, BASE), SVMCORE_GPU(0));
    EXPECT(moves.seen > 0, 1);
    EXPECT(moves.bytes, touch.moved_bytes);
    EXPECT(api->set_event_callback(space, NULL, NULL), 0);
    many[0] = touch_of(BASE);
    many[1] = touch_of(BASE - MIB);
    many[2] = touch_of(BASE + 12 * MIB);
    EXPECT(api->access_many(space, many, 3, &done), 0);
    EXPECT(done, 3);
    EXPECT(many[0].faults, 0);
    EXPECT(many[1].code, -SVMCORE_EFAULT);
    EXPECT(many[1].reason > SVMCORE_REASON_OK, 1);
    EXPECT(many[1].fatal_addr, BASE - MIB);
    EXPECT(many[2].faults, 1);

    /* One delivery. */
    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.addr = BASE + 4 * MIB + 4096;
    fault.t_ns = SVMCORE_NOW;
    EXPECT(api->fault(space, &fault), -SVMCORE_EINVAL);
    EXPECT(fault.reason, SVMCORE_REASON_NONE);
    fault.by = SVMCORE_GPU(0);
    EXPECT(api->fault(space, &fault), 0);
    EXPECT(fault.reason, SVMCORE_REASON_OK);
    EXPECT(fault.location, SVMCORE_GPU(0));
    EXPECT(fault.migration, 1);
    EXPECT(fault.moved_bytes > 0, 1);
    EXPECT(where(space, fault.addr), SVMCORE_GPU(0));
    if (strcmp(policy, "kfd") == 0 || strcmp(policy, "uvm") == 0) {
        EXPECT(fault.window_addr, BASE + 4 * MIB);
        EXPECT(fault.window_bytes, 2 * MIB);
    }
    fault.addr = BASE - MIB;
    EXPECT(api->fault(space, &fault), -SVMCORE_EFAULT);
    EXPECT(fault.code, -SVMCORE_EFAULT);
    EXPECT(fault.reason > SVMCORE_REASON_OK, 1);
    EXPECT(fault.window_bytes, 0);
    EXPECT(said(space, ""), 1);
    memset(&counters, 0, sizeof counters);
    counters.size = sizeof counters;
    EXPECT(api->counters(space, &counters), 0);
    EXPECT(counters.migrations >= 3, 1);
    EXPECT(counters.errors, 2);

    /* The clock. */
    EXPECT(api->next_event(space, &t), 0);
    EXPECT(api->now(space, &before), 0);
    EXPECT(api->step(space, before + 10000000), 0);
    EXPECT(api->now(space, &t), 0);
    EXPECT(t, before + 10000000);
    EXPECT(api->step(space, before), -SVMCORE_EINVAL);
}

static void policy_advice(svmcore_space *space, const char *policy)
{
    svmcore_attr_t attr = {SVMCORE_ATTR_GRANULARITY, 9};
    svmcore_info_t info;
    struct moves moves = {0, 0};
    int own = strcmp(policy, "kfd") == 0;
    info.size = sizeof info;
    EXPECT(api->info(space, &info), 0);
    EXPECT(info.gpus, 1);
    EXPECT(info.device_bytes[0], UINT64_C(80) << 30);
    EXPECT(api->prefetch(space, BASE, 16 * MIB, SVMCORE_LOCATION_SYSTEM, SVMCORE_NOW), 0);
    EXPECT(where(space, BASE), SVMCORE_CPU);
    EXPECT(api->prefetch(space, BASE + 6 * MIB, MIB, info.gpu_id[0], SVMCORE_NOW), 0);
    EXPECT(where(space, BASE + 6 * MIB), SVMCORE_GPU(0));
    EXPECT(where(space, BASE + 5 * MIB), SVMCORE_CPU);
    EXPECT(api->prefetch(space, BASE, MIB, info.gpu_id[0] + 1, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(said(space, "prefetch"), 1);
    EXPECT(api->prefetch(space, BASE, 17, 0, SVMCORE_NOW), -SVMCORE_EINVAL);

    EXPECT(api->advise(NULL, BASE, MIB, "read_mostly", 0, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->advise(space, BASE, MIB, NULL, 0, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->advise(space, BASE, MIB, "kindly", 0, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(said(space, "kindly"), 1);
    EXPECT(api->advise(space, BASE, MIB, "\xff", 0, SVMCORE_NOW), -SVMCORE_EINVAL);
    EXPECT(api->advise(space, BASE + 1, MIB, "read_mostly", SVMCORE_LOCATION_NONE, SVMCORE_NOW),
           -SVMCORE_EINVAL);
    EXPECT(api->advise(space, BASE, MIB, "read_mostly", info.gpu_id[0], SVMCORE_NOW),
           -SVMCORE_EINVAL);
    EXPECT(api->advise(space, BASE, MIB, "preferred_location", SVMCORE_LOCATION_NONE, SVMCORE_NOW),
           -SVMCORE_EINVAL);
    EXPECT(api->advise(space, BASE, MIB, "preferred_location", info.gpu_id[0] + 1, SVMCORE_NOW),
           -SVMCORE_EINVAL);
    EXPECT(said(space, "location"), 1);
    EXPECT(api->advise(space, BASE, MIB, "preferred_location", info.gpu_id[0], 1), -SVMCORE_EINVAL);
    EXPECT(api->advise(space, BASE, MIB, "preferred_location", info.gpu_id[0], SVMCORE_NOW), 0);
    EXPECT(api->advise(space, BASE + 14 * MIB, MIB, "read_mostly", SVMCORE_LOCATION_NONE,
                       SVMCORE_NOW), 0);

    /* Its effects are told as those of any call. */
    EXPECT(api->set_event_callback(space, add_moves, &moves), 0);
    EXPECT(api->advise(space, BASE + 10 * MIB, MIB, "prefetch", info.gpu_id[0], SVMCORE_NOW), 0);
    EXPECT(api->set_event_callback(space, NULL, NULL), 0);
    EXPECT(where(space, BASE + 10 * MIB), SVMCORE_GPU(0));
    EXPECT(moves.bytes, MIB);

    /* The ioctl is KFD's own. */
    EXPECT(api->set_attr(space, BASE, MIB, &attr, 1, SVMCORE_NOW), own ? 0 : -SVMCORE_EOPNOTSUPP);
    EXPECT(own || said(space, policy), 1);
    EXPECT(api->get_attr(space, BASE, MIB, &attr, 1, SVMCORE_NOW), own ? 0 : -SVMCORE_EOPNOTSUPP);
    EXPECT(own || said(space, "get_attr"), 1);
}

static void policy_mappings(svmcore_space *space, const char *policy)
{
    svmcore_access_t touch = touch_of(BASE + 8 * MIB);
    const uint64_t other = BASE + 64 * MIB;
    int uvm = strcmp(policy, "uvm") == 0;
    EXPECT(api->map(space, BASE, MIB, RW, SVMCORE_MAP_ANON, SVMCORE_NOW), -SVMCORE_EEXIST);
    EXPECT(said(space, "map"), 1);
    EXPECT(api->map(space, other, MIB, RW, SVMCORE_MAP_FILE, SVMCORE_NOW),
           uvm ? -SVMCORE_EOPNOTSUPP : 0);
    EXPECT(!uvm || said(space, "map"), 1);
    EXPECT(api->map(space, other + MIB, MIB, SVMCORE_PROT_READ, SVMCORE_MAP_ANON, SVMCORE_NOW), 0);
    /* The protection binds the CPU under every policy. */
    touch.addr = other + MIB;
    touch.by = SVMCORE_CPU;
    touch.flags = SVMCORE_WRITE;
    EXPECT(api->access(space, &touch), -SVMCORE_EPERM);
    touch.flags = 0;
    EXPECT(api->access(space, &touch), 0);
    touch = touch_of(BASE + 8 * MIB);
    EXPECT(api->access(space, &touch), 0);
    EXPECT(api->invalidate(space, BASE + 8 * MIB, MIB, SVMCORE_NOW), 0);
    EXPECT(api->evict(space, BASE + 8 * MIB, SVMCORE_NOW), 0);
    EXPECT(where(space, BASE + 8 * MIB), SVMCORE_CPU);
    EXPECT(api->evict(space, BASE + 8 * MIB, SVMCORE_NOW), -SVMCORE_ENOENT);
    EXPECT(api->protect(space, BASE + 8 * MIB, MIB, SVMCORE_PROT_READ, SVMCORE_NOW), 0);
    EXPECT(api->protect(space, BASE - MIB, MIB, RW, SVMCORE_NOW), -SVMCORE_ENOMEM);
    touch.by = SVMCORE_CPU;
    touch.flags = SVMCORE_WRITE;
    EXPECT(api->access(space, &touch), -SVMCORE_EPERM);
    EXPECT(api->unmap(space, BASE + 8 * MIB, MIB, SVMCORE_NOW), 0);
    EXPECT(api->access(space, &touch), -SVMCORE_EFAULT);
}

/* Saved and loaded, a space answers as the one that was saved. */
static void policy_state(svmcore_space *space)
{
    svmcore_space *loaded = NULL;
    svmcore_access_t one = touch_of(BASE + 2 * MIB), two;
    svmcore_counters_t counters[2];
    memset(counters, 0, sizeof counters);
    counters[0].size = counters[1].size = sizeof counters[0];
    one.bytes = 4 * MIB;
    two = one;
    EXPECT(api->save(space, "policy.svm"), 0);
    EXPECT(api->load("policy.svm", NULL, &loaded), 0);
    EXPECT(api->access(space, &one), 0);
    EXPECT(api->access(loaded, &two), 0);
    EXPECT(memcmp(&one, &two, sizeof one), 0);
    EXPECT(api->counters(space, &counters[0]), 0);
    EXPECT(api->counters(loaded, &counters[1]), 0);
    EXPECT(memcmp(&counters[0], &counters[1], sizeof counters[0]), 0);
    EXPECT(api->destroy(loaded), 0);
    remove("policy.svm");
}

static void policy_checks(const char *policy)
{
    int before = failures;
    svmcore_space *space = make(policy);
    policy_touches(space, policy);
    policy_advice(space, policy);
    policy_mappings(space, policy);
    policy_state(space);
    EXPECT(api->destroy(space), 0);
    foreign_thread_checks(policy);
    if (failures != before)
        printf("the policy was %s\n", policy);
}

int main(int argc, char **argv)
{
    const char *program = getenv("PYTHON");
    int i;
    svmcore_space *late;
    svmcore_access_t touch = touch_of(BASE);
    PyConfig config;
    PyStatus status;
    EXPECT(svmcore_import() == NULL, 1); /* no interpreter yet */
    PyConfig_InitPythonConfig(&config);
    status = PyConfig_SetBytesString(&config, &config.program_name, program ? program : "python3");
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
    api = svmcore_import();
    if (api == NULL) {
        PyErr_Print();
        return 1;
    }
    import_checks();
    null_checks();
    create_checks();
    argument_checks();
    callback_checks();
    raising_callback_checks();
    thread_checks();
    foreign_thread_checks("kfd(granularity=4)");
    lifetime_checks();
    for (i = 1; i < argc; ++i)
        policy_checks(argv[i]);
    late = make("kfd");
    EXPECT(Py_FinalizeEx(), 0);
    /* The interpreter is gone: what needs it says so. */
    EXPECT(api->destroy(late), -SVMCORE_EOPNOTSUPP);
    EXPECT(api->save(late, "x"), -SVMCORE_EOPNOTSUPP);
    EXPECT(api->access(late, &touch), 0);
    if (failures == 0)
        puts("ok");
    return failures != 0;
}
