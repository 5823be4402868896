/*
 * svmcore.hpp: svmcore.h for C++17. Header only; every function inline.
 *
 *     svmcore::Space space("gpu-80g", "kfd");       (interpreter running, GIL held)
 *     space.map(0x7f0000000000, 64 << 20);
 *     svmcore_access_t touch = space.access(0x7f0000000000, 64, SVMCORE_GPU(0), SVMCORE_WRITE);
 *
 * Errors
 *     Misuse and the driver's refusals of map, set_attr and the like throw
 *     svmcore::error, whose code() is the negative errno of svmcore.h. A fatal touch
 *     or fault is an answer, not an error: see its `code` and `reason`. What an
 *     on_event function throws reaches the caller of the call that had the effect,
 *     which was carried out.
 *
 * Threads
 *     As svmcore.h. Constructing, destroying, load and save take the GIL themselves;
 *     only api() needs it held, the first time.
 */
#ifndef SVMCORE_SVMCORE_HPP
#define SVMCORE_SVMCORE_HPP

#include "svmcore.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace svmcore {

/* A call that was refused; code() is a negative Linux errno, SVMCORE_E... . */
class error : public std::runtime_error {
public:
    error(int code, const std::string &text)
        : std::runtime_error(text.empty() ? "svmcore: errno " + std::to_string(-code)
                                          : "svmcore: " + text),
          code_(code) {}
    int code() const noexcept { return code_; }

private:
    int code_;
};

namespace detail {

/* The text of the pending Python error, which is cleared. */
inline std::string take_python_error()
{
    std::string text = "no Python interpreter runs";
    if (!Py_IsInitialized())
        return text;
    text = "import failed";
    PyObject *kind = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *shown = value ? PyObject_Str(value) : nullptr;
    const char *words = shown ? PyUnicode_AsUTF8(shown) : nullptr;
    if (words)
        text = words;
    PyErr_Clear();
    Py_XDECREF(shown);
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return text;
}

inline const svmcore_api_t *import_once()
{
    const svmcore_api_t *table = svmcore_import();
    if (!table)
        throw error(-SVMCORE_EOPNOTSUPP, take_python_error());
    return table;
}

} /* namespace detail */

/* The table of functions; throws error where svmcore cannot be imported or does not fit. */
inline const svmcore_api_t &api()
{
    static const svmcore_api_t *table = detail::import_once();
    return *table;
}

/* One space: move-only, gives its handle back at the end. */
class Space {
public:
    using Handler = std::function<void(const svmcore_event_t &)>;

    explicit Space(const std::string &machine = "gpu-80g", const std::string &policy = "kfd",
                   Space *neighbour = nullptr)
    {
        char text[256] = "";
        svmcore_options_t options = {};
        options.size = sizeof options;
        options.machine = machine.c_str();
        options.policy = policy.c_str();
        options.error = text;
        options.error_size = sizeof text;
        options.neighbour = neighbour ? neighbour->space_ : nullptr;
        int code = api().create(&options, &space_);
        if (code)
            throw error(code, text);
    }

    static Space load(const std::string &path)
    {
        char text[256] = "";
        svmcore_options_t options = {};
        options.size = sizeof options;
        options.error = text;
        options.error_size = sizeof text;
        svmcore_space *made = nullptr;
        int code = api().load(path.c_str(), &options, &made);
        if (code)
            throw error(code, text);
        return Space(made);
    }

    /* The space behind a Python object svmcore.Space. */
    static Space of(PyObject *object)
    {
        svmcore_space *made = nullptr;
        int code = api().from_object(object, &made);
        if (code)
            throw error(code, "expected a svmcore.Space whose process derives from Process");
        return Space(made);
    }

    Space(Space &&other) noexcept
        : space_(std::exchange(other.space_, nullptr)), watch_(std::move(other.watch_))
    {
    }
    Space &operator=(Space &&other) noexcept
    {
        if (this != &other) {
            close();
            space_ = std::exchange(other.space_, nullptr);
            watch_ = std::move(other.watch_);
        }
        return *this;
    }
    Space(const Space &) = delete;
    Space &operator=(const Space &) = delete;
    ~Space() { close(); }

    svmcore_space *handle() const noexcept { return space_; }

    void map(uint64_t addr, uint64_t bytes,
             uint32_t prot = SVMCORE_PROT_READ | SVMCORE_PROT_WRITE,
             uint32_t kind = SVMCORE_MAP_ANON, uint64_t t_ns = SVMCORE_NOW)
    {
        check(api().map(space_, addr, bytes, prot, kind, t_ns));
    }
    void unmap(uint64_t addr, uint64_t bytes, uint64_t t_ns = SVMCORE_NOW)
    {
        check(api().unmap(space_, addr, bytes, t_ns));
    }
    void protect(uint64_t addr, uint64_t bytes, uint32_t prot, uint64_t t_ns = SVMCORE_NOW)
    {
        check(api().protect(space_, addr, bytes, prot, t_ns));
    }
    void invalidate(uint64_t addr, uint64_t bytes, uint64_t t_ns = SVMCORE_NOW)
    {
        check(api().invalidate(space_, addr, bytes, t_ns));
    }
    void set_attr(uint64_t addr, uint64_t bytes, std::initializer_list<svmcore_attr_t> attrs,
                  uint64_t t_ns = SVMCORE_NOW)
    {
        check(api().set_attr(space_, addr, bytes, attrs.begin(),
                             static_cast<uint32_t>(attrs.size()), t_ns));
    }
    std::vector<svmcore_attr_t> get_attr(uint64_t addr, uint64_t bytes,
                                         std::vector<svmcore_attr_t> attrs,
                                         uint64_t t_ns = SVMCORE_NOW)
    {
        check(api().get_attr(space_, addr, bytes, attrs.data(),
                             static_cast<uint32_t>(attrs.size()), t_ns));
        return attrs;
    }
    void prefetch(uint64_t addr, uint64_t bytes, uint32_t location, uint64_t t_ns = SVMCORE_NOW)
    {
        check(api().prefetch(space_, addr, bytes, location, t_ns));
    }
    void advise(uint64_t addr, uint64_t bytes, const std::string &advice,
                uint32_t location = SVMCORE_LOCATION_NONE, uint64_t t_ns = SVMCORE_NOW)
    {
        check(api().advise(space_, addr, bytes, advice.c_str(), location, t_ns));
    }

    svmcore_access_t access(uint64_t addr, uint64_t bytes, uint8_t by, uint16_t flags = 0,
                            uint64_t t_ns = SVMCORE_NOW)
    {
        svmcore_access_t touch = {};
        touch.size = sizeof touch;
        touch.flags = flags;
        touch.by = by;
        touch.addr = addr;
        touch.bytes = bytes;
        touch.t_ns = t_ns;
        int code = api().access(space_, &touch);
        answered(code, touch.reason, touch.code);
        return touch;
    }
    /* Fills the answers in. Each touch needs its size set. */
    void access(std::vector<svmcore_access_t> &touches)
    {
        check(api().access_many(space_, touches.data(), touches.size(), nullptr));
    }
    svmcore_fault_t fault(uint64_t addr, uint8_t gpu, uint16_t flags = 0,
                          uint64_t t_ns = SVMCORE_NOW, uint64_t timestamp = 0)
    {
        svmcore_fault_t one = {};
        one.size = sizeof one;
        one.flags = flags;
        one.by = gpu;
        one.addr = addr;
        one.t_ns = t_ns;
        one.timestamp = timestamp;
        int code = api().fault(space_, &one);
        answered(code, one.reason, one.code);
        return one;
    }
    /* Whether there was a device memory object to take. */
    bool evict(uint64_t addr, uint64_t t_ns = SVMCORE_NOW)
    {
        int code = api().evict(space_, addr, t_ns);
        if (code == -SVMCORE_ENOENT)
            return false;
        check(code);
        return true;
    }

    void step(uint64_t t_ns) { check(api().step(space_, t_ns)); }
    std::optional<uint64_t> next_event()
    {
        uint64_t t_ns = SVMCORE_NEVER;
        check(api().next_event(space_, &t_ns));
        return t_ns == SVMCORE_NEVER ? std::nullopt : std::optional<uint64_t>(t_ns);
    }
    uint64_t now()
    {
        uint64_t t_ns = 0;
        check(api().now(space_, &t_ns));
        return t_ns;
    }
    /* Processor whose memory holds the page, SVMCORE_NOWHERE before the first touch. */
    uint32_t where(uint64_t addr)
    {
        uint32_t processor = SVMCORE_NOWHERE;
        check(api().where(space_, addr, &processor));
        return processor;
    }
    svmcore_counters_t counters()
    {
        svmcore_counters_t out = {};
        out.size = sizeof out;
        check(api().counters(space_, &out));
        return out;
    }
    svmcore_info_t info()
    {
        svmcore_info_t out = {};
        out.size = sizeof out;
        check(api().info(space_, &out));
        return out;
    }
    void save(const std::string &path) { check(api().save(space_, path.c_str())); }

    /* Watch the effects; an empty function ends it. */
    void on_event(Handler handler)
    {
        std::unique_ptr<Watch> watch;
        if (handler) {
            watch = std::make_unique<Watch>();
            watch->handler = std::move(handler);
        }
        check(api().set_event_callback(space_, watch ? &Watch::call : nullptr, watch.get()));
        watch_ = std::move(watch);
    }

    /* A new reference to the Python object. Needs the GIL, as any use of it. */
    PyObject *object()
    {
        void *out = nullptr;
        check(api().to_object(space_, &out));
        return static_cast<PyObject *>(out);
    }

private:
    /* Lives on the heap, so that a moved Space keeps the address that svmcore knows. */
    struct Watch {
        Handler handler;
        std::exception_ptr thrown;

        static int call(void *user, const svmcore_event_t *event) noexcept
        {
            Watch *self = static_cast<Watch *>(user);
            try {
                self->handler(*event);
                return 0;
            } catch (...) {
                self->thrown = std::current_exception();
                return -1;
            }
        }
    };

    explicit Space(svmcore_space *space) noexcept : space_(space) {}

    void close() noexcept
    {
        if (!space_)
            return;
        if (watch_)
            api().set_event_callback(space_, nullptr, nullptr);
        api().destroy(space_);
        space_ = nullptr;
    }

    void check(int code)
    {
        if (code == 0)
            return;
        if (code == -SVMCORE_EIO && watch_ && watch_->thrown)
            std::rethrow_exception(std::exchange(watch_->thrown, nullptr));
        std::string text;
        if (code == -SVMCORE_EBUSY)
            text = "another thread is inside this space or its node's";
        else if (code == -SVMCORE_EDEADLK)
            text = "called from the space's own event function";
        else if (space_ == nullptr)
            text = "the space was moved from";
        else {
            char room[256] = "";
            if (api().last_error(space_, room, sizeof room) == 0)
                text = room;
        }
        throw error(code, text);
    }

    /* A touch's or fault's own errno is an answer when the driver gave it. */
    void answered(int code, uint8_t reason, int32_t answer)
    {
        if (reason == SVMCORE_REASON_NONE || code != answer)
            check(code);
    }

    svmcore_space *space_ = nullptr;
    std::unique_ptr<Watch> watch_;
};

} /* namespace svmcore */

#endif
