// Range maps of C++ behind one C face, built and called by bench/rivals.py:
// std::map by hand, and boost::icl where its headers are.
//
//     c++ -O3 -std=c++17 -shared -fPIC bench/cpp/rivals.cpp -o rivals.so
//
// Pages are inclusive first..last, value 0 is a hole. No -march flag, as svmcore has none.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>

#include <malloc.h>

#if __has_include(<boost/icl/interval_map.hpp>)
#include <boost/icl/interval_map.hpp>
#include <boost/icl/split_interval_map.hpp>
#define HAVE_ICL 1
#else
#define HAVE_ICL 0
#endif

namespace {

std::size_t held = 0;

// What the heap really gives, with malloc's own word.
template <class T> struct counting {
    using value_type = T;
    counting() = default;
    template <class U> counting(const counting<U> &) {}
    T *allocate(std::size_t n)
    {
        T *p = std::allocator<T>().allocate(n);
        held += malloc_usable_size(p) + sizeof(void *);
        return p;
    }
    void deallocate(T *p, std::size_t n)
    {
        held -= malloc_usable_size(p) + sizeof(void *);
        std::allocator<T>().deallocate(p, n);
    }
    template <class U> bool operator==(const counting<U> &) const { return true; }
    template <class U> bool operator!=(const counting<U> &) const { return false; }
};

struct face {
    virtual ~face() = default;
    virtual void assign(std::uint64_t first, std::uint64_t last, std::uint32_t value) = 0;
    virtual std::uint32_t find(std::uint64_t page) const = 0;
    virtual std::size_t items(std::uint64_t *first, std::uint64_t *last, std::uint32_t *value,
                              std::size_t room) const = 0;
    // The loops are inside, so that a virtual call is paid once a batch.
    virtual void assign_all(std::size_t n, const std::uint64_t *first, const std::uint64_t *last,
                            const std::uint32_t *value) = 0;
    virtual void find_all(std::size_t n, const std::uint64_t *page, std::uint32_t *out) const = 0;
};

template <class Self> struct loops : face {
    void assign_all(std::size_t n, const std::uint64_t *first, const std::uint64_t *last,
                    const std::uint32_t *value) final
    {
        for (std::size_t i = 0; i < n; ++i)
            static_cast<Self *>(this)->Self::assign(first[i], last[i], value[i]);
    }
    void find_all(std::size_t n, const std::uint64_t *page, std::uint32_t *out) const final
    {
        for (std::size_t i = 0; i < n; ++i)
            out[i] = static_cast<const Self *>(this)->Self::find(page[i]);
    }
};

struct tree : loops<tree> {
    struct span {
        std::uint64_t last;
        std::uint32_t value;
    };
    using pair = std::pair<const std::uint64_t, span>;
    std::map<std::uint64_t, span, std::less<std::uint64_t>, counting<pair>> map;

    std::uint32_t find(std::uint64_t page) const final
    {
        auto at = map.upper_bound(page);
        if (at == map.begin())
            return 0;
        --at;
        return page <= at->second.last ? at->second.value : 0;
    }
    void assign(std::uint64_t first, std::uint64_t last, std::uint32_t value) final
    {
        auto at = map.lower_bound(first);
        if (at != map.begin()) {
            auto left = std::prev(at);
            if (left->second.last >= first) {
                if (left->second.last > last)
                    at = map.emplace_hint(at, last + 1, left->second);
                left->second.last = first - 1;
            }
        }
        while (at != map.end() && at->first <= last) {
            if (at->second.last > last) {
                auto after = std::next(at);
                auto node = map.extract(at); // its node serves as the tail
                node.key() = last + 1;
                at = map.insert(after, std::move(node));
                break;
            }
            at = map.erase(at);
        }
        if (value)
            map.emplace_hint(at, first, span{last, value});
    }
    std::size_t items(std::uint64_t *first, std::uint64_t *last, std::uint32_t *value,
                      std::size_t room) const final
    {
        std::size_t n = 0;
        for (const auto &item : map) {
            if (n < room) {
                first[n] = item.first;
                last[n] = item.second.last;
                value[n] = item.second.value;
            }
            ++n;
        }
        return n;
    }
};

#if HAVE_ICL
template <class map_t> struct icl : loops<icl<map_t>> {
    using interval = typename map_t::interval_type;
    map_t map;

    static interval of(std::uint64_t first, std::uint64_t last)
    {
        return interval::right_open(first, last + 1);
    }
    std::uint32_t find(std::uint64_t page) const final
    {
        auto at = map.find(page);
        return at == map.end() ? 0 : at->second;
    }
    void assign(std::uint64_t first, std::uint64_t last, std::uint32_t value) final
    {
        if (value)
            map.set(std::make_pair(of(first, last), value));
        else
            map.erase(of(first, last));
    }
    std::size_t items(std::uint64_t *first, std::uint64_t *last, std::uint32_t *value,
                      std::size_t room) const final
    {
        std::size_t n = 0;
        for (const auto &item : map) {
            if (n < room) {
                first[n] = boost::icl::first(item.first);
                last[n] = boost::icl::last(item.first);
                value[n] = item.second;
            }
            ++n;
        }
        return n;
    }
};

using joining = boost::icl::interval_map<
    std::uint64_t, std::uint32_t, boost::icl::partial_absorber, std::less, boost::icl::inplace_plus,
    boost::icl::inter_section, boost::icl::discrete_interval<std::uint64_t, std::less>, counting>;
using splitting = boost::icl::split_interval_map<
    std::uint64_t, std::uint32_t, boost::icl::partial_absorber, std::less, boost::icl::inplace_plus,
    boost::icl::inter_section, boost::icl::discrete_interval<std::uint64_t, std::less>, counting>;
#endif

} // namespace

extern "C" {

// 0 std::map, 1 icl::interval_map, 2 icl::split_interval_map; NULL where it is not built in.
void *rival_new(int kind)
{
    if (kind == 0)
        return static_cast<face *>(new tree);
#if HAVE_ICL
    if (kind == 1)
        return static_cast<face *>(new icl<joining>);
    if (kind == 2)
        return static_cast<face *>(new icl<splitting>);
#endif
    return nullptr;
}

void rival_free(void *map) { delete static_cast<face *>(map); }

void rival_assign(void *map, std::size_t n, const std::uint64_t *first, const std::uint64_t *last,
                  const std::uint32_t *value)
{
    static_cast<face *>(map)->assign_all(n, first, last, value);
}

void rival_find(void *map, std::size_t n, const std::uint64_t *page, std::uint32_t *out)
{
    static_cast<face *>(map)->find_all(n, page, out);
}

std::size_t rival_items(void *map, std::uint64_t *first, std::uint64_t *last, std::uint32_t *value,
                        std::size_t room)
{
    return static_cast<face *>(map)->items(first, last, value, room);
}

std::size_t rival_bytes(void) { return held; }
}
