/* A stand-in for libcuda.so.1 without a GPU: two devices in host memory, and the
 * checkpoint functions with a real driver's answers. What one process must know of
 * another is a file named by its pid in the folder FAKE_CUDA. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RUNNING, LOCKED, CHECKPOINTED };
enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, OPERATING_SYSTEM = 304, ILLEGAL_STATE = 401,
       NOT_READY = 600 };
enum { DEVICES = 2, THREAD = 1 << 24 };

typedef struct {
    int state;
    int gpu[DEVICES];          /* of each device of the process */
    int mib[DEVICES];
    double busy_until;
} process_t;

typedef struct {
    unsigned char old_uuid[16], new_uuid[16];
} pair_t;

typedef struct {
    pair_t *pairs;
    uint32_t count, padding;
    void *storage;
    uint64_t reserved[5];
} restore_args_t;

static int current;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int reach(int pid, process_t *process, const char *mode) {
    char name[512];
    FILE *file;
    size_t done;
    const char *folder = getenv("FAKE_CUDA");
    snprintf(name, sizeof name, "%s/%d", folder ? folder : ".", pid);
    file = fopen(name, mode);
    if (!file)
        return 0;
    done = *mode == 'r' ? fread(process, sizeof *process, 1, file)
                        : fwrite(process, sizeof *process, 1, file);
    fclose(file);
    return done == 1;
}

static int target(int *pid, process_t *process) {
    if (*pid > THREAD)
        *pid -= THREAD;
    if (*pid <= 0 || kill(*pid, 0))
        return OPERATING_SYSTEM;
    return reach(*pid, process, "r") ? 0 : NOT_INITIALIZED;
}

static int step(int pid, int from, int to) {
    process_t process;
    int error = target(&pid, &process);
    if (error)
        return error;
    if (process.state != from)
        return ILLEGAL_STATE;
    process.state = to;
    reach(pid, &process, "w");
    return 0;
}

static int gpu_of(const unsigned char *uuid) {
    int gpu = uuid[15] - 1, i;
    for (i = 0; i < 15; i++)
        if (uuid[i])
            return -1;
    return gpu >= 0 && gpu < DEVICES ? gpu : -1;
}

int cuInit(unsigned flags) {
    process_t process = {RUNNING, {0, 1}, {0, 0}, 0};
    (void)flags;
    return reach(getpid(), &process, "r") || reach(getpid(), &process, "w") ? 0 : 999;
}

/* The way cuda.bindings finds functions. */
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *status) {
    (void)version; (void)flags;
    *function = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name);
    if (status)
        *status = *function ? 0 : 1;
    return *function ? 0 : 500;
}

int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = DEVICES; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)(uintptr_t)(device + 1);
    return 0;
}
int cuCtxSetCurrent(void *context) { current = (int)(uintptr_t)context - 1; return 0; }
int cuCtxSynchronize(void) { return 0; }

int cuDeviceGetUuid(unsigned char *uuid, int device) {
    process_t process;
    if (!reach(getpid(), &process, "r"))
        return NOT_INITIALIZED;
    memset(uuid, 0, 16);
    uuid[15] = (unsigned char)(process.gpu[device] + 1);
    return 0;
}

int cuMemAlloc_v2(uint64_t *pointer, size_t size) {
    process_t process;
    *pointer = (uint64_t)(uintptr_t)malloc(size);
    reach(getpid(), &process, "r");
    process.mib[current] += (int)(size >> 20);
    reach(getpid(), &process, "w");
    return *pointer ? 0 : 2;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    process_t process;
    double left;
    reach(getpid(), &process, "r");
    left = process.busy_until - now();
    if (left > 0)
        usleep((useconds_t)(left * 1e6));
    memcpy(to, (void *)(uintptr_t)from, size);
    return 0;
}

int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void *stream) {
    process_t process;
    (void)to; (void)value; (void)count; (void)stream;
    reach(getpid(), &process, "r");
    process.busy_until = now() + 0.5;
    reach(getpid(), &process, "w");
    return 0;
}

int cuCheckpointProcessGetState(int pid, int *state) {
    process_t process;
    int error = target(&pid, &process);
    *state = error ? -1 : process.state;
    return error;
}

int cuCheckpointProcessGetRestoreThreadId(int pid, int *thread) {
    process_t process;
    int error = target(&pid, &process);
    *thread = pid + THREAD;
    return error;
}

int cuCheckpointProcessLock(int pid, const uint32_t *args) {
    process_t process;
    int error = target(&pid, &process);
    if (!error && args && args[0] && process.state == RUNNING
        && process.busy_until > now() + args[0] / 1e3) {
        usleep(args[0] * 1000);
        return NOT_READY;
    }
    return error ? error : step(pid, RUNNING, LOCKED);
}

int cuCheckpointProcessCheckpoint(int pid, const void *args) {
    (void)args;
    return step(pid, LOCKED, CHECKPOINTED);
}

int cuCheckpointProcessRestore(int pid, const restore_args_t *args) {
    process_t process;
    int error = target(&pid, &process), to[DEVICES] = {-1, -1}, taken[DEVICES] = {0, 0};
    int old, new;
    uint32_t i;
    if (error || process.state != CHECKPOINTED || !args || !args->count)
        return error ? error : step(pid, CHECKPOINTED, LOCKED);
    for (i = 0; i < args->count; i++) {
        old = gpu_of(args->pairs[i].old_uuid);
        new = gpu_of(args->pairs[i].new_uuid);
        if (old < 0 || new < 0 || to[old] >= 0 || taken[new])
            return INVALID_VALUE;
        to[old] = new;
        taken[new] = 1;
    }
    if (args->count != DEVICES)
        return INVALID_VALUE;
    for (i = 0; i < DEVICES; i++)
        process.gpu[i] = to[process.gpu[i]];
    process.state = LOCKED;
    reach(pid, &process, "w");
    return 0;
}

int cuCheckpointProcessUnlock(int pid, const void *args) {
    (void)args;
    return step(pid, LOCKED, RUNNING);
}
