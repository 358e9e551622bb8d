/* A blend and what it makes of the lists of one query; an encoder; errors of all functions. */
#ifndef LISTS_H
#define LISTS_H

#include "vectors.h"

#define NOT_A_NUMBER -1
#define NO_MEMORY -2
#define OUT_OF_RANGE -3
#define NOT_FINITE -4
#define CONSTANT 60.0

typedef struct {
    const double *weights; /* [items' kinds, S, 4] */
    const float *scales;   /* [S] */
    i64 num_sources;
    const i64 *item_kinds; /* of rows below num_kinds; NULL for one kind */
    i64 num_kinds, unknown_kind;
    i64 repeats_source; /* what it lists is of the kind before unknown_kind; -1 for none */
    const double *log_odds, *demand; /* [num_odds], [3, num_demand] or NULL */
    i64 num_odds, num_demand;
} Blend;

typedef struct { float *scores; i64 *rows; i64 *ranks; float *contributions, *leads, *z_scores; } Merged;

typedef struct Encoder Encoder;

i64 encode(const Encoder *one, const i64 *rows, i64 m, const float *logits, const i64 *added,
           float *out);

i64 merge(const Blend *blend, const float *scores, const i64 *rows, const i64 *lengths,
          const i64 *chosen, i64 num_lists, const double *history, i64 k,
          const Merged *out);

#endif
