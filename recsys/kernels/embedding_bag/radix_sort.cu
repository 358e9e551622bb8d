// A stable radix sort of 32-bit keys with 32-bit values, one pass over memory a digit ("onesweep",
// arXiv:2206.01784). Compiled when it is first used, with BITS, PASSES, ITEMS and COUNTED defined.
//
// Tiles of THREADS * ITEMS pairs are taken in order. A block ranks its pairs by digit, learns from
// the tiles before it how many of each digit they hold, and writes its pairs behind theirs. What a
// tile holds is one word a digit: a count, and whether it is this tile's alone or all up to it.

typedef unsigned int u32;

#ifndef THREADS
#define THREADS 512
#endif
#define WARPS (THREADS / 32)
#define BINS (1 << BITS)
#define TILE (THREADS * ITEMS)
#define ALL 0xFFFFFFFFu
#define OF_TILE (1u << 30)
#define UP_TO_TILE (2u << 30)
#define COUNT (OF_TILE - 1)
#define LOOK_BACK 8
// Marks of 9 bits and counts together are more than 48 KiB.
#define MARKED (BITS <= 8)

struct Pass {
    const u32* keys;
    const u32* values;  // None: the places themselves
    u32* sorted_keys;
    u32* sorted_values;
    const u32* digits;  // [BINS], how often each digit occurs
    u32* status;        // [tiles, BINS], 0 at first
    u32* next_tile;     // 0 at first
    int count;
    int shift;
};

struct Count {
    const u32* keys;
    u32* digits;  // [PASSES, BINS], 0 at first
    int count;
};

__device__ __forceinline__ u32 load_status(const u32* at) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ void store_status(u32* at, u32 value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

// Sum of the values of all threads before this one; all threads call it.
__device__ __forceinline__ u32 sum_before(u32 value, u32* of_warps) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 sum = value;
    for (int step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(ALL, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) of_warps[warp] = sum;
    __syncthreads();
    u32 before = 0;
    for (int w = 0; w < warp; ++w) before += of_warps[w];
    __syncthreads();
    return before + sum - value;
}

extern "C" __global__ void __launch_bounds__(THREADS) count_digits(const Count arguments) {
    __shared__ u32 found[PASSES * BINS];
    for (int j = threadIdx.x; j < PASSES * BINS; j += THREADS) found[j] = 0;
    __syncthreads();
    const int stride = gridDim.x * THREADS * COUNTED;
    for (int first = blockIdx.x * THREADS * COUNTED; first < arguments.count; first += stride) {
        u32 keys[COUNTED];
#pragma unroll
        for (int k = 0; k < COUNTED; ++k) {
            const int i = first + k * THREADS + threadIdx.x;
            keys[k] = i < arguments.count ? arguments.keys[i] : 0;
        }
#pragma unroll
        for (int k = 0; k < COUNTED; ++k) {
            const bool inside = first + k * THREADS + threadIdx.x < arguments.count;
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass) {
                const u32 digit = (keys[k] >> (pass * BITS)) & (BINS - 1);
                // Ids come table by table: high digits are mostly one a warp.
                const u32 other = __shfl_sync(ALL, digit, 0);
                if (__all_sync(ALL, inside && digit == other)) {
                    if ((threadIdx.x & 31) == 0) atomicAdd(found + pass * BINS + digit, 32);
                } else if (inside) {
                    atomicAdd(found + pass * BINS + digit, 1);
                }
            }
        }
    }
    __syncthreads();
    for (int j = threadIdx.x; j < PASSES * BINS; j += THREADS)
        if (found[j]) atomicAdd(arguments.digits + j, found[j]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) sort_by_digit(const Pass pass) {
    __shared__ u32 numbers[WARPS * BINS > TILE ? WARPS * BINS : TILE];
    __shared__ u32 starts[BINS], targets[BINS], of_warps[WARPS];
#if MARKED
    __shared__ u32 marks[WARPS * BINS];
#endif
    __shared__ int own_tile;
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    if (thread == 0) own_tile = atomicAdd(pass.next_tile, 1);
    for (int j = thread; j < WARPS * BINS; j += THREADS) {
        numbers[j] = 0;
#if MARKED
        marks[j] = 0;
#endif
    }
    __syncthreads();
    const int tile = own_tile, begin = tile * TILE, inside = pass.count - begin;
    const int own = warp * 32 * ITEMS + lane;

    u32 keys[ITEMS], places[ITEMS], values[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int j = own + 32 * k;
        // Beyond the end: the last digit, and behind all others that have it.
        keys[k] = j < inside ? pass.keys[begin + j] : ALL;
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int j = own + 32 * k;
        values[k] = begin + j;
        if (pass.values) values[k] = j < inside ? pass.values[begin + j] : 0;
    }

    u32* counts = numbers + warp * BINS;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const u32 digit = (keys[k] >> pass.shift) & (BINS - 1);
        u32 same = ALL;
#if MARKED
        // Each lane marks itself at its digit; where all have one, as high digits mostly do, the
        // marks would only queue.
        const bool one_digit = __all_sync(ALL, digit == __shfl_sync(ALL, digit, 0));
        if (!one_digit) {
            atomicOr(marks + warp * BINS + digit, 1u << lane);
            __syncwarp();
            same = marks[warp * BINS + digit];
        }
#else
#pragma unroll
        for (int bit = 0; bit < BITS; ++bit) {
            const bool set = (digit >> bit) & 1;
            const u32 lanes = __ballot_sync(ALL, set);
            same &= set ? lanes : ~lanes;
        }
#endif
        const u32 before = same & ((1u << lane) - 1), earlier = counts[digit];
        __syncwarp();
        if (before == 0) {
            counts[digit] = earlier + __popc(same);
#if MARKED
            marks[warp * BINS + digit] = 0;
#endif
        }
        __syncwarp();
        places[k] = earlier + __popc(before);
    }
    __syncthreads();

    u32 total = 0;
    if (thread < BINS) {
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const u32 of_warp = numbers[w * BINS + thread];
            numbers[w * BINS + thread] = total;
            total += of_warp;
        }
        store_status(pass.status + tile * BINS + thread, (tile ? OF_TILE : UP_TO_TILE) | total);
    }
    const u32 start = sum_before(total, of_warps);
    const u32 first = sum_before(thread < BINS ? pass.digits[thread] : 0, of_warps);
    if (thread < BINS) {
        u32 earlier = 0;
        bool more = tile > 0;
        for (int t = tile - 1; more;) {
            u32 status[LOOK_BACK];
#pragma unroll
            for (int j = 0; j < LOOK_BACK; ++j)
                status[j] = t >= j ? load_status(pass.status + (t - j) * BINS + thread) : 0;
            int known = 0;
#pragma unroll
            for (int j = 0; j < LOOK_BACK; ++j) {
                if (more && known == j && status[j]) {
                    earlier += status[j] & COUNT;
                    more = status[j] < UP_TO_TILE;
                    ++known;
                }
            }
            t -= known;
        }
        if (tile) store_status(pass.status + tile * BINS + thread, UP_TO_TILE | (earlier + total));
        starts[thread] = start;
        targets[thread] = first + earlier - start;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const u32 digit = (keys[k] >> pass.shift) & (BINS - 1);
        places[k] += starts[digit] + counts[digit];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) numbers[places[k]] = keys[k];
    __syncthreads();
    // From here on, keys hold where the pairs of the tile in order go.
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int j = k * THREADS + thread;
        const u32 key = numbers[j];
        keys[k] = targets[(key >> pass.shift) & (BINS - 1)] + j;
        if (j < inside) pass.sorted_keys[keys[k]] = key;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) numbers[places[k]] = values[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int j = k * THREADS + thread;
        if (j < inside) pass.sorted_values[keys[k]] = numbers[j];
    }
}
