// Measures launches that each need a device block, under five cache policies.
//
//   nvcc -O2 -std=c++17 -arch=native bench/launch_stacks.cu -o launch_stacks -lcuda
//   ./launch_stacks > launches.csv
//   svmcore stacks --measured launches.csv
//
// A row is one run of T host threads that each launch N kernels and wait for every one; the
// better of two runs counts. A kernel of 0 us is empty, the others spin on the device's clock.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

namespace {

enum Policy { per_launch, single_locked, pool3, per_thread, exclusive_only };
const char *const names[] = {"per_launch", "single_locked", "pool3", "per_thread",
                             "exclusive_only"};
constexpr size_t pool_blocks = 3;

__global__ void spin(unsigned long long ns) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < ns);
}

void check(CUresult result) {
    if (result != CUDA_SUCCESS) {
        const char *text = "";
        cuGetErrorString(result, &text);
        std::fprintf(stderr, "launch_stacks: %s\n", text);
        std::exit(2);
    }
}

CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr block = 0;
    check(cuMemAlloc(&block, bytes));
    return block;
}

void launch(CUstream stream, unsigned long long ns) {
    spin<<<1, 32, 0, reinterpret_cast<cudaStream_t>(stream)>>>(ns);
    check(cuStreamSynchronize(stream));
}

// What the threads of one run share.
struct Cache {
    std::mutex lock;
    std::condition_variable idle_again;
    CUdeviceptr block = 0;          // single_locked, exclusive_only
    std::vector<CUdeviceptr> idle;  // pool3
    size_t made = 0;
};

void one_launch(Policy policy, Cache &cache, CUdeviceptr &own, CUstream stream, size_t bytes,
                unsigned long long ns) {
    if (policy == single_locked) {
        std::lock_guard<std::mutex> held(cache.lock);
        if (!cache.block) cache.block = allocate(bytes);
        launch(stream, ns);
    } else if (policy == pool3) {
        CUdeviceptr block = 0;
        {
            std::unique_lock<std::mutex> held(cache.lock);
            cache.idle_again.wait(
                held, [&] { return !cache.idle.empty() || cache.made < pool_blocks; });
            if (cache.idle.empty()) {
                cache.made++;
            } else {
                block = cache.idle.back();
                cache.idle.pop_back();
            }
        }
        if (!block) block = allocate(bytes);
        launch(stream, ns);
        {
            std::lock_guard<std::mutex> held(cache.lock);
            cache.idle.push_back(block);
        }
        cache.idle_again.notify_one();
    } else if (policy == per_thread) {
        if (!own) own = allocate(bytes);
        launch(stream, ns);
    } else if (policy == exclusive_only && cache.lock.try_lock()) {
        if (!cache.block) cache.block = allocate(bytes);
        launch(stream, ns);
        cache.lock.unlock();
    } else {  // per_launch, and exclusive_only while another launch has the block
        const CUdeviceptr block = allocate(bytes);
        launch(stream, ns);
        check(cuMemFree(block));
    }
}

// Microseconds a launch.
double run(Policy policy, bool own_stream, int threads, size_t bytes, unsigned long long ns,
           int launches) {
    Cache cache;
    CUcontext context;
    check(cuCtxGetCurrent(&context));
    std::vector<CUstream> streams(threads, nullptr);
    if (own_stream)
        for (CUstream &stream : streams) check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    launch(streams[0], 0);
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> hosts;
    for (int i = 0; i < threads; i++)
        hosts.emplace_back([&, i] {
            check(cuCtxSetCurrent(context));
            CUdeviceptr own = 0;
            for (int j = 0; j < launches; j++)
                one_launch(policy, cache, own, streams[i], bytes, ns);
            if (own) check(cuMemFree(own));
        });
    for (std::thread &host : hosts) host.join();
    const std::chrono::duration<double, std::micro> took =
        std::chrono::steady_clock::now() - begin;
    if (cache.block) check(cuMemFree(cache.block));
    for (CUdeviceptr block : cache.idle) check(cuMemFree(block));
    if (own_stream)
        for (CUstream stream : streams) check(cuStreamDestroy(stream));
    return took.count() / threads / launches;
}

}  // namespace

int main() {
    if (cudaFree(nullptr) != cudaSuccess) {  // makes the context
        std::fprintf(stderr, "launch_stacks: expected a CUDA device\n");
        return 2;
    }
    std::puts("policy,own_stream,threads,stack_mib,kernel_us,launches,us_per_launch");
    for (const bool own_stream : {false, true})
        for (const int threads : {1, 2, 4, 8, 16})
            for (const size_t mib : {16, 50, 256})
                for (const int us : {0, 50, 500})
                    for (const Policy policy :
                         {per_launch, single_locked, pool3, per_thread, exclusive_only}) {
                        const int launches = us == 500 ? 60 : 200;
                        double best = 1e99;
                        for (int turn = 0; turn < 2; turn++)
                            best = std::min(best, run(policy, own_stream, threads, mib << 20,
                                                      us * 1000ULL, launches));
                        std::printf("%s,%d,%d,%zu,%d,%d,%.2f\n", names[policy], own_stream,
                                    threads, mib, us, launches * threads, best);
                        std::fflush(stdout);
                    }
    return 0;
}
