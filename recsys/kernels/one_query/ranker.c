/* Candidates of one query: their features, and the ranker's network with folded weights
 * (recsys/retrieval/blend/candidate_features.py, recsys/models/ranker/folded.py).
 *
 * A candidate's numbers do not depend on the others': sums run in the same order for each. */
#include "lists.h"

#define PANEL 16
#define PARTS_OF_PANEL (PANEL / WIDE)
/* Rows whose sums fit in the registers. */
#define TOGETHER (WIDE == 16 ? 12 : 6)

static inline i64 padded(i64 n) { return (n + PANEL - 1) / PANEL * PANEL; }

/* Arrange weights [out, in] as panels [out / 16, in, 16], filled up with zeros. */
static void pack(const float *weights, i64 out, i64 in, i64 out_stride, i64 in_stride, float *to) {
    for (i64 first = 0; first < out; first += PANEL)
        for (i64 i = 0; i < in; i++)
            for (i64 o = first; o < first + PANEL; o++)
                *to++ = o < out ? weights[o * out_stride + i * in_stride] : 0;
}

/* Multiply rows [n, in] by panels: to[row] = bias + x[row] W^T, in strides of ldx and ldo.
 *
 * which: rows of x and of to, or NULL for all in their order; see read and write. */
typedef struct { const float *x; i64 ldx; const i64 *which; } Source;
typedef struct { float *to; i64 ldo; const i64 *which; int add; } Target;

static void product(Source from, Target to, i64 n, const float *panels, i64 in, i64 out,
                    const float *bias) {
    /* A panel stays in the nearest cache while all rows pass by. */
    for (i64 o = 0; o < out; o += PANEL, panels += in * PANEL) {
        for (i64 first = 0; first < n; first += TOGETHER) {
            const float *x[TOGETHER], *w = panels;
            i64 many = n - first < TOGETHER ? n - first : TOGETHER;
            wide sums[TOGETHER][PARTS_OF_PANEL];
            for (i64 r = 0; r < TOGETHER; r++) {
                i64 row = first + (r < many ? r : many - 1);
                x[r] = from.x + (from.which ? from.which[row] : row) * from.ldx;
                for (int p = 0; p < PARTS_OF_PANEL; p++) sums[r][p] = (wide){0};
            }
            for (i64 i = 0; i < in; i++, w += PANEL) {
                wide weights[PARTS_OF_PANEL];
                for (int p = 0; p < PARTS_OF_PANEL; p++) weights[p] = load_wide(w + p * WIDE);
                for (int r = 0; r < TOGETHER; r++)
                    for (int p = 0; p < PARTS_OF_PANEL; p++) sums[r][p] += x[r][i] * weights[p];
            }
            for (i64 r = 0; r < many; r++) {
                i64 row = first + r;
                float *at = to.to + (to.which ? to.which[row] : row) * to.ldo + o;
                for (int p = 0; p < PARTS_OF_PANEL; p++, at += WIDE) {
                    wide sum = sums[r][p];
                    if (bias) sum += load_wide(bias + o + p * WIDE);
                    if (to.add) sum += load_wide(at);
                    store_wide(at, sum);
                }
            }
        }
    }
}

typedef int32_t i8x __attribute__((vector_size(32)));

static inline v8 larger(v8 a, v8 b) {
    i8x more = a > b;
    return (v8)(((i8x)a & more) | ((i8x)b & ~more));
}

static inline float largest(v8 v) {
    float most = v[0];
    for (int i = 1; i < 8; i++) most = v[i] > most ? v[i] : most;
    return most;
}

/* e to the power of at most 0; below -87 it is nearly 0. */
static inline v8 exponential(v8 x) {
    const float magic = 12582912.0f;
    i8x low = x < -87.0f;
    x = (v8)(((i8x)fill(-87.0f) & low) | ((i8x)x & ~low));
    v8 shifted = x * 1.44269504f + magic, n = shifted - magic;
    v8 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    v8 p = fill(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (v8)((i8x)p + ((i8x)shifted << 23));
}

typedef struct {
    i64 dim, num_tasks, num_rows, num_experts, hidden, width, dense_dim, num_dense, heads_hidden;
    i64 num_layers, base;
    const float *table;   /* [num_rows, dim + num_experts]: fields of items, weights of experts */
    const float *keys, *key_bias;       /* panels of [dim + 1, dim], [dim + 1] */
    const float *means, *scales;        /* [num_dense] or NULL */
    const float *dense, *dense_bias;    /* panels of [dense_dim + tasks, num_dense] or NULL */
    const float *cross, *cross_bias;    /* panels of each layer [width, width] */
    const float *up, *up_bias;          /* panels of each expert [hidden, width] */
    const float *down, *down_bias;      /* panels of each expert [width, hidden] */
    const float *heads, *heads_bias;    /* panels of [heads_hidden, width] */
    const float *last, *last_bias;      /* [tasks, heads_hidden], [tasks] */
    double eps, most;
    const float *nothing, *recency; /* [dim], [num_recency, dim], the latest last */
    i64 num_recency;
} Network;

/* Turn a history's values [p, dim] into keys and offsets, [p, padded(dim + 1)]. */
i64 keys(const Network *net, const float *values, i64 p, float *out) {
    product((Source){values, net->dim, NULL}, (Target){out, padded(net->dim + 1), NULL, 0}, p,
            net->keys, net->dim, net->dim + 1, net->key_bias);
    return p;
}

/* Write the values of a history's latest item rows [m], after one of no event, and their keys. */
i64 read_events(const Network *net, const i64 *rows, i64 m, float *values, float *out) {
    i64 dim = net->dim, step = dim + net->num_experts;
    memcpy(values, net->nothing, (size_t)dim * sizeof(float));
    for (i64 i = 0; i < m; i++) {
        i64 row = rows[i] >= 0 && rows[i] < net->num_rows ? rows[i] : 0;
        float *own = values + (i + 1) * dim;
        copy(own, net->table + row * step, dim);
        add_scaled(own, net->recency + (net->num_recency - m + i) * dim, 1, dim);
    }
    return keys(net, values, m + 1, out);
}

/* Let each candidate read the events: x [n, ld], of which the first dim columns are its field. */
static void attend(const Network *net, const float *keys, i64 key_step, const float *offsets,
                   const float *values, i64 p, float *x, i64 ld, i64 n, float *space) {
    i64 dim = net->dim, wide = padded(p), deep = padded(dim);
    float *key_panels = space, *value_panels = key_panels + wide * dim;
    float *bias = value_panels + wide * deep, *weights = bias + wide, *read = weights + n * wide;
    pack(keys, p, dim, key_step, 1, key_panels);
    pack(values, dim, p, 1, dim, value_panels);
    for (i64 i = 0; i < wide; i++) bias[i] = i >= p ? -INFINITY : offsets ? offsets[i] : keys[i * key_step + dim];
    product((Source){x, ld, NULL}, (Target){weights, wide, NULL, 0}, n, key_panels, dim, p, bias);
    for (i64 c = 0; c < n; c++) {
        float *own = weights + c * wide;
        v8 total = fill(0), seen = load(own);
        for (i64 i = 8; i < wide; i += 8) seen = larger(seen, load(own + i));
        float most = largest(seen);
        for (i64 i = 0; i < wide; i += 8) {
            v8 raised = exponential(load(own + i) - most);
            store(own + i, raised);
            total += raised;
        }
        v8 share = 1.0f / fill(sum8(total));
        for (i64 i = 0; i < wide; i += 8) store(own + i, load(own + i) * share);
    }
    product((Source){weights, wide, NULL}, (Target){read, deep, NULL, 0}, n, value_panels, p, dim,
            NULL);
    for (i64 c = 0; c < n; c++)
        copy(x + c * ld + dim, read + c * deep, dim);
}

static inline float bounded(float x, float most) { return x > most ? most : x < -most ? -most : x; }

/* Run the experts that a candidate is routed to, or the one network: mixed += of crossed [n, ld]. */
static void mix(const Network *net, const float *crossed, i64 ld, const i64 *items, i64 n,
                float *mixed, float *hidden, float *scale, i64 *which) {
    i64 deep = padded(net->hidden), step = net->dim + net->num_experts, width = net->width;
    for (i64 c = 0; c < n; c++)
        scale[c] = 1.0f / sqrtf(dot(crossed + c * ld, crossed + c * ld, width) / (float)width +
                                (float)net->eps);
    for (i64 expert = 0; expert < (net->num_experts ? net->num_experts : 1); expert++) {
        const float *up = net->up + expert * deep * width;
        const float *down = net->down + expert * ld * net->hidden;
        i64 many = 0;
        for (i64 c = 0; c < n; c++)
            if (!net->num_experts || net->table[items[c] * step + net->dim + expert] != 0)
                which[many++] = c;
        product((Source){crossed, ld, which}, (Target){hidden, deep, NULL, 0}, many, up, width,
                net->hidden, NULL);
        for (i64 i = 0; i < many; i++) {
            float *own = hidden + i * deep, size = scale[which[i]];
            if (net->num_experts) {
                float weight = size * net->table[items[which[i]] * step + net->dim + expert];
                for (i64 f = 0; f < deep; f++) own[f] = own[f] > 0 ? own[f] * weight : 0;
            } else {
                for (i64 f = 0; f < deep; f++) {
                    float raised = own[f] * size + net->up_bias[f];
                    own[f] = raised > 0 ? raised : 0;
                }
            }
        }
        product((Source){hidden, deep, NULL}, (Target){mixed, ld, which, 1}, many, down, net->hidden,
                width, net->down_bias);
    }
}

/* Predict logits [n, tasks] of candidates with features of any strides.
 *
 * offsets: NULL for those that stand after the keys. */
i64 logits(const Network *net, const float *keys, i64 key_step, const float *offsets,
           const float *values, i64 p, const float *fields, const i64 *rows, i64 n,
           const float *dense, i64 dense_step, i64 dense_column, float *out) {
    i64 dim = net->dim, width = net->width, ld = padded(width), step = dim + net->num_experts;
    i64 field = width - net->dense_dim, read = padded(net->dense_dim + net->num_tasks);
    i64 deep = padded(net->heads_hidden), inner = padded(net->hidden), wide = padded(p);
    i64 most = deep > inner ? deep : inner;
    most = net->num_dense > most ? net->num_dense : most;
    size_t floats = (size_t)(n * (4 * ld + most + read + wide + padded(dim) + 2)) +
                    (size_t)(wide * (dim + padded(dim) + 1));
    float *x = take(TILE, floats * sizeof(float));
    i64 *items = take(PLACE, (size_t)(2 * n + 1) * sizeof(i64));
    if (!x || !items) return NO_MEMORY;
    float *first = x + n * ld, *second = first + n * ld, *mixed = second + n * ld;
    float *hidden = mixed + n * ld, *corrected = hidden + n * most, *scale = corrected + n * read;
    float *space = scale + n;
    for (i64 c = 0; c < n; c++) {
        items[c] = rows[c] >= 0 && rows[c] < net->num_rows ? rows[c] : 0;
        float *own = x + c * ld;
        copy(own, net->table + items[c] * step, dim);
        copy(own + 2 * dim, fields, field - 2 * dim);
        for (i64 i = field; i < ld; i++) own[i] = 0;
    }
    int with_dense = dense && net->dense;
    for (i64 i = 0; with_dense && i < net->num_dense; i++) {
        float mean = net->means ? net->means[i] : 0, scale = net->means ? net->scales[i] : 1;
        float bound = net->means ? (float)net->most : INFINITY;
        const float *from = dense + i * dense_column;
        for (i64 c = 0; c < n; c++)
            hidden[c * net->num_dense + i] = bounded((from[c * dense_step] - mean) * scale, bound);
    }
    attend(net, keys, key_step, offsets, values, p, x, ld, n, space);
    if (with_dense)
        product((Source){hidden, net->num_dense, NULL}, (Target){corrected, read, NULL, 0}, n,
                net->dense, net->num_dense, net->dense_dim + (net->base >= 0 ? net->num_tasks : 0),
                net->dense_bias);
    for (i64 c = 0; c < n && with_dense; c++)
        copy(x + c * ld + field, corrected + c * read, net->dense_dim);
    const float *crossed = x;
    for (i64 layer = 0; layer < net->num_layers; layer++) {
        float *next = layer % 2 ? second : first;
        product((Source){crossed, ld, NULL}, (Target){next, ld, NULL, 0}, n,
                net->cross + layer * ld * width, width, width, net->cross_bias + layer * ld);
        for (i64 i = 0; i < n * ld; i += 8)
            store(next + i, load(next + i) * load(x + i) + load(crossed + i));
        crossed = next;
    }
    memcpy(mixed, crossed, (size_t)(n * ld) * sizeof(float));
    mix(net, crossed, ld, items, n, mixed, hidden, scale, items + n);
    product((Source){mixed, ld, NULL}, (Target){hidden, deep, NULL, 0}, n, net->heads, width,
            net->heads_hidden, net->heads_bias);
    for (i64 c = 0; c < n; c++) {
        float *own = hidden + c * deep;
        for (i64 i = 0; i < deep; i++) own[i] = own[i] > 0 ? own[i] : 0;
        for (i64 task = 0; task < net->num_tasks; task++) {
            float logit = dot(net->last + task * net->heads_hidden, own, net->heads_hidden);
            logit += net->last_bias[task];
            if (with_dense && net->base >= 0)
                logit += corrected[c * read + net->dense_dim + task] +
                         dense[c * dense_step + net->base * dense_column];
            out[c * net->num_tasks + task] = logit;
        }
    }
    return n;
}

typedef struct {
    i64 num_tasks;
    const float *slopes, *shifts, *weights; /* [tasks] */
    double furthest;                        /* logits beyond it count as it */
} Tasks;

/* Combine the calibrated chances of logits [n, tasks] into one score each. */
i64 combine(const Tasks *tasks, const float *logits, i64 n, float *out) {
    for (i64 c = 0; c < n; c++) {
        float total = 0;
        for (i64 task = 0; task < tasks->num_tasks; task++) {
            float x = bounded(logits[c * tasks->num_tasks + task], (float)tasks->furthest);
            float chance = 1 / (1 + expf(-(tasks->shifts[task] + x * tasks->slopes[task])));
            total += chance * tasks->weights[task];
        }
        out[c] = total;
    }
    return n;
}

typedef struct {
    i64 num_features, num_events, num_items, num_places, stride, num_tables;
    i64 latest, recent, best, linear; /* events that the features look at */
    const float *scales; /* [S] */
    const float *events; /* log1p of events of each item, [num_events] */
    const float *past;   /* the same, [num_items], 0 of appended ones */
    const float *weights;
    const i64 *places;   /* [num_places]; the last one is of rows beyond them */
    const i64 *shapes;   /* of each table: stride, width; width 0 for cosines of every two */
    const float *const *tables;
} Features;

typedef struct {
    const float *scores;
    const i64 *rows, *ranks;
    const float *contributions, *leads, *z_scores;
} Listed;

static void of_lists(const Features *all, const Listed *list, const i64 *chosen, i64 num_lists, i64 n,
                     float *out) {
    for (i64 c = 0; c < n; c++) {
        out[c] = list->scores[c] - list->scores[0];
        out[n + c] = (float)((1 + CONSTANT) / (CONSTANT + (double)(c + 1)));
        out[2 * n + c] = list->rows[c] < all->num_events ? all->events[list->rows[c]] : 0;
    }
    for (i64 one = 0; one < num_lists; one++) {
        float *own = out + (3 + 4 * chosen[one]) * n, scale = all->scales[chosen[one]];
        for (i64 c = 0; c < n; c++) {
            i64 at = c * num_lists + one, rank = list->ranks[at];
            own[c] = list->leads[at] * scale;
            own[n + c] = list->z_scores[at];
            own[2 * n + c] = rank ? (float)((1 + CONSTANT) / (CONSTANT + (double)rank)) : 0;
            own[3 * n + c] = list->contributions[at];
        }
    }
}

/* Add up rows of a table: whole ones are added faster than the numbers of a few columns are found. */
static void add_rows(float *sums, const float *table, i64 stride, const i64 *rows, i64 m) {
    memset(sums, 0, (size_t)stride * sizeof(float));
    for (i64 i = 0, many; i < m; i += many) {
        const float *from[4], one[4] = {1, 1, 1, 1};
        many = m - i < 4 ? 1 : 4;
        for (i64 e = 0; e < many; e++) from[e] = table + rows[i + e] * stride;
        if (many == 4) add_four(sums, from, one, stride);
        else add_scaled(sums, from[0], 1, stride);
    }
}

static void linear_features(const Features *all, const i64 *rows, i64 n, const i64 *history, i64 m,
                            float *out, float *sums, i64 *event) {
    i64 beyond = all->num_places - 1, first = m > all->linear ? m - all->linear : 0;
    float *scores = out, *above = out + n, *recent = out + 2 * n, mean = 0, spread = 0;
    for (i64 i = 0; i < m; i++) event[i] = all->places[history[i] < beyond ? history[i] : beyond];
    add_rows(sums, all->weights, all->stride, event, first);
    add_rows(sums + all->stride, all->weights, all->stride, event + first, m - first);
    for (i64 c = 0; c < n; c++) {
        i64 place = all->places[rows[c] < beyond ? rows[c] : beyond];
        recent[c] = sums[all->stride + place], scores[c] = sums[place] + recent[c];
        mean += scores[c];
    }
    mean /= (float)n;
    for (i64 c = 0; c < n; c++) above[c] = scores[c] - mean, spread += above[c] * above[c];
    spread = sqrtf(spread / (float)n);
    for (i64 c = 0; c < n; c++) above[c] /= spread > 1e-6f ? spread : 1e-6f;
}

/* to = the larger of both */
static inline void raise(float *restrict to, const float *restrict from, i64 n) {
    for (i64 i = 0; i < n; i++) to[i] = from[i] > to[i] ? from[i] : to[i];
}

/* Cosines with the last event, means over few and over all, and the largest: out [4, n]. */
static void table_features(const Features *all, i64 table, const i64 *known, i64 n,
                           const i64 *event, i64 m, i64 few, i64 observed, float *out,
                           float *space, float *sums) {
    const float *vectors = all->tables[table];
    i64 stride = all->shapes[2 * table], width = all->shapes[2 * table + 1], near = m < all->best ? m : all->best;
    float *last = out, *recent = out + n, *every = out + 2 * n, *best = out + 3 * n;
    for (i64 c = 0; c < n; c++) best[c] = near < all->best ? 0 : -INFINITY;
    if (width == 0) {
        i64 latest = near > all->recent ? near : all->recent < m ? all->recent : m;
        for (i64 i = 0; i < latest; i++) {
            const float *own = vectors + event[i] * stride;
            float *restrict found = space;
            for (i64 c = 0; c < n; c++) found[c] = own[known[c]];
            if (i == 0) copy(last, found, n);
            if (i < all->recent) add_scaled(recent, found, 1, n);
            if (i < near) raise(best, found, n);
        }
        add_rows(sums, vectors, stride, event, m);
        for (i64 c = 0; c < n; c++)
            recent[c] /= (float)few, every[c] = sums[known[c]] / (float)observed;
        return;
    }
    i64 wide = padded(near + 2);
    float *met = space, *panels = met + (near + 2) * width, *cosines = panels + wide * width;
    memset(met, 0, (size_t)((near + 2) * width) * sizeof(float));
    for (i64 i = 0; i < m; i++) {
        if (!event[i]) continue;
        const float *own = vectors + event[i] * stride;
        if (i < near) copy(met + i * width, own, width);
        if (i < all->recent) add_scaled(met + near * width, own, 1.0f / (float)few, width);
        add_scaled(met + (near + 1) * width, own, 1.0f / (float)observed, width);
    }
    pack(met, near + 2, width, width, 1, panels);
    product((Source){vectors, stride, known}, (Target){cosines, wide, NULL, 0}, n, panels, width,
            near + 2, NULL);
    for (i64 c = 0; c < n; c++) {
        const float *own = cosines + c * wide;
        last[c] = own[0], recent[c] = own[near], every[c] = own[near + 1];
        for (i64 i = 0; i < near; i++) best[c] = own[i] > best[c] ? own[i] : best[c];
    }
}

/* Compute the finite features of n candidates, [num_features, n], which are 0 before. */
static i64 features(const Features *all, const Listed *list, const i64 *chosen, i64 num_lists, i64 n,
             const i64 *history, i64 m, float *out) {
    i64 count = m < all->latest ? m : all->latest, few = 0, observed = 0, widest = 0;
    i64 longest = 2 * all->stride;
    i64 *known = take(PLACE, (size_t)(n + m + 1) * sizeof(i64)), *event = known + n;
    for (i64 i = 0; i < all->num_tables; i++) {
        widest = all->shapes[2 * i + 1] > widest ? all->shapes[2 * i + 1] : widest;
        longest = all->shapes[2 * i] > longest ? all->shapes[2 * i] : longest;
    }
    float *space = take(TILE, (size_t)((2 * padded(all->best + 2)) * widest +
                                       n * padded(all->best + 2)) * sizeof(float));
    float *added = take(SUMS, (size_t)longest * sizeof(float));
    if (!known || !space || !added) return NO_MEMORY;
    for (i64 i = 0; i < m; i++) if (history[i] < 0) return OUT_OF_RANGE;
    for (i64 c = 0; c < n; c++) {
        if (list->rows[c] < 0) return OUT_OF_RANGE;
        known[c] = list->rows[c] < all->num_items ? list->rows[c] : 0;
    }
    of_lists(all, list, chosen, num_lists, n, out);
    float *own = out + (all->num_features - 6 - 4 * all->num_tables) * n, sums[2] = {0, 0};
    linear_features(all, list->rows, n, history, m, own, added, event);
    for (i64 i = 0; i < count; i++) {
        i64 row = history[m - 1 - i];
        event[i] = row < all->num_items ? row : 0;
        if (!event[i]) continue;
        observed++, few += i < all->recent;
        sums[0] += all->past[event[i]], sums[1] += i < all->recent ? all->past[event[i]] : 0;
    }
    few = few ? few : 1, observed = observed ? observed : 1;
    for (i64 i = 0; count && i < all->num_tables; i++)
        if (all->shapes[2 * i])
            table_features(all, i, known, n, event, count, few, observed,
                           own + (3 + 4 * i) * n, space, added);
    float *ends = out + (all->num_features - 3) * n, length = log1pf((float)m);
    for (i64 c = 0; c < n; c++) {
        ends[c] = all->past[known[c]] - sums[0] / (float)observed;
        ends[n + c] = all->past[known[c]] - sums[1] / (float)few;
        ends[2 * n + c] = length;
    }
    i64 i = 0, whole = all->num_features * n;
    v8 total = fill(0); /* finite where all it adds up is */
    for (; i + 8 <= whole; i += 8) total += load(out + i);
    for (; i < whole; i++) total += fill(out[i]);
    return isfinite(sum8(total)) ? n : NOT_FINITE;
}

typedef struct {
    const Blend *blend;
    const Features *features;
    const Network *network;
    const Tasks *tasks;
    i64 num_candidates;
} Ranking;

/* Sort places by their scores, the largest first; equal ones stay in order. */
static void order_by_scores(const float *scores, i64 n, i64 *places, i64 *other) {
    for (i64 i = 0; i < n; i++) places[i] = i;
    for (i64 width = 1; width < n; width *= 2) {
        for (i64 begin = 0; begin < n; begin += 2 * width) {
            i64 middle = begin + width < n ? begin + width : n, end = middle + width < n ? middle + width : n;
            i64 left = begin, right = middle;
            for (i64 to = begin; to < end; to++) {
                int first = left < middle &&
                            (right >= end || scores[places[left]] >= scores[places[right]]);
                other[to] = places[first ? left++ : right++];
            }
        }
        memcpy(places, other, (size_t)n * sizeof(i64));
    }
}

/* Merge lists and order the first places by the network's scores: the best k items.
 *
 * given: S lists, history and its length, fields of the query's features, k, the scores and the rows
 * of all lists; then the length of each and the number of its source. weights: of demand.
 * Items after the ranked places follow as they were merged, with the lowest score. */
i64 rank(const Ranking *all, const i64 *given, const double *weights, float *scores, i64 *rows,
         i64 *ranks, float *contributions) {
    i64 lists = given[0], m = given[2], wanted = given[4], total = 0;
    const float *listed_scores = (const float *)given[5];
    const i64 *history = (const i64 *)given[1], *listed_rows = (const i64 *)given[6];
    const i64 *lengths = given + 7, *chosen = lengths + lists;
    i64 tasks = all->network->num_tasks;
    i64 most = all->num_candidates > wanted ? all->num_candidates : wanted;
    for (i64 list = 0; list < lists; list++) total += lengths[list];
    most = most < total ? most : total;
    if (most < 1) return 0;
    i64 latest = m < all->network->num_recency ? m : all->network->num_recency;
    i64 dim = all->network->dim, wide = padded(dim + 1), columns = all->features->num_features;
    i64 *whole = take(LISTED, (size_t)(most * (3 + lists)) * sizeof(i64));
    float *parts = take(SCORED, (size_t)(most * (2 + tasks + columns + 3 * lists) +
                                         (latest + 1) * (dim + wide)) * sizeof(float));
    if (!whole || !parts) return NO_MEMORY;
    Merged merged = {.rows = whole, .scores = parts};
    merged.ranks = merged.rows + most, merged.contributions = merged.scores + most;
    merged.leads = merged.contributions + most * lists;
    merged.z_scores = merged.leads + most * lists;
    i64 *places = merged.ranks + most * lists, *other = places + most;
    float *dense = merged.z_scores + most * lists, *predicted = dense + most * columns;
    float *own = predicted + most * tasks, *values = own + most, *keyed = values + (latest + 1) * dim;
    i64 found = merge(all->blend, listed_scores, listed_rows, lengths, chosen, lists, weights, most, &merged);
    if (found < 1) return found;
    i64 n = found < all->num_candidates ? found : all->num_candidates;
    memset(dense, 0, (size_t)(n * columns) * sizeof(float));
    Listed listed = {merged.scores, merged.rows, merged.ranks,
                     merged.contributions, merged.leads, merged.z_scores};
    i64 done = features(all->features, &listed, chosen, lists, n, history, m, dense);
    if (done < 0) return done;
    read_events(all->network, history + m - latest, latest, values, keyed);
    done = logits(all->network, keyed, wide, NULL, values, latest + 1, (const float *)given[3],
                  merged.rows, n, dense, 1, n, predicted);
    if (done < 0) return done;
    combine(all->tasks, predicted, n, own);
    for (i64 c = 0; c < n; c++) if (!isfinite(own[c])) return NOT_FINITE;
    order_by_scores(own, n, places, other);
    i64 k = found < wanted ? found : wanted;
    for (i64 i = 0; i < k; i++) {
        i64 from = i < n ? places[i] : i;
        scores[i] = own[places[i < n ? i : n - 1]];
        rows[i] = merged.rows[from];
        copy(contributions + i * lists, merged.contributions + from * lists, lists);
        memcpy(ranks + i * lists, merged.ranks + from * lists, (size_t)lists * sizeof(i64));
    }
    return k;
}
