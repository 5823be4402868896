// The C++ header's promises: moves, errors with codes, what an event function throws. Prints "ok".
#include <svmcore/svmcore.hpp>

#include <cstdio>
#include <cstdlib>
#include <type_traits>

static_assert(!std::is_copy_constructible_v<svmcore::Space>);
static_assert(std::is_nothrow_move_constructible_v<svmcore::Space>);
static_assert(std::is_nothrow_move_assignable_v<svmcore::Space>);

namespace {

int failures;
constexpr uint64_t BASE = 0x7f0000000000, MIB = uint64_t{1} << 20;

void expect(bool holds, const char *what, int line)
{
    if (!holds) {
        std::printf("line %d: %s\n", line, what);
        ++failures;
    }
}
#define EXPECT(what) expect((what), #what, __LINE__)

template <typename Call> int code_of(Call call)
{
    try {
        call();
    } catch (const svmcore::error &error) {
        EXPECT(*error.what() != 0);
        return error.code();
    }
    return 0;
}

void run()
{
    using svmcore::Space;
    EXPECT(code_of([] { Space("no-such-machine"); }) == -SVMCORE_EINVAL);
    EXPECT(code_of([] { Space("gpu-80g", "kfd(what=1)"); }) == -SVMCORE_EINVAL);
    EXPECT(code_of([] { Space::load("/nowhere/at/all.svm"); }) < 0);
    EXPECT(code_of([] { Space::of(Py_None); }) == -SVMCORE_EINVAL);

    Space space;
    space.map(BASE, 16 * MIB);
    EXPECT(code_of([&] { space.map(BASE, 16 * MIB); }) == -SVMCORE_EEXIST);
    EXPECT(code_of([&] { space.map(BASE + 1, 16 * MIB); }) == -SVMCORE_EINVAL);
    EXPECT(code_of([&] { space.access(BASE, 1, 99); }) == -SVMCORE_EINVAL);
    EXPECT(code_of([&] { space.fault(BASE, SVMCORE_CPU); }) == -SVMCORE_EINVAL);

    // A fatal touch is an answer.
    svmcore_access_t fatal = space.access(BASE - MIB, 4096, SVMCORE_GPU(0));
    EXPECT(fatal.code == -SVMCORE_EFAULT && fatal.reason == SVMCORE_REASON_NO_RANGE);
    EXPECT(space.fault(BASE - MIB, SVMCORE_GPU(0)).code == -SVMCORE_EFAULT);

    space.set_attr(BASE, 4 * MIB, {{SVMCORE_ATTR_GRANULARITY, 4}});
    EXPECT(space.get_attr(BASE, 4 * MIB, {{SVMCORE_ATTR_GRANULARITY, 0}})[0].value == 4);
    EXPECT(space.where(BASE) == SVMCORE_NOWHERE);
    EXPECT(space.fault(BASE, SVMCORE_GPU(0)).window_bytes == 64 << 10);
    EXPECT(space.where(BASE) == SVMCORE_GPU(0));
    EXPECT(space.evict(BASE) && space.where(BASE) == SVMCORE_CPU && !space.evict(BASE + 8 * MIB));
    space.prefetch(BASE + 8 * MIB, 2 * MIB, space.info().gpu_id[0]);
    EXPECT(space.where(BASE + 9 * MIB) == SVMCORE_GPU(0));
    space.advise(BASE + 8 * MIB, MIB, "preferred_location", space.info().gpu_id[0]);
    EXPECT(space.get_attr(BASE + 8 * MIB, MIB, {{SVMCORE_ATTR_PREFERRED_LOC, 0}})[0].value ==
           space.info().gpu_id[0]);
    EXPECT(code_of([&] { space.advise(BASE, MIB, "kindly"); }) == -SVMCORE_EINVAL);
    EXPECT(code_of([&] { Space("gpu-80g", "uvm").set_attr(BASE, MIB, {}); }) == -SVMCORE_EOPNOTSUPP);
    space.protect(BASE, MIB, SVMCORE_PROT_READ);
    space.step(space.now() + 10000000);
    fatal = space.access(BASE, 4096, SVMCORE_GPU(0), SVMCORE_WRITE);
    EXPECT(fatal.code == -SVMCORE_EPERM);

    // What an event function throws comes out of the call, which was carried out.
    Space moved = std::move(space);
    Space *watched = &moved;
    int seen = 0;
    moved.on_event([&](const svmcore_event_t &event) {
        ++seen;
        EXPECT(code_of([&] { watched->now(); }) == -SVMCORE_EDEADLK);
        if (event.kind == SVMCORE_EVENT_MIGRATE)
            throw std::out_of_range("from the event function");
    });
    Space third = std::move(moved);  // the function goes along
    watched = &third;
    EXPECT(code_of([&] { moved.now(); }) == -SVMCORE_EINVAL);
    moved = Space();
    std::string text;
    try {
        third.access(BASE + 4 * MIB, 4096, SVMCORE_GPU(0));
    } catch (const std::out_of_range &error) {
        text = error.what();
    }
    EXPECT(text == "from the event function");
    EXPECT(seen == 1);
    EXPECT(third.where(BASE + 4 * MIB) == SVMCORE_GPU(0));
    third.on_event({});
    third.access(BASE + 6 * MIB, 4096, SVMCORE_GPU(0));
    EXPECT(seen == 1);

    std::vector<svmcore_access_t> touches(10);
    for (size_t i = 0; i < touches.size(); ++i) {
        touches[i].size = sizeof(svmcore_access_t);
        touches[i].by = SVMCORE_GPU(0);
        touches[i].addr = BASE + 10 * MIB + i * 4096;
        touches[i].bytes = 64;
        touches[i].t_ns = SVMCORE_NOW;
    }
    third.access(touches);
    EXPECT(touches[0].faults == 1 && touches[9].faults == 0);
    third.unmap(BASE, 16 * MIB);
    EXPECT(third.next_event().has_value());
    third.step(third.now());
    EXPECT(!third.next_event().has_value());

    PyObject *object = third.object();
    Space shared = Space::of(object);
    Py_DECREF(object);
    EXPECT(shared.handle() == third.handle());
    Space mate("gpu-80g", "kfd", &shared);
    EXPECT(mate.counters().faults == 0);
}

}  // namespace

int main()
{
    const char *program = std::getenv("PYTHON");
    try {
        svmcore::api();
        EXPECT(!"no interpreter yet");
    } catch (const svmcore::error &error) {
        EXPECT(error.code() == -SVMCORE_EOPNOTSUPP);
    }
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    PyStatus status =
        PyConfig_SetBytesString(&config, &config.program_name, program ? program : "python3");
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
    run();
    EXPECT(Py_FinalizeEx() == 0);
    if (failures == 0)
        std::puts("ok");
    return failures != 0;
}
