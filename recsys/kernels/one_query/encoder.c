/* A block of attention for the latest event of one history, with folded weights
 * (recsys/layers/attention/latest.py), and what a query tower does after it. */
#include "lists.h"

struct Encoder {
    i64 dim, heads, hidden, num_rows, num_places, from_end;
    const float *inputs; /* [num_rows, dim] */
    const float *places; /* [num_places, dim] or NULL; from_end: the latest event takes the last */
    const float *norm_weight, *norm_bias;
    const float *keys, *offset;  /* [heads dim, dim], [heads dim] */
    const float *output, *bias;  /* [dim, heads dim], [dim] */
    const float *inner_weight, *inner_bias;
    const float *first, *first_bias;   /* [hidden, dim], [hidden] */
    const float *second, *second_bias; /* [dim, hidden], [dim] */
    const float *last_weight, *last_bias;
    double norm_eps, inner_eps, last_eps, floor;
    const float *const *tables; /* of each a row is added to the state, [any, dim] */
    i64 num_tables;
};

static void layer_norm(const float *x, const float *weight, const float *bias, double eps, i64 n,
                       float *out) {
    i64 i = 0;
    v8 sums = fill(0), squares = fill(0);
    for (; i + 8 <= n; i += 8) sums += load(x + i);
    float mean = sum8(sums), square = 0;
    for (; i < n; i++) mean += x[i];
    mean /= (float)n;
    for (i = 0; i + 8 <= n; i += 8) {
        v8 apart = load(x + i) - mean;
        squares += apart * apart;
    }
    for (; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    float scale = 1.0f / sqrtf((sum8(squares) + square) / (float)n + (float)eps);
    for (i = 0; i < n; i++) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

/* Encode item rows [m], the oldest first, as a unit vector.
 *
 * logits: added to those of each head, [heads, m] or NULL. added: row of each table. Returns -1 for a
 * row outside of the catalogue. */
i64 encode(const Encoder *one, const i64 *rows, i64 m, const float *logits, const i64 *added,
           float *out) {
    i64 dim = one->dim, wide = one->heads * dim, hidden = one->hidden;
    float *values = take(TILE, (size_t)(2 * m * dim + 2 * wide + m + 2 * dim + hidden) * sizeof(float));
    if (!values || m < 1) return -1;
    float *normed = values + m * dim, *query = normed + m * dim, *read = query + wide;
    float *weights = read + wide, *state = weights + m, *inner = state + dim, *deep = inner + dim;
    const float *place = one->places;
    if (place && one->from_end) place += (one->num_places - m) * dim;
    for (i64 i = 0; i < m; i++) {
        if (rows[i] < 0 || rows[i] >= one->num_rows) return -1;
        memcpy(values + i * dim, one->inputs + rows[i] * dim, (size_t)dim * sizeof(float));
        if (place) add_scaled(values + i * dim, place + i * dim, 1, dim);
        layer_norm(values + i * dim, one->norm_weight, one->norm_bias, one->norm_eps, dim,
                   normed + i * dim);
    }
    const float *latest = normed + (m - 1) * dim;
    for (i64 i = 0; i < wide; i++) query[i] = one->offset[i] + dot(one->keys + i * dim, latest, dim);
    memset(read, 0, (size_t)wide * sizeof(float));
    for (i64 head = 0; head < one->heads; head++) {
        float most = -INFINITY, total = 0;
        for (i64 i = 0; i < m; i++) {
            weights[i] = dot(query + head * dim, normed + i * dim, dim);
            if (logits) weights[i] += logits[head * m + i];
            most = weights[i] > most ? weights[i] : most;
        }
        for (i64 i = 0; i < m; i++) total += weights[i] = expf(weights[i] - most);
        for (i64 i = 0; i < m; i++)
            add_scaled(read + head * dim, normed + i * dim, weights[i] / total, dim);
    }
    const float *event = values + (m - 1) * dim;
    for (i64 i = 0; i < dim; i++)
        state[i] = one->bias[i] + dot(one->output + i * wide, read, wide) + event[i];
    layer_norm(state, one->inner_weight, one->inner_bias, one->inner_eps, dim, inner);
    for (i64 i = 0; i < hidden; i++) {
        float x = one->first_bias[i] + dot(one->first + i * dim, inner, dim);
        deep[i] = x + x * erff(x);
    }
    for (i64 i = 0; i < dim; i++)
        state[i] += one->second_bias[i] + dot(one->second + i * hidden, deep, hidden);
    layer_norm(state, one->last_weight, one->last_bias, one->last_eps, dim, out);
    for (i64 i = 0; i < one->num_tables; i++)
        add_scaled(out, one->tables[i] + added[i] * dim, 1, dim);
    float length = sqrtf(dot(out, out, dim));
    if (!(length > (float)one->floor)) length = (float)one->floor;
    for (i64 i = 0; i < dim; i++) out[i] /= length;
    return dim;
}
