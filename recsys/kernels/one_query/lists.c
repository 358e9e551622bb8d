/* Ranked lists of one query: the best scores, the nearest vectors, item weights and the blend.
 *
 * A list is ordered by score descending, then by row ascending; row 0 is no item. Functions return
 * the length of the list, or a negative number where the Python form has to say what is wrong. */
#include "lists.h"

_Thread_local Space space;

/* Scores as integers of the same order, with rows below them: the larger key is the better place. */
static inline u64 key_from(float score, i64 row) {
    union { float value; uint32_t bits; } both = {score + 0.0f};
    uint32_t bits = both.bits;
    bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
    return (u64)bits << 32 | (uint32_t)~(uint32_t)row;
}

static inline float score_in(u64 key) {
    union { float value; uint32_t bits; } both;
    both.bits = (uint32_t)(key >> 32);
    both.bits ^= both.bits >> 31 ? 0x80000000u : 0xffffffffu;
    return both.value;
}

static inline void swap_keys(u64 *a, u64 *b) { u64 t = *a; *a = *b; *b = t; }

/* Split keys around one of them, larger ones first; return its place. */
static i64 split(u64 *keys, i64 n) {
    i64 middle = n / 2, place = 0;
    if (keys[middle] > keys[0]) swap_keys(keys + middle, keys);
    if (keys[n - 1] > keys[0]) swap_keys(keys + n - 1, keys);
    if (keys[middle] > keys[n - 1]) swap_keys(keys + middle, keys + n - 1);
    u64 pivot = keys[n - 1];
    for (i64 i = 0; i < n - 1; i++) {
        u64 key = keys[i];
        keys[i] = keys[place];
        keys[place] = key;
        place += key > pivot;
    }
    swap_keys(keys + place, keys + n - 1);
    return place;
}

static void insertion_sort(u64 *keys, i64 n) {
    for (i64 i = 1; i < n; i++) {
        u64 key = keys[i];
        i64 j = i;
        for (; j > 0 && keys[j - 1] < key; j--) keys[j] = keys[j - 1];
        keys[j] = key;
    }
}

/* Sort keys, the largest first, as far as the first k. */
static void sort_first(u64 *keys, i64 n, i64 k) {
    while (n > 16) {
        i64 place = split(keys, n);
        sort_first(keys, place, k);
        if (place + 1 >= k) return;
        keys += place + 1, n -= place + 1, k -= place + 1;
    }
    insertion_sort(keys, n);
}

/* Move the k largest of n keys to the front; return the smallest of them. */
static u64 keep_largest(u64 *keys, i64 n, i64 k) {
    u64 *all = keys;
    i64 left = k;
    while (n > 1) {
        i64 place = split(keys, n);
        if (place == left || place == left - 1) break;
        if (place > left) n = place;
        else keys += place + 1, n -= place + 1, left -= place + 1;
    }
    u64 least = all[0];
    for (i64 i = 1; i < k; i++) least = all[i] < least ? all[i] : least;
    return least;
}

/* The best k keys of those that are offered. */
typedef struct { u64 *keys; i64 size, room, k; u64 least; } Best;

static int open_best(Best *best, i64 k) {
    best->k = k, best->size = 0, best->room = 2 * k + 64, best->least = 0;
    best->keys = take(KEYS, (size_t)best->room * sizeof(u64));
    return best->keys != NULL;
}

static inline void offer(Best *best, float score, i64 row) {
    u64 key = key_from(score, row);
    if (key <= best->least) return;
    best->keys[best->size++] = key;
    if (best->size == best->room) {
        best->least = keep_largest(best->keys, best->size, best->k);
        best->size = best->k;
    }
}

static i64 listed(Best *best, float *scores, i64 *rows) {
    i64 n = best->size < best->k ? best->size : best->k;
    sort_first(best->keys, best->size, n);
    for (i64 i = 0; i < n; i++) {
        scores[i] = score_in(best->keys[i]);
        rows[i] = (i64)(uint32_t)~(uint32_t)best->keys[i];
    }
    return n;
}

/* Rank scores [n] of the rows that are allowed; -inf is no item. */
i64 best_allowed(const float *scores, const u8 *allowed, i64 n, i64 k, float *out, i64 *rows) {
    Best best;
    if (!open_best(&best, k)) return NO_MEMORY;
    for (i64 row = 1; row < n; row++) {
        float score = scores[row];
        if (!allowed[row] || score == -INFINITY) continue;
        if (score != score) return NOT_A_NUMBER;
        offer(&best, score, row);
    }
    return listed(&best, out, rows);
}

/* Take the first k of n rows, the best first, that are allowed. */
i64 first_allowed(const float *scores, const i64 *ranked, i64 n, const u8 *allowed, i64 num_allowed,
                  i64 k, float *out, i64 *rows) {
    i64 found = 0;
    for (i64 i = 0; i < n && found < k; i++) {
        i64 row = ranked[i];
        if (row < 0 || row >= num_allowed || !allowed[row]) continue;
        out[found] = scores[i], rows[found++] = row;
    }
    return found;
}

/* Rank vectors [n, dim] by their product with a query. */
i64 nearest(const float *vectors, i64 dim, const float *query, const u8 *allowed, i64 n, i64 k,
            float *out, i64 *rows) {
    Best best;
    if (!open_best(&best, k)) return NO_MEMORY;
    for (i64 row = 1; row < n; row++) {
        float score = dot(vectors + row * dim, query, dim);
        if (!allowed[row]) continue;
        if (!isfinite(score)) return NOT_A_NUMBER;
        offer(&best, score, row);
    }
    return listed(&best, out, rows);
}

typedef struct {
    const float *cosines; /* of every two items, [num_items, num_items] */
    i64 num_items;
    const i64 *silent; /* rows without content */
    i64 num_silent;
    double floor;
    const float *latest_last; /* weight of each event, the latest last, [max_events] */
    i64 max_events;
} Similar;

/* Rank items by their cosine to the weighted sum of a history's vectors; none if that is 0. */
i64 most_similar(const Similar *all, const i64 *history, i64 length, const u8 *allowed, i64 num_allowed,
                 i64 k, float *out, i64 *listed) {
    i64 n = all->num_items, m = length < all->max_events ? length : all->max_events, done = 0;
    const i64 *rows = history + length - m;
    const float *weights = all->latest_last + all->max_events - m;
    float *scores = take(SUMS, (size_t)n * sizeof(float)), square = 0; /* of the sum's length */
    if (!scores) return NO_MEMORY;
    if (n != num_allowed) return OUT_OF_RANGE;
    memset(scores, 0, (size_t)n * sizeof(float));
    for (i64 i = 0; i < m; i++) if (rows[i] < 0 || rows[i] >= n) return OUT_OF_RANGE;
    for (; done + 4 <= m; done += 4) {
        const float *from[4];
        for (i64 i = 0; i < 4; i++) from[i] = all->cosines + rows[done + i] * n;
        add_four(scores, from, weights + done, n);
    }
    for (; done < m; done++) add_scaled(scores, all->cosines + rows[done] * n, weights[done], n);
    for (i64 i = 0; i < m; i++) square += weights[i] * scores[rows[i]];
    double size = square > 0 ? sqrt(square) : 0;
    float scale = (float)(1 / (size > all->floor ? size : all->floor));
    for (i64 i = 0; i < n; i++) scores[i] = square > 0 ? scores[i] * scale : -INFINITY;
    for (i64 i = 0; i < all->num_silent; i++) scores[all->silent[i]] = -INFINITY;
    return best_allowed(scores, allowed, n, k, out, listed);
}

typedef struct {
    const i64 *offsets;
    const int32_t *others;
    const float *amounts;
    i64 num_items;
    const float *latest_last; /* weight of each event, the latest last, [max_events] */
    i64 max_events, distinct;
} Weights;

/* Rank items by their weights from those of a history, the oldest first, [m]. */
i64 by_weights(const Weights *table, const i64 *history, i64 m, const u8 *allowed, i64 num_allowed,
               i64 k, float *out, i64 *rows) {
    i64 n = table->num_items, first = m > table->max_events ? m - table->max_events : 0;
    const float *weight = table->latest_last + table->max_events - m;
    i64 *event = take(EVENTS, (size_t)(m + 1) * sizeof(i64)), count = 0;
    float *sums = take(SUMS, (size_t)n * sizeof(float));
    int32_t mark, *marks = take_marks(n, &mark);
    Best best;
    if (!event || !sums || !marks || !open_best(&best, k)) return NO_MEMORY;
    for (i64 i = m - 1; i >= first; i--) { /* of equal items the last one */
        i64 row = history[i];
        if (row < 0) return OUT_OF_RANGE;
        if (row >= n || (table->distinct && marks[row] == mark)) continue;
        marks[row] = mark;
        event[count++] = i;
    }
    i64 most = 0, found = 0;
    for (i64 i = 0; i < count; i++) {
        i64 row = history[event[i]];
        most += table->offsets[row + 1] - table->offsets[row];
    }
    int few = most < n; /* else all items are looked at in the end, and none is marked */
    int32_t *touched = take(PLACE, (size_t)(few ? most + 1 : n) * sizeof(int32_t));
    marks = take_marks(n, &mark);
    if (!touched || !marks) return NO_MEMORY;
    if (!few) {
        memset(sums, 0, (size_t)n * sizeof(float));
        for (; found < n; found++) touched[found] = (int32_t)found;
    }
    for (i64 i = count - 1; i >= 0; i--) {
        i64 row = history[event[i]], end = table->offsets[row + 1];
        float own = weight[event[i]];
        if (i) { /* the next one's weights are on their way meanwhile */
            i64 next = history[event[i - 1]], last = table->offsets[next + 1];
            for (i64 at = table->offsets[next]; at < last; at += 16)
                __builtin_prefetch(table->others + at), __builtin_prefetch(table->amounts + at);
        }
        for (i64 at = table->offsets[row]; at < end && !few; at++)
            sums[table->others[at]] += own * table->amounts[at];
        for (i64 at = table->offsets[row]; at < end && few; at++) {
            int32_t other = table->others[at];
            if (marks[other] != mark) {
                marks[other] = mark, sums[other] = 0;
                touched[found++] = other;
            }
            sums[other] += own * table->amounts[at];
        }
    }
    for (i64 i = 0; i < found; i++) {
        int32_t row = touched[i];
        if (row == 0 || row >= num_allowed || !allowed[row] || sums[row] == 0) continue;
        if (sums[row] != sums[row]) return NOT_A_NUMBER;
        offer(&best, sums[row], row);
    }
    return listed(&best, out, rows);
}

/* How one source of a query ranks; of a kind that does not read them, fields are 0. */
enum { RANKED, WEIGHTED, SIMILAR, ENCODED, ENCODED_ONLY };

typedef struct {
    i64 kind, k;
    const void *model;   /* weights, cosines or an encoder */
    const i64 *events;   /* history, or the rows of a ranked list */
    i64 num_events;
    const float *scores; /* of a ranked list, or what an encoder adds to its logits */
    const i64 *added;    /* rows that an encoder adds */
    const float *vectors; /* of items, [num_items, dim] */
    i64 num_items, dim;
} Step;

/* Rank for one query by each source of [number], one list after the other.
 *
 * lengths: of each list, or why there is none. An item without a vector, whose score is 0, is in no
 * list of kind ENCODED_ONLY. */
i64 lists(const Step *steps, i64 number, const u8 *allowed, i64 n, float *scores, i64 *rows,
          i64 *lengths) {
    for (i64 i = 0; i < number; i++) {
        const Step *one = steps + i;
        i64 found = OUT_OF_RANGE, k = one->k, m = one->num_events;
        float *vector;
        if (one->kind == RANKED)
            found = first_allowed(one->scores, one->events, m, allowed, n, k, scores, rows);
        else if (one->kind == WEIGHTED)
            found = by_weights(one->model, one->events, m, allowed, n, k, scores, rows);
        else if (one->kind == SIMILAR)
            found = most_similar(one->model, one->events, m, allowed, n, k, scores, rows);
        else if (one->num_items == n) {
            vector = take(PARTS, (size_t)one->dim * sizeof(float));
            if (vector) found = encode(one->model, one->events, m, one->scores, one->added, vector);
            if (found > 0) found = nearest(one->vectors, one->dim, vector, allowed, n, k, scores, rows);
        }
        if (one->kind == ENCODED_ONLY && found > 0) {
            i64 all = found;
            found = 0;
            for (i64 j = 0; j < all; j++)
                if (scores[j] != 0) scores[found] = scores[j], rows[found++] = rows[j];
        }
        lengths[i] = found;
        if (found > 0) scores += found, rows += found;
    }
    return number;
}

typedef struct { double score, fused; i64 row, column; } Place;

static inline int precedes(const Place *a, const Place *b) {
    if (a->score != b->score) return a->score > b->score;
    if (a->fused != b->fused) return a->fused > b->fused;
    return a->row < b->row;
}

/* Sort places as far as the first k. */
static void sort_places(Place *places, i64 n, i64 k) {
    while (n > 16) {
        Place pivot = places[n / 2];
        i64 i = 0, j = n - 1;
        while (i <= j) {
            while (precedes(places + i, &pivot)) i++;
            while (precedes(&pivot, places + j)) j--;
            if (i <= j) {
                Place t = places[i];
                places[i++] = places[j];
                places[j--] = t;
            }
        }
        sort_places(places, j + 1, k);
        if (i >= k) return;
        places += i, n -= i, k -= i;
    }
    for (i64 i = 1; i < n; i++) {
        Place place = places[i];
        i64 j = i;
        for (; j > 0 && precedes(&place, places + j - 1); j--) places[j] = places[j - 1];
        places[j] = place;
    }
}

/* Add parts, the smallest first, so that equal sets of parts give equal sums. */
static double added(const double *parts, i64 n, i64 stride) {
    double sorted[64], total = 0;
    i64 count = 0;
    for (i64 i = 0; i < n; i++) {
        double part = parts[i * stride];
        if (part == 0) continue; /* most are */
        i64 j = count++;
        for (; j > 0 && sorted[j - 1] > part; j--) sorted[j] = sorted[j - 1];
        sorted[j] = part;
    }
    for (i64 i = 0; i < count; i++) total += sorted[i];
    return total;
}

/* Count the scores of a list from its last one: leads and z-scores. */
static void list_scores(const float *scores, i64 n, float *leads, float *z_scores) {
    double total = 0, square = 0, least = INFINITY, size = 0;
    for (i64 i = 0; i < n; i++) {
        double score = scores[i], large = fabs(score);
        total += score;
        least = score < least ? score : least;
        size = large > size ? large : size;
    }
    double mean = n ? total / n : 0;
    for (i64 i = 0; i < n; i++) square += (scores[i] - mean) * (scores[i] - mean);
    double deviation = n ? sqrt(square / n) : 0;
    int flat = deviation <= 1e-9 * size;
    for (i64 i = 0; i < n; i++) {
        double lead = flat ? 0 : scores[i] - least;
        leads[i] = (float)lead;
        z_scores[i] = (float)(lead / (flat ? 1 : deviation));
    }
}

/* Merge S lists, one after the other in scores and rows, into one of k items.
 *
 * chosen: number of each list's source among the blend's. history: 1, whether it is empty, and the
 * logarithm of its length, by which demand is weighed. */
i64 merge(const Blend *blend, const float *scores, const i64 *rows, const i64 *lengths,
          const i64 *chosen, i64 num_lists, const double *history, i64 k,
          const Merged *out) {
    i64 total = 0, largest = 0, count = 0;
    for (i64 list = 0; list < num_lists; list++) total += lengths[list];
    for (i64 list = 0, i = 0; list < num_lists; list++) {
        i64 end = i + lengths[list], most = 0;
        for (; i < end; i++) most = rows[i] > most ? rows[i] : most;
        largest = most > largest ? most : largest;
    }
    if (num_lists > 64 || largest >= (i64)1 << 28) return OUT_OF_RANGE;
    int32_t mark, *marks = take_marks(largest + 1, &mark);
    int32_t *column = take(SLOTS, (size_t)(largest + 1) * sizeof(int32_t));
    Place *order = take(ORDER, (size_t)(total + 1) * sizeof(Place));
    i64 *place = take(PLACE, (size_t)(total + 1) * (size_t)(num_lists + 1) * sizeof(i64));
    double *parts = take(PARTS, (size_t)(total + 1) * (size_t)num_lists * sizeof(double));
    float *kept = take(EVENTS, (size_t)(total + 1) * 4 * sizeof(float));
    if (!marks || !column || !order || !place || !parts || !kept) return NO_MEMORY;
    float *leads = kept + total, *z_scores = leads + total, *near = z_scores + total;
    i64 *ranks = place + (total + 1) * num_lists, begin = 0, at = 0, longest = 0, repeats = -1;
    for (i64 list = 0; list < num_lists; list++) {
        i64 first = at;
        if (chosen[list] == blend->repeats_source) repeats = list;
        for (i64 i = 0; i < lengths[list]; i++) {
            if (rows[begin + i] <= 0) continue;
            if (!isfinite(scores[begin + i])) return NOT_A_NUMBER;
            kept[at] = scores[begin + i], ranks[at++] = i + 1;
        }
        for (; longest < lengths[list]; longest++)
            near[longest] = (float)((1 + CONSTANT) / (CONSTANT + (double)(longest + 1)));
        list_scores(kept + first, at - first, leads + first, z_scores + first);
        at = first;
        for (i64 i = 0; i < lengths[list]; i++) {
            i64 row = rows[begin + i];
            if (row <= 0) continue;
            if (marks[row] != mark) {
                marks[row] = mark, column[row] = (int32_t)count;
                order[count].row = row, order[count].column = count;
                for (i64 one = 0; one < num_lists; one++) {
                    place[count * num_lists + one] = -1, parts[count * num_lists + one] = 0;
                }
                count++;
            }
            i64 cell = column[row] * num_lists + list;
            if (place[cell] < 0) place[cell] = at;
            at++;
        }
        begin += lengths[list];
    }
    for (i64 one = 0; one < count; one++) {
        Place *item = order + one;
        double *own = parts + one * num_lists, odds = 0;
        i64 kind = 0, *there = place + one * num_lists;
        if (repeats >= 0 && there[repeats] >= 0)
            kind = blend->unknown_kind - 1;
        else if (blend->item_kinds)
            kind = item->row < blend->num_kinds ? blend->item_kinds[item->row] : blend->unknown_kind;
        for (i64 list = 0; list < num_lists; list++) {
            if ((at = there[list]) < 0) continue;
            i64 source = chosen[list];
            const double *by = blend->weights + 4 * (source + blend->num_sources * kind);
            double value = (double)(leads[at] * blend->scales[source]) * by[0];
            value += (double)z_scores[at] * by[1];
            own[list] = value + (double)near[ranks[at] - 1] * by[2] + by[3];
        }
        if (blend->log_odds && item->row < blend->num_odds) odds += blend->log_odds[item->row];
        if (blend->demand && item->row < blend->num_demand)
            for (i64 i = 0; i < 3; i++)
                odds += history[i] * blend->demand[i * blend->num_demand + item->row];
        if (odds != 0) {
            i64 met = 0;
            for (i64 list = 0; list < num_lists; list++) met += there[list] >= 0;
            for (i64 list = 0; list < num_lists; list++)
                if (there[list] >= 0) own[list] += odds / met;
        }
        item->score = added(own, num_lists, 1), item->fused = 0;
    }
    i64 length = count < k ? count : k;
    sort_places(order, count, length);
    for (i64 i = length; i < count; i++) /* equal to the last one */
        if (order[i].score == order[length - 1].score) {
            sort_places(order, count, count);
            break;
        }
    for (i64 i = 0; i < length; i++) { /* equal scores are ordered by reciprocal rank */
        i64 end = i + 1;
        while (end < count && order[end].score == order[i].score) end++;
        for (i64 one = i; end - i > 1 && one < end; one++) {
            double fused[64];
            for (i64 list = 0; list < num_lists; list++) {
                i64 there = place[order[one].column * num_lists + list];
                fused[list] = there < 0 ? 0 : 1 / (CONSTANT + (double)ranks[there]);
            }
            order[one].fused = added(fused, num_lists, 1);
        }
        if (end - i > 1) sort_places(order + i, end - i, end - i);
        i = end - 1;
    }
    for (i64 i = 0; i < length; i++) {
        out->scores[i] = (float)order[i].score, out->rows[i] = order[i].row;
        for (i64 list = 0; list < num_lists; list++) {
            i64 cell = order[i].column * num_lists + list, there = place[cell];
            i64 to = i * num_lists + list;
            out->ranks[to] = there < 0 ? 0 : ranks[there];
            out->leads[to] = there < 0 ? 0 : leads[there];
            out->z_scores[to] = there < 0 ? 0 : z_scores[there];
            out->contributions[to] = (float)parts[cell];
        }
    }
    return length;
}

/* Find the list that added most to each of n items; of equals that of the better rank, -1 for none. */
i64 leading(const i64 *ranks, const float *contributions, i64 n, i64 num_lists, i64 *out) {
    for (i64 i = 0; i < n; i++) {
        const i64 *rank = ranks + i * num_lists;
        const float *own = contributions + i * num_lists;
        i64 best = -1;
        for (i64 list = 0; list < num_lists; list++) {
            if (!rank[list]) continue;
            int better = best < 0 || own[list] > own[best] ||
                         (own[list] == own[best] && rank[list] < rank[best]);
            if (better) best = list;
        }
        out[i] = best;
    }
    return n;
}
