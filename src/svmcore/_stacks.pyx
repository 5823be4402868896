# cython: language_level=3, freethreading_compatible=True
"""The event loop of launch stacks, compiled; :mod:`svmcore.stacks.reference` is its twin.

A host thread is a program counter and a few numbers. One call of `step` runs it up to
its next step, as a generator of the reference runs up to its next `yield`, and says when
it goes on. Sizes are codes: positions in the sorted list of all sizes, so that a block
is a small number and costs are looked up. Code 0 is no block.
"""
from libc.stdint cimport int8_t, int32_t, int64_t
from libc.stdlib cimport calloc, free

from .errors import InvalidArgumentError, OutOfMemoryError

cdef enum:
    BLOCKED = -1             # waits for a lock or a block
    ENDED = -2

cdef enum op_t:
    OP_LAUNCH, OP_ALLOC, OP_FREE

cdef enum policy_t:
    NONE, LOCKED, BOUNDED, TAKE_PUT, SOLE_USER, EXCLUSIVE, POOL, KEYED, LIST

POLICIES = ("none", "locked", "bounded", "take_put", "sole_user", "exclusive", "pool", "keyed",
            "list")

# How a launch uses the policy's lock: not at all, for book-keeping, or as long as it runs.
cdef enum mode_t:
    UNLOCKED, SHORT, HELD

# Where a thread goes on.
cdef enum pc_t:
    NEXT, AT, ACQUIRE, ACQUIRED, ACQUIRE_FREE, ACQUIRE_ALLOC, RUN, RUN_LOCKED, SUBMIT, RUNS,
    RELEASE, RELEASED, RELEASE_GIVE, RELEASE_FREE, ALLOC, ALLOC_LOCKED, ALLOC_PAID, ALLOC_DONE,
    FREE, FREE_LOCKED, FREE_IDLE, FREE_PAID, USER_TRIMMED, USER_TRIED, USER_FORCED, USER_RETRIED,
    TRIM, TRIM_LOCKED, TRIM_GIVE, TRIM_NEXT, TRIM_SPARE, TRIM_FREE, LEAVE

cdef struct queue_t:
    thread_t* head
    thread_t* tail

cdef struct lock_t:
    queue_t waiting
    queue_t spinning
    bint held
    int32_t waking           # waiters that wake up to try again

cdef struct slot_t:
    lock_t lock
    int32_t block

cdef struct node_t:          # an idle block of the pool, or one block of the list
    int32_t block
    int32_t next
    bint busy

cdef struct thread_t:
    int64_t at, end          # records
    int64_t since            # waits since
    int64_t until
    int64_t cost
    lock_t* lock             # the policy's lock of the launch at hand
    lock_t* woken            # wakes up to try this one again
    thread_t* next           # behind it in a queue
    pc_t pc, back, trim_back
    mode_t mode
    int32_t number
    int32_t need, block, spare, moved   # blocks: needed, had, to free, of ALLOC and FREE
    int32_t slot, slots      # of TRIM
    int32_t victims          # of TRIM, chained
    int32_t entry            # of the list
    bint fresh, pooled, stack, ok, force

cdef struct event_t:
    int64_t time
    int32_t thread

cdef struct counts_t:
    int64_t launches, hits, stack_allocs, allocs, frees, alloc_failures
    int64_t stack_peak_bytes, device_peak_bytes, kept_bytes, left_bytes
    int64_t lock_wait_ns, retries, user_failures, fatal, stuck, end_ns, makespan_ns

cdef struct costs_t:
    int64_t host_ns, launch_ns, kernel_ns, wait_ns, spin_ns, drain_ns, turn_ns, wake_ns
    bint free_waits, driver_lock, fair, concurrent

cdef struct sim_t:
    counts_t counts
    costs_t costs
    policy_t policy
    bint retries, strict, waits, by_stream, free_at_exit
    int64_t limit, k, capacity, used, stack, now, busy_until
    lock_t driver
    slot_t* slots
    int32_t* slot_of         # of a key, 1 + its place; 0 without one
    int32_t nslots
    int64_t flying, owner, busy, nidle
    queue_t sleepers
    node_t* nodes            # 0 stands for none
    int32_t idle_head, idle_tail, spare_node, nnodes
    int64_t* stream_free
    int64_t* stream_turn
    int64_t* user            # code of what lives by each id
    thread_t* threads
    event_t* heap
    int32_t nheap
    # The trace.
    const int64_t* t
    const int64_t* kernel
    const int32_t* code
    const int32_t* ident
    const int32_t* stream
    const int8_t* op
    const int64_t* size      # of a code
    const int64_t* alloc_ns
    const int64_t* free_ns
    const int8_t* shared_stream


# ---- queues ----------------------------------------------------------------------------

cdef inline bint before(const event_t* a, const event_t* b) noexcept nogil:
    return a.time < b.time or (a.time == b.time and a.thread < b.thread)


cdef void push(sim_t* s, int64_t time, int32_t thread) noexcept nogil:
    cdef int32_t i = s.nheap
    cdef int32_t up
    cdef event_t e
    e.time = time
    e.thread = thread
    s.nheap += 1
    while i > 0:
        up = (i - 1) >> 1
        if not before(&e, s.heap + up):
            break
        s.heap[i] = s.heap[up]
        i = up
    s.heap[i] = e


cdef void sink(sim_t* s, event_t e) noexcept nogil:
    """Put an event in the place of the first one."""
    cdef int32_t i = 0
    cdef int32_t child
    while True:
        child = 2 * i + 1
        if child >= s.nheap:
            break
        if child + 1 < s.nheap and before(s.heap + child + 1, s.heap + child):
            child += 1
        if not before(s.heap + child, &e):
            break
        s.heap[i] = s.heap[child]
        i = child
    s.heap[i] = e


cdef void append(queue_t* q, thread_t* th) noexcept nogil:
    th.next = NULL
    if q.tail == NULL:
        q.head = th
    else:
        q.tail.next = th
    q.tail = th


cdef thread_t* first(queue_t* q) noexcept nogil:
    cdef thread_t* th = q.head
    q.head = th.next
    if q.head == NULL:
        q.tail = NULL
    return th


# ---- locks -----------------------------------------------------------------------------

cdef void goes_on(sim_t* s, lock_t* lock, thread_t* th) noexcept nogil:
    if lock != &s.driver:
        s.counts.lock_wait_ns += s.now - th.since
    push(s, s.now, th.number)


cdef void wake(sim_t* s, lock_t* lock, thread_t* th) noexcept nogil:
    lock.waking += 1
    th.woken = lock
    push(s, s.now + s.costs.wake_ns, th.number)


cdef void give(sim_t* s, lock_t* lock) noexcept nogil:
    if lock.spinning.head != NULL:
        goes_on(s, lock, first(&lock.spinning))
    elif lock.waiting.head != NULL and s.costs.fair:
        goes_on(s, lock, first(&lock.waiting))
    else:
        lock.held = False
        if lock.waiting.head != NULL and not lock.waking:
            wake(s, lock, first(&lock.waiting))


cdef int64_t take(sim_t* s, lock_t* lock, thread_t* th, bint spin) noexcept nogil:
    cdef bint again = th.woken == lock
    if again:
        th.woken = NULL
        lock.waking -= 1
    else:
        th.since = s.now
    if not lock.held:
        lock.held = True
        if lock != &s.driver:
            s.counts.lock_wait_ns += s.now - th.since
        return s.now
    if again:
        th.next = lock.waiting.head
        lock.waiting.head = th
        if lock.waiting.tail == NULL:
            lock.waiting.tail = th
    elif spin and not s.costs.fair:
        append(&lock.spinning, th)
    else:
        append(&lock.waiting, th)
    return BLOCKED


# ---- policies --------------------------------------------------------------------------

cdef slot_t* slot_of(sim_t* s, thread_t* th) noexcept nogil:
    """The slot of a launch, made when its key is new."""
    cdef int32_t key
    if s.policy != KEYED:
        return s.slots
    key = s.stream[th.at] if s.by_stream else th.number
    if s.slot_of[key] == 0:
        s.nslots += 1
        s.slot_of[key] = s.nslots
    return s.slots + (s.slot_of[key] - 1)


cdef void choose_mode(sim_t* s, thread_t* th) noexcept nogil:
    th.mode = SHORT
    if s.policy == NONE or s.policy == LIST:
        th.mode = UNLOCKED
    elif s.policy == LOCKED or s.policy == KEYED:
        th.mode = HELD
    elif s.policy == BOUNDED:
        th.mode = HELD if s.size[th.need] <= s.limit else UNLOCKED
    th.lock = NULL if th.mode == UNLOCKED else &slot_of(s, th).lock


cdef int32_t idle_take(sim_t* s, int32_t previous) noexcept nogil:
    """Take the idle block behind *previous* out of the pool; its code."""
    cdef int32_t number = s.nodes[previous].next if previous else s.idle_head
    if previous:
        s.nodes[previous].next = s.nodes[number].next
    else:
        s.idle_head = s.nodes[number].next
    if s.idle_tail == number:
        s.idle_tail = previous
    s.nidle -= 1
    s.nodes[number].next = s.spare_node
    s.spare_node = number
    return s.nodes[number].block


cdef void idle_put(sim_t* s, int32_t block) noexcept nogil:
    cdef int32_t number = s.spare_node
    if number:
        s.spare_node = s.nodes[number].next
    else:
        s.nnodes += 1
        number = s.nnodes
    s.nodes[number].block = block
    s.nodes[number].next = 0
    if s.idle_tail:
        s.nodes[s.idle_tail].next = number
    else:
        s.idle_head = number
    s.idle_tail = number
    s.nidle += 1


cdef bint pool_acquire(sim_t* s, thread_t* th) noexcept nogil:
    """False when the thread has to sleep until a block is idle."""
    cdef int32_t number = s.idle_head
    cdef int32_t previous = 0
    cdef int32_t fit = -1
    cdef int32_t least = -1      # the nodes before the best fit and before the smallest
    cdef int32_t fit_block = 0
    cdef int32_t least_block = 0
    if s.waits and s.nidle == 0 and s.busy >= s.k:
        return False
    while number:
        if s.nodes[number].block >= th.need and (fit < 0 or s.nodes[number].block < fit_block):
            fit = previous
            fit_block = s.nodes[number].block
        if least < 0 or s.nodes[number].block < least_block:
            least = previous
            least_block = s.nodes[number].block
        previous = number
        number = s.nodes[number].next
    th.pooled = True
    if fit >= 0:
        th.block = idle_take(s, fit)
    elif s.nidle + s.busy >= s.k:
        if least >= 0:
            th.spare = idle_take(s, least)
        else:
            th.pooled = False
    s.busy += th.pooled
    return True


cdef bint acquire(sim_t* s, thread_t* th) noexcept nogil:
    """What the launch gets and what is freed for it; False when it has to sleep."""
    cdef slot_t* slot
    cdef int32_t held
    th.block = th.spare = 0
    th.fresh = False
    if th.mode == UNLOCKED:
        th.entry = 0
        if s.policy == LIST:
            for held in range(1, s.nnodes + 1):
                if not s.nodes[held].busy and s.nodes[held].block >= th.need:
                    s.nodes[held].busy = True
                    th.entry = held
                    th.block = s.nodes[held].block
                    break
        return True
    if s.policy == POOL:
        return pool_acquire(s, th)
    slot = slot_of(s, th)
    held = slot.block
    if s.policy == SOLE_USER:
        s.flying += 1
        slot.block = 0
        if s.flying > 1:
            th.spare = held
            return True
    elif s.policy == EXCLUSIVE:
        s.flying += 1
        if s.flying > 1 if s.strict else s.owner >= 0:
            return True
        s.owner = th.number
        slot.block = 0
    elif s.policy == TAKE_PUT:
        if held >= th.need:
            slot.block = 0
            th.block = held
        return True
    else:
        slot.block = 0
    if held >= th.need:
        th.block = held
    else:
        th.spare = held
    return True


cdef void release(sim_t* s, thread_t* th) noexcept nogil:
    """Where the block goes; what is freed."""
    cdef slot_t* slot
    th.spare = th.block
    if th.mode == UNLOCKED:
        if s.policy == LIST:
            s.nodes[th.entry].busy = False
            th.spare = 0
        return
    if s.policy == POOL:
        if th.pooled:
            s.busy -= 1
            idle_put(s, th.block)
            th.spare = 0
        return
    slot = slot_of(s, th)
    if s.policy == TAKE_PUT:
        if th.block <= slot.block:
            return
        th.spare = slot.block
    elif s.policy == SOLE_USER:
        s.flying -= 1
        if s.flying or slot.block:
            return
        th.spare = 0
    elif s.policy == EXCLUSIVE:
        s.flying -= 1
        if s.owner != th.number:
            return
        s.owner = -1
        th.spare = 0
    else:
        th.spare = 0
    slot.block = th.block


cdef bint over(const sim_t* s, int32_t block, bint force) noexcept nogil:
    return block > 0 and (force or s.size[block] > s.limit)


cdef void trim_spare(sim_t* s, thread_t* th) noexcept nogil:
    """Idle blocks of a policy with a short lock that a trim frees: `victims` or `spare`."""
    cdef int32_t number, previous, following, last
    th.spare = 0
    th.victims = 0
    if s.policy != POOL:
        if over(s, s.slots.block, th.force):
            th.spare = s.slots.block
            s.slots.block = 0
        return
    previous = last = 0
    number = s.idle_head
    while number:
        following = s.nodes[number].next
        if over(s, s.nodes[number].block, th.force):
            if previous:
                s.nodes[previous].next = following
            else:
                s.idle_head = following
            if last:
                s.nodes[last].next = number
            else:
                th.victims = number
            s.nodes[number].next = 0
            last = number
            s.nidle -= 1
        else:
            previous = number
        number = following
    s.idle_tail = previous


# ---- the device ------------------------------------------------------------------------

cdef bint reserve(sim_t* s, int32_t block, bint stack) noexcept nogil:
    cdef int64_t size = s.size[block]
    if size > s.capacity - s.used:
        s.counts.alloc_failures += 1
        return False
    s.used += size
    s.counts.allocs += 1
    s.counts.device_peak_bytes = max(s.counts.device_peak_bytes, s.used)
    if stack:
        s.stack += size
        s.counts.stack_allocs += 1
        s.counts.stack_peak_bytes = max(s.counts.stack_peak_bytes, s.stack)
    return True


cdef void unreserve(sim_t* s, int32_t block, bint stack) noexcept nogil:
    s.used -= s.size[block]
    s.counts.frees += 1
    if stack:
        s.stack -= s.size[block]


cdef int64_t submit(sim_t* s, thread_t* th) noexcept nogil:
    """The kernel of the launch at hand; when its host goes on."""
    cdef int32_t queue = s.stream[th.at] if s.costs.concurrent else 0
    cdef int64_t start = max(s.now, max(s.stream_free[queue], s.stream_turn[queue]))
    cdef int64_t end = start + s.costs.kernel_ns + s.kernel[th.at]
    s.stream_free[queue] = end
    s.stream_turn[queue] = start + s.costs.turn_ns
    s.busy_until = max(s.busy_until, end)
    return max(s.now, end + s.costs.wait_ns)


# ---- threads ---------------------------------------------------------------------------

cdef inline void call(thread_t* th, pc_t what, int32_t block, bint stack,
                      pc_t back) noexcept nogil:
    """Go on with ALLOC or FREE of a block, then at *back*."""
    th.pc = what
    th.moved = block
    th.stack = stack
    th.back = back


cdef inline void call_trim(thread_t* th, bint force, pc_t back) noexcept nogil:
    th.force = force
    th.trim_back = back
    th.pc = TRIM


cdef int64_t step(sim_t* s, thread_t* th) noexcept nogil:
    """Run a thread up to its next step; when it goes on, BLOCKED or ENDED."""
    cdef slot_t* slot
    cdef int32_t number
    if th.woken != NULL:
        return take(s, th.woken, th, False)
    while True:
        if th.pc == NEXT:
            th.at += 1
            if th.at < th.end:
                th.pc = AT
                return max(s.now, s.t[th.at])
            number = s.slot_of[th.number] if s.free_at_exit else 0
            if number == 0 or s.slots[number - 1].block == 0:
                return ENDED
            call(th, FREE, s.slots[number - 1].block, True, LEAVE)
            s.slots[number - 1].block = 0
        elif th.pc == LEAVE:
            return ENDED

        elif th.pc == AT:
            if s.op[th.at] == OP_LAUNCH:
                s.counts.launches += 1
                th.need = s.code[th.at]
                th.pc = ACQUIRE
                if s.costs.host_ns:
                    return s.now + s.costs.host_ns
            elif s.op[th.at] == OP_ALLOC:
                if s.retries:
                    call_trim(th, False, USER_TRIMMED)
                else:
                    th.pc = USER_TRIMMED
            else:
                th.pc = NEXT
                number = <int32_t>s.user[s.ident[th.at]]
                if number:
                    s.user[s.ident[th.at]] = 0
                    call(th, FREE, number, False, NEXT)

        # A launch.
        elif th.pc == ACQUIRE:
            choose_mode(s, th)
            th.pc = ACQUIRED
            if th.mode != UNLOCKED:
                return take(s, th.lock, th, False)
        elif th.pc == ACQUIRED:
            if not acquire(s, th):
                th.since = s.now
                append(&s.sleepers, th)
                give(s, th.lock)
                return BLOCKED
            th.pc = ACQUIRE_FREE
            if th.mode == SHORT:
                give(s, th.lock)
                return s.now
        elif th.pc == ACQUIRE_FREE:
            th.pc = ACQUIRE_ALLOC
            if th.spare:
                call(th, FREE, th.spare, True, ACQUIRE_ALLOC)
        elif th.pc == ACQUIRE_ALLOC:
            th.pc = RUN
            if th.block == 0:
                th.block = th.need
                th.fresh = True
                call(th, ALLOC, th.need, True, RUN)
        elif th.pc == RUN:
            if not th.fresh:
                s.counts.hits += 1
            elif s.policy == LIST:
                s.nnodes += 1
                th.entry = s.nnodes
                s.nodes[th.entry].block = th.block
                s.nodes[th.entry].busy = True
            th.pc = RUN_LOCKED
            if s.costs.driver_lock:
                return take(s, &s.driver, th, not s.shared_stream[s.stream[th.at]])
        elif th.pc == RUN_LOCKED:
            th.pc = SUBMIT
            if s.costs.launch_ns:
                return s.now + s.costs.launch_ns
        elif th.pc == SUBMIT:
            th.until = submit(s, th)
            th.pc = RUNS
            if s.costs.driver_lock:
                give(s, &s.driver)
                return s.now
        elif th.pc == RUNS:
            th.pc = RELEASE
            return max(s.now, th.until)
        elif th.pc == RELEASE:
            th.pc = RELEASED
            if th.mode == SHORT and (s.policy != POOL or th.pooled):
                return take(s, th.lock, th, False)
        elif th.pc == RELEASED:
            release(s, th)
            th.pc = RELEASE_GIVE
            if th.mode == UNLOCKED or (s.policy == POOL and not th.pooled):
                th.pc = RELEASE_FREE
            elif s.sleepers.head != NULL:
                if s.costs.fair:
                    append(&th.lock.waiting, first(&s.sleepers))
                else:
                    wake(s, th.lock, first(&s.sleepers))
                return s.now
        elif th.pc == RELEASE_GIVE:
            th.pc = RELEASE_FREE
            give(s, th.lock)
            return s.now
        elif th.pc == RELEASE_FREE:
            th.pc = NEXT
            if th.spare:
                call(th, FREE, th.spare, True, NEXT)

        # An allocation and a free of the driver.
        elif th.pc == ALLOC:
            th.pc = ALLOC_LOCKED
            if s.costs.driver_lock:
                return take(s, &s.driver, th, False)
        elif th.pc == ALLOC_LOCKED:
            th.pc = ALLOC_PAID
            return s.now + s.alloc_ns[th.moved]
        elif th.pc == ALLOC_PAID:
            th.ok = reserve(s, th.moved, th.stack)
            th.pc = ALLOC_DONE
            if s.costs.driver_lock:
                give(s, &s.driver)
                return s.now
        elif th.pc == ALLOC_DONE:
            if th.stack and not th.ok:
                s.counts.fatal += 1
                return ENDED
            th.pc = th.back
        elif th.pc == FREE:
            th.pc = FREE_LOCKED
            if s.costs.driver_lock:
                return take(s, &s.driver, th, False)
        elif th.pc == FREE_LOCKED:
            th.pc = FREE_IDLE
            th.cost = s.free_ns[th.moved]
            if s.costs.free_waits and (th.stack or s.costs.driver_lock):
                if s.busy_until > s.now + s.costs.spin_ns:
                    th.cost += s.costs.drain_ns
                return max(s.now, s.busy_until)
        elif th.pc == FREE_IDLE:
            th.pc = FREE_PAID
            return s.now + th.cost
        elif th.pc == FREE_PAID:
            unreserve(s, th.moved, th.stack)
            th.pc = th.back
            if s.costs.driver_lock:
                give(s, &s.driver)
                return s.now

        # A user's allocation.
        elif th.pc == USER_TRIMMED:
            call(th, ALLOC, s.code[th.at], False, USER_TRIED)
        elif th.pc == USER_TRIED:
            if not th.ok and s.retries:
                call_trim(th, True, USER_FORCED)
            else:
                th.pc = USER_RETRIED
        elif th.pc == USER_FORCED:
            s.counts.retries += 1
            call(th, ALLOC, s.code[th.at], False, USER_RETRIED)
        elif th.pc == USER_RETRIED:
            if th.ok:
                s.user[s.ident[th.at]] = s.code[th.at]
            else:
                s.counts.user_failures += 1
            th.pc = NEXT

        # A trim, of slots whose lock is held while a block is freed ...
        elif th.pc == TRIM:
            th.slot = 0
            th.slots = s.nslots
            if s.policy == LOCKED or s.policy == BOUNDED or s.policy == KEYED:
                th.pc = TRIM_NEXT
            else:
                th.pc = TRIM_SPARE
                return take(s, &s.slots.lock, th, False)
        elif th.pc == TRIM_NEXT:
            if th.slot == th.slots:
                th.pc = th.trim_back
            else:
                th.pc = TRIM_LOCKED
                return take(s, &s.slots[th.slot].lock, th, False)
        elif th.pc == TRIM_LOCKED:
            slot = s.slots + th.slot
            th.pc = TRIM_GIVE
            if over(s, slot.block, th.force):
                call(th, FREE, slot.block, True, TRIM_GIVE)
                slot.block = 0
        elif th.pc == TRIM_GIVE:
            give(s, &s.slots[th.slot].lock)
            th.slot += 1
            th.pc = TRIM_NEXT
            return s.now
        # ... and of idle blocks that are freed outside the lock.
        elif th.pc == TRIM_SPARE:
            trim_spare(s, th)
            give(s, &s.slots.lock)
            th.pc = TRIM_FREE
            return s.now
        else:  # TRIM_FREE
            number = th.victims
            if number:
                th.spare = s.nodes[number].block
                th.victims = s.nodes[number].next
                s.nodes[number].next = s.spare_node
                s.spare_node = number
            if th.spare:
                call(th, FREE, th.spare, True, TRIM_FREE)
                th.spare = 0
            else:
                th.pc = th.trim_back


cdef void close_block(sim_t* s, int32_t block) noexcept nogil:
    cdef int64_t cost
    if block == 0:
        return
    cost = s.free_ns[block]
    if s.costs.free_waits:
        if s.busy_until > s.now + s.costs.spin_ns:
            cost += s.costs.drain_ns
        s.now = max(s.now, s.busy_until)
    s.now += cost
    unreserve(s, block, True)


cdef void close_device(sim_t* s) noexcept nogil:
    """The policy frees what it keeps, one after the other."""
    cdef int32_t i
    for i in range(s.nslots):
        close_block(s, s.slots[i].block)
    if s.policy == LIST:
        for i in range(1, s.nnodes + 1):
            close_block(s, s.nodes[i].block)
    else:
        i = s.idle_head
        while i:
            close_block(s, s.nodes[i].block)
            i = s.nodes[i].next


cdef void simulate(sim_t* s, int32_t nthreads) noexcept nogil:
    cdef int32_t number
    cdef int64_t time
    cdef event_t e
    for number in range(nthreads):
        push(s, 0, number)
    s.counts.stuck = nthreads
    while s.nheap:
        e = s.heap[0]
        s.nheap -= 1
        if s.nheap:
            sink(s, s.heap[s.nheap])
        while True:
            s.now = e.time
            time = step(s, s.threads + e.thread)
            if time < 0:
                s.counts.stuck -= time == ENDED
                break
            e.time = time
            if s.nheap and before(s.heap, &e):
                push(s, e.time, e.thread)
                break
    s.counts.kept_bytes = s.stack
    s.counts.end_ns = s.now
    close_device(s)
    s.counts.left_bytes = s.used
    s.counts.makespan_ns = s.now


def run(*, const int64_t[::1] t, const int64_t[::1] kernel, const int32_t[::1] code,
        const int32_t[::1] ident, const int32_t[::1] stream, const int8_t[::1] op,
        const int64_t[::1] starts, const int64_t[::1] size, const int64_t[::1] alloc_ns,
        const int64_t[::1] free_ns, const int8_t[::1] shared_stream, int32_t nids,
        str policy, bint retries, int64_t limit, int64_t k, bint waits, bint strict,
        bint by_stream, bint free_at_exit, costs, int64_t capacity):
    """Run a trace, ordered by thread, through a policy; the counters by name.

    Parameters
    ----------
    t, kernel, code, ident, stream, op : arrays, one element a record
        Not before (ns), kernel time (ns), code of the size, number of an allocation,
        number of a stream, kind.
    starts : array, one element a thread and one more
        Records of thread *i* are ``starts[i]`` to ``starts[i + 1]``.
    size, alloc_ns, free_ns : arrays, one element a code
        Bytes in ascending order and what they cost; element 0 is not used.
    shared_stream : array, one element a stream
        Whether several threads launch into it.
    nids : int
        Numbers of allocations.
    policy : str
        One of POLICIES; *retries* to *free_at_exit* are its parameters.
    costs : LaunchCosts
    capacity : int
        Bytes of the device.

    Raises
    ------
    InvalidArgumentError
        If the arrays do not fit together.
    OutOfMemoryError
        If the state cannot be allocated.
    """
    cdef Py_ssize_t n = t.shape[0]
    cdef Py_ssize_t nthreads = starts.shape[0] - 1
    cdef Py_ssize_t nstreams = shared_stream.shape[0]
    cdef Py_ssize_t i
    cdef int64_t launches = 0
    cdef int64_t keys
    cdef int32_t which
    cdef sim_t* s
    if policy not in POLICIES:
        raise InvalidArgumentError(f"policy {policy!r}: expected one of {', '.join(POLICIES)}")
    if not (n and nthreads > 0 and nstreams and size.shape[0] == alloc_ns.shape[0]
            and size.shape[0] == free_ns.shape[0] and kernel.shape[0] == n
            and code.shape[0] == n and ident.shape[0] == n and stream.shape[0] == n
            and op.shape[0] == n and starts[0] == 0 and starts[nthreads] == n
            and n < 1 << 30 and nids >= 0):
        raise InvalidArgumentError("launch trace: expected arrays of one length, 1 record or more")
    for i in range(nthreads):
        if starts[i] > starts[i + 1]:
            raise InvalidArgumentError(f"launch trace: thread {i}: expected ascending starts")
    for i in range(n):
        launches += op[i] == OP_LAUNCH
        if not (0 <= code[i] < size.shape[0] and 0 <= stream[i] < nstreams
                and OP_LAUNCH <= op[i] <= OP_FREE
                and (op[i] == OP_LAUNCH or 0 <= ident[i] < nids)):
            raise InvalidArgumentError(f"launch trace: record {i}: expected codes in their tables")
    keys = max(nthreads, nstreams)
    which = POLICIES.index(policy)
    s = <sim_t*>calloc(1, sizeof(sim_t))
    if s == NULL:
        raise OutOfMemoryError("launch stacks: no memory for the state")
    try:
        s.policy = <policy_t>which
        s.retries, s.strict, s.waits = retries, strict, waits
        s.by_stream, s.free_at_exit = by_stream, free_at_exit
        s.limit, s.k, s.capacity = limit, k, capacity
        s.owner = -1
        s.nslots = 0 if s.policy == KEYED else 1
        s.costs.host_ns, s.costs.launch_ns = costs.host_ns, costs.launch_ns
        s.costs.kernel_ns, s.costs.wait_ns = costs.kernel_ns, costs.wait_ns
        s.costs.spin_ns, s.costs.drain_ns = costs.spin_ns, costs.drain_ns
        s.costs.turn_ns, s.costs.wake_ns = costs.turn_ns, costs.wake_ns
        s.costs.free_waits, s.costs.driver_lock = costs.free_waits, costs.driver_lock
        s.costs.fair, s.costs.concurrent = costs.fair, costs.concurrent
        s.slots = <slot_t*>calloc(keys, sizeof(slot_t))
        s.slot_of = <int32_t*>calloc(keys, sizeof(int32_t))
        # A node is a block that lives: each launch makes one at most.
        s.nodes = <node_t*>calloc(
            launches + 1 if s.policy == POOL or s.policy == LIST else 1, sizeof(node_t))
        s.stream_free = <int64_t*>calloc(nstreams, sizeof(int64_t))
        s.stream_turn = <int64_t*>calloc(nstreams, sizeof(int64_t))
        s.user = <int64_t*>calloc(nids + 1, sizeof(int64_t))
        s.threads = <thread_t*>calloc(nthreads, sizeof(thread_t))
        s.heap = <event_t*>calloc(nthreads, sizeof(event_t))
        if (s.slots == NULL or s.slot_of == NULL or s.nodes == NULL or s.stream_free == NULL
                or s.stream_turn == NULL or s.user == NULL or s.threads == NULL
                or s.heap == NULL):
            raise OutOfMemoryError("launch stacks: no memory for the state")
        s.t, s.kernel, s.code, s.ident = &t[0], &kernel[0], &code[0], &ident[0]
        s.stream, s.op, s.size = &stream[0], &op[0], &size[0]
        s.alloc_ns, s.free_ns, s.shared_stream = &alloc_ns[0], &free_ns[0], &shared_stream[0]
        for i in range(nthreads):
            s.threads[i].number = <int32_t>i
            s.threads[i].at = starts[i] - 1
            s.threads[i].end = starts[i + 1]
            s.threads[i].pc = NEXT
        with nogil:
            simulate(s, <int32_t>nthreads)
        return dict(s.counts)
    finally:
        free(s.slots)
        free(s.slot_of)
        free(s.nodes)
        free(s.stream_free)
        free(s.stream_turn)
        free(s.user)
        free(s.threads)
        free(s.heap)
        free(s)
