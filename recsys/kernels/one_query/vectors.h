/* Products of short vectors, and memory that a thread keeps from one call to the next. */
#ifndef VECTORS_H
#define VECTORS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;
typedef uint64_t u64;
typedef uint8_t u8;
/* Eight floats, and as many as the widest registers hold; vectors wider than those are slow. */
typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
#ifdef __AVX512F__
#define WIDE 16
#else
#define WIDE 8
#endif
typedef float wide __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));

static inline v8 load(const float *from) { return *(const v8 *)from; }
static inline void store(float *to, v8 value) { *(v8 *)to = value; }
static inline v8 fill(float one) { return (v8){one, one, one, one, one, one, one, one}; }
static inline wide load_wide(const float *from) { return *(const wide *)from; }
static inline void store_wide(float *to, wide value) { *(wide *)to = value; }

static inline float sum8(v8 v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

static inline float dot(const float *a, const float *b, i64 n) {
    union { wide parts[16 / WIDE]; v8 half[2]; } sums = {.half = {fill(0), fill(0)}};
    i64 i = 0;
    for (; i + 16 <= n; i += 16)
        for (int p = 0; p < 16 / WIDE; p++)
            sums.parts[p] += load_wide(a + i + p * WIDE) * load_wide(b + i + p * WIDE);
    for (; i + 8 <= n; i += 8) sums.half[0] += load(a + i) * load(b + i);
    float total = sum8(sums.half[0] + sums.half[1]);
    for (; i < n; i++) total += a[i] * b[i];
    return total;
}

/* to += weight * from */
static inline void add_scaled(float *to, const float *from, float weight, i64 n) {
    i64 i = 0;
    for (; i + WIDE <= n; i += WIDE)
        store_wide(to + i, load_wide(to + i) + weight * load_wide(from + i));
    for (; i + 8 <= n; i += 8) store(to + i, load(to + i) + weight * load(from + i));
    for (; i < n; i++) to[i] += weight * from[i];
}

/* add_scaled of four rows in their order, with the same bits. */
static inline void add_four(float *to, const float *const *from, const float *weights, i64 n) {
    i64 i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        wide sum = load_wide(to + i);
        for (int r = 0; r < 4; r++) sum += weights[r] * load_wide(from[r] + i);
        store_wide(to + i, sum);
    }
    for (; i < n; i++)
        for (int r = 0; r < 4; r++) to[i] += weights[r] * from[r][i];
}

/* memcpy of short rows, of which a call would take longer. */
static inline void copy(float *to, const float *from, i64 n) {
    i64 i = 0;
    for (; i + WIDE <= n; i += WIDE) store_wide(to + i, load_wide(from + i));
    for (; i + 8 <= n; i += 8) store(to + i, load(from + i));
    for (; i < n; i++) to[i] = from[i];
}

/* Memory by name, kept by each thread; NULL if there is none. */
enum { KEYS, SUMS, MARKS, SLOTS, PARTS, ORDER, PLACE, EVENTS, TILE, LISTED, SCORED, NUM_SPACES };

typedef struct {
    void *memory[NUM_SPACES];
    size_t bytes[NUM_SPACES];
    int32_t epoch;
} Space;

extern _Thread_local Space space __attribute__((visibility("hidden")));

static inline void *take(int name, size_t bytes) {
    if (space.bytes[name] < bytes) {
        free(space.memory[name]);
        space.memory[name] = calloc(1, bytes);
        space.bytes[name] = space.memory[name] ? bytes : 0;
    }
    return space.memory[name];
}

/* Marks of n rows, none of which has the value *mark. */
static inline int32_t *take_marks(i64 n, int32_t *mark) {
    int32_t *marks = take(MARKS, (size_t)n * sizeof(int32_t));
    if (marks && ++space.epoch == INT32_MAX) {
        memset(marks, 0, space.bytes[MARKS]);
        space.epoch = 1;
    }
    *mark = space.epoch;
    return marks;
}

#endif
