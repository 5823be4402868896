// A small event-driven GPU simulator in gem5's manner: time in ticks of 1 ps, objects that
// schedule events, a TLB in each compute unit. A TLB miss goes to svmcore, the latency comes
// back; when the driver invalidates pages, the TLBs drop them.
#include <svmcore/svmcore.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <list>
#include <queue>
#include <unordered_map>
#include <vector>

namespace {

using Tick = uint64_t;
constexpr Tick NS = 1000;  // ticks
constexpr uint64_t PAGE = 4096;
constexpr uint64_t MIB = uint64_t{1} << 20;

class EventQueue {
public:
    void schedule(Tick when, std::function<void()> run)
    {
        events_.push({when, serial_++, std::move(run)});
    }
    Tick now() const { return now_; }
    void run()
    {
        while (!events_.empty()) {
            Event event = events_.top();
            events_.pop();
            now_ = event.when;
            event.run();
        }
    }

private:
    struct Event {
        Tick when;
        uint64_t serial;  // equal times run in the order they were scheduled
        std::function<void()> run;
        bool operator<(const Event &other) const
        {
            return when != other.when ? when > other.when : serial > other.serial;
        }
    };
    std::priority_queue<Event> events_;
    Tick now_ = 0;
    uint64_t serial_ = 0;
};

// Least recently used, by page number.
class Tlb {
public:
    explicit Tlb(size_t entries) : entries_(entries) {}
    bool find(uint64_t page, bool write)
    {
        auto known = where_.find(page);
        if (known == where_.end() || (write && !known->second->writable)) {
            ++misses;
            return false;
        }
        order_.splice(order_.begin(), order_, known->second);
        ++hits;
        return true;
    }
    void fill(uint64_t page, bool writable)
    {
        drop(page, page);
        order_.push_front({page, writable});
        where_[page] = order_.begin();
        if (order_.size() > entries_) {
            where_.erase(order_.back().page);
            order_.pop_back();
        }
    }
    void drop(uint64_t first, uint64_t last)
    {
        for (auto line = order_.begin(); line != order_.end();) {
            if (line->page < first || line->page > last) {
                ++line;
                continue;
            }
            where_.erase(line->page);
            line = order_.erase(line);
            ++shootdowns;
        }
    }
    uint64_t hits = 0, misses = 0, shootdowns = 0;

private:
    struct Line {
        uint64_t page;
        bool writable;
    };
    size_t entries_;
    std::list<Line> order_;
    std::unordered_map<uint64_t, std::list<Line>::iterator> where_;
};

// Streams over its share of a buffer, one 256-byte line a request, in order.
class ComputeUnit {
public:
    ComputeUnit(EventQueue &queue, svmcore::Space &space) : tlb(32), queue_(queue), space_(space) {}
    void start(uint64_t addr, uint64_t bytes, bool write)
    {
        next_ = addr;
        end_ = addr + bytes;
        write_ = write;
        queue_.schedule(queue_.now(), [this] { issue(); });
    }
    Tlb tlb;
    Tick translation = 0;
    uint64_t remote = 0;

private:
    static constexpr Tick MEMORY = 80 * NS, REMOTE = 600 * NS;

    void issue()
    {
        if (next_ == end_)
            return;
        Tick ready = queue_.now();
        if (!tlb.find(next_ / PAGE, write_)) {
            // QUEUE: another unit's fault may have moved the driver's clock past ours.
            const uint16_t flags =
                static_cast<uint16_t>(SVMCORE_QUEUE | (write_ ? SVMCORE_WRITE : 0));
            svmcore_access_t miss =
                space_.access(next_, 256, SVMCORE_GPU(0), flags, queue_.now() / NS);
            if (miss.code)
                throw svmcore::error(miss.code, svmcore::api().reason_name(miss.reason));
            // A miss without a fault does not wait for the faults of others.
            ready += miss.faults || miss.duplicates ? miss.ready_ns * NS - ready : miss.took_ns * NS;
            translation += ready - queue_.now();
            tlb.fill(next_ / PAGE, write_);
        }
        const bool local = space_.where(next_) == SVMCORE_GPU(0);
        remote += !local;
        next_ += 256;
        queue_.schedule(ready + (local ? MEMORY : REMOTE), [this] { issue(); });
    }

    EventQueue &queue_;
    svmcore::Space &space_;
    uint64_t next_ = 0, end_ = 0;
    bool write_ = false;
};

void stat(const char *name, uint64_t value, const char *text)
{
    std::printf("%-40s %14llu  # %s\n", name, static_cast<unsigned long long>(value), text);
}

void simulate()
{
    constexpr uint64_t BUFFER = 0x7f0000000000;
    svmcore::Space space("gpu-80g", "kfd");
    EventQueue queue;
    std::vector<ComputeUnit> units;
    for (int i = 0; i < 4; ++i)
        units.emplace_back(queue, space);
    space.map(BUFFER, 8 * MIB);
    space.set_attr(BUFFER, 8 * MIB, {{SVMCORE_ATTR_GRANULARITY, 8}});
    space.on_event([&units](const svmcore_event_t &event) {
        if (event.kind == SVMCORE_EVENT_UNMAP)
            for (ComputeUnit &unit : units)
                unit.tlb.drop(event.addr / PAGE, (event.addr + event.bytes - 1) / PAGE);
    });

    const auto kernel = [&](bool write) {
        for (size_t i = 0; i < units.size(); ++i)
            units[i].start(BUFFER + 2 * MIB * i, 2 * MIB, write);
        queue.run();
    };
    kernel(true);
    const Tick first = queue.now();
    // The host program reads a quarter of the result: those pages come back.
    space.step(std::max(space.now(), queue.now() / NS));
    space.access(BUFFER, 2 * MIB, SVMCORE_CPU);
    queue.schedule(space.now() * NS, [] {});
    queue.run();
    const Tick host = queue.now();
    kernel(false);

    svmcore_counters_t counters = space.counters();
    uint64_t hits = 0, misses = 0, shootdowns = 0, translation = 0, remote = 0;
    for (const ComputeUnit &unit : units) {
        hits += unit.tlb.hits;
        misses += unit.tlb.misses;
        shootdowns += unit.tlb.shootdowns;
        translation += unit.translation;
        remote += unit.remote;
    }
    std::puts("---------- Begin Simulation Statistics ----------");
    stat("sim_ticks", queue.now(), "ticks of 1 ps");
    stat("system.kernel0.ticks", first, "first kernel, every page faults once");
    stat("system.kernel1.ticks", queue.now() - host, "second kernel, a quarter comes back");
    stat("system.gpu.tlb.hits", hits, "translations found");
    stat("system.gpu.tlb.misses", misses, "translations that asked the driver model");
    stat("system.gpu.tlb.shootdowns", shootdowns, "lines dropped for the driver");
    stat("system.gpu.translation_ticks", translation, "waited for misses, all units");
    stat("system.gpu.remote_lines", remote, "lines read from the host's memory");
    stat("system.svm.faults", counters.faults, "faults served");
    stat("system.svm.migrations", counters.migrations, "moves of more than 0 pages");
    stat("system.svm.migrated_bytes", counters.migrated_bytes, "bytes moved");
    std::puts("---------- End Simulation Statistics   ----------");
}

}  // namespace

int main()
{
    const char *program = std::getenv("PYTHON");
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    PyStatus status =
        PyConfig_SetBytesString(&config, &config.program_name, program ? program : "python3");
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
    int code = 0;
    try {
        svmcore::api();
        PyThreadState *python = PyEval_SaveThread();
        try {
            simulate();
        } catch (...) {
            PyEval_RestoreThread(python);
            throw;
        }
        PyEval_RestoreThread(python);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        code = 1;
    }
    return Py_FinalizeEx() < 0 ? 1 : code;
}
