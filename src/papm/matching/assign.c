/* One assignment problem of n rows and m >= n columns, solved exactly; see native.py.

   Duals u, v with c[i][j] - u[i] - v[j] >= 0, zero on assigned pairs, v <= 0, and v = 0 on columns left over: that is
   optimality. Both phases keep all of it except "every row is assigned":
   1. Rows bid for their best column, in rounds: the winner pays the gap to its second best, whoever held it is free again.
   2. Trees of alternating paths grow from all rows still free at once, in one common time. A column is reached when its
      key, min of c - w over the rows of the forest, less v, is the least of all; w is a row's u less the time it joined.
      At a free column the path to its root is flipped, and that tree alone leaves the forest. (One tree after another
      visits nearly every row each time when rows fight for the same columns: four times the work on 400 rows.)
   Costs are float32, all that is derived from them is float64, so that sums and differences of costs are all but exact. */
#include <stdlib.h>
#include <string.h>

#define NEVER 1e300 /* later than everything; an infinity would keep the compiler from making vectors of the minima */

/* Where the least value is; the first of several. */
static int first_at(const double *restrict values, double least, int size) {
    double at = NEVER; /* a number of its own kind, again for the vectors */
    for (int k = 0; k < size; ++k) {
        const double here = values[k] == least ? (double)k : NEVER;
        at = here < at ? here : at;
    }
    return (int)at;
}

static int least_of(const double *restrict values, int size) {
    double least = 2 * NEVER;
    for (int k = 0; k < size; ++k) least = values[k] < least ? values[k] : least;
    return first_at(values, least, size);
}

/* key = min(key, c - w - price), and which row did it; the least key then. */
static double relax(const float *restrict c, double w, const double *restrict price, double *restrict key,
                 int *restrict from, int row, int size) {
    double least = 2 * NEVER;
    for (int k = 0; k < size; ++k) {
        const double d = (double)c[k] - w - price[k], old = key[k];
        const double now = d < old ? d : old;
        from[k] = d < old ? row : from[k];
        key[k] = now;
        least = now < least ? now : least;
    }
    return least;
}

/* The row of the forest nearest to a column: least c - w. */
static int nearest(const float *restrict c, const double *restrict w, double *value, int size) {
    double least = 2 * NEVER;
    double at = NEVER;
    for (int k = 0; k < size; ++k) {
        const double d = (double)c[k] - w[k];
        least = d < least ? d : least;
    }
    for (int k = 0; k < size; ++k) {
        const double here = (double)c[k] - w[k] == least ? (double)k : NEVER;
        at = here < at ? here : at;
    }
    *value = least;
    return (int)at;
}

/* Best and second best column of a row at the prices v. */
static int best_two(const float *restrict c, const double *restrict v, int m, double *first, double *second) {
    double least = 2 * NEVER, after = 2 * NEVER;
    double at = NEVER;
    for (int k = 0; k < m; ++k) {
        const double d = (double)c[k] - v[k];
        least = d < least ? d : least;
    }
    for (int k = 0; k < m; ++k) {
        const double here = (double)c[k] - v[k] == least ? (double)k : NEVER;
        at = here < at ? here : at;
    }
    for (int k = 0; k < m; ++k) {
        const double d = (double)k == at ? NEVER : (double)c[k] - v[k];
        after = d < after ? d : after;
    }
    *first = least, *second = after;
    return (int)at;
}

static int finite_row(const float *c, int m) {
    unsigned bad = 0, bits;
    for (int k = 0; k < m; ++k) {
        memcpy(&bits, c + k, sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

/* cost: rows of m, `pitch` apart. Gives the column [n] of each row and the duals u [n] and v [m]; steps [3], if not null:
   bids, rows scanned, keys computed again. Returns 0, 1 (no memory) or 2 (a cost is not finite). */
int papm_assign(const float *cost, int n, int m, long long pitch, int rounds, int *column, double *u, double *v,
                long long *steps) {
    long long unused[3];
    if (!steps) steps = unused;
    steps[0] = steps[1] = steps[2] = 0;
    for (int j = 0; j < m; ++j) v[j] = 0;
    if (!n) return 0;
    for (int i = 0; i < n; ++i)
        if (!finite_row(cost + i * pitch, m)) return 2;
    double *price = malloc(sizeof(double) * ((size_t)3 * m + n));
    int *from = malloc(sizeof(int) * ((size_t)3 * m + 2 * n));
    float *across = NULL; /* the costs by column, made when needed */
    int result = 1;
    if (!price || !from) goto end;
    double *key = price + m, *when = key + m, *w = when + m;
    int *owner = from + m, *inside = owner + m, *root = inside + m, *waiting = root + n;
    for (int j = 0; j < m; ++j) owner[j] = -1;
    for (int i = 0; i < n; ++i) column[i] = -1, waiting[i] = i;

    /* 1. Bids. `key` holds the best offer for a column, `from` who made it, `inside` the columns that got one. */
    int left = n;
    for (int round = 0; round < rounds && left; ++round) {
        int still = 0, sold = 0;
        for (int j = 0; j < m; ++j) from[j] = -1;
        for (int k = 0; k < left; ++k) {
            int i = waiting[k];
            double first, second;
            const int j = best_two(cost + i * pitch, v, m, &first, &second);
            const double gap = m > 1 ? second - first : 0;
            ++steps[0];
            if (owner[j] < 0 || gap > 0) { /* at a tie it would change hands for nothing, and again */
                if (from[j] < 0) {
                    inside[sold++] = j;
                    from[j] = i, key[j] = gap;
                    continue;
                }
                if (gap > key[j]) {
                    const int loser = from[j];
                    from[j] = i, key[j] = gap;
                    i = loser;
                }
            }
            waiting[still++] = i;
        }
        if (!sold) break;
        for (int k = 0; k < sold; ++k) {
            const int j = inside[k], before = owner[j];
            if (before >= 0) column[before] = -1, waiting[still++] = before;
            owner[j] = from[j], column[from[j]] = j;
            v[j] -= key[j];
        }
        left = still;
    }

    /* 2. Trees. price is v outside the forest and -NEVER inside, w is -NEVER outside it: neither can then be the least. */
    for (int i = 0; i < n; ++i) w[i] = -NEVER, root[i] = -1;
    for (int j = 0; j < m; ++j) price[j] = v[j], key[j] = NEVER, from[j] = 0;
    for (int i = 0; i < n && left; ++i) {
        double second;
        if (column[i] >= 0) {
            u[i] = (double)cost[i * pitch + column[i]] - v[column[i]];
            continue;
        }
        best_two(cost + i * pitch, v, m, &w[i], &second);
        root[i] = i;
        relax(cost + i * pitch, w[i], price, key, from, i, m);
    }
    int columns = 0, rows = left, next = least_of(key, m); /* of the forest; and the column reached next */
    while (left) {
        const int j = next;
        const double now = key[j];
        if (owner[j] >= 0) { /* the tree grows by the column and the row that has it */
            const int i = owner[j];
            inside[columns++] = j, ++rows;
            when[j] = now, key[j] = NEVER, price[j] = -NEVER;
            root[i] = root[from[j]], w[i] = u[i] - now;
            next = first_at(key, relax(cost + i * pitch, w[i], price, key, from, i, m), m);
            ++steps[1];
            continue;
        }
        const int gone = root[from[j]];
        for (int at = j;;) {
            const int i = from[at], before = column[i];
            column[i] = at, owner[at] = i;
            if (i == gone) break;
            at = before;
        }
        if (!--left && !columns) break;
        for (int i = 0; i < n; ++i)
            if (root[i] == gone) u[i] = w[i] + now, w[i] = -NEVER, root[i] = -1, --rows;
        int kept = 0, stale = 0;
        for (int k = 0; k < columns; ++k) {
            const int t = inside[k];
            if (root[from[t]] >= 0) inside[kept++] = t;
            else v[t] += when[t] - now, price[t] = v[t];
        }
        columns = kept;
        if (!left) break;
        for (int t = 0; t < m; ++t)
            if (root[from[t]] < 0) key[t] = NEVER, ++stale;
        steps[2] += stale;
        if ((double)rows * m < 2.0 * stale * (n + 32)) { /* row by row, or column by column: whichever is less work */
            for (int i = 0; i < n; ++i)
                if (root[i] >= 0) relax(cost + i * pitch, w[i], price, key, from, i, m);
            next = least_of(key, m);
            continue;
        }
        if (!across) {
            across = malloc(sizeof(float) * (size_t)m * n);
            if (!across) goto end;
            for (int top = 0; top < n; top += 16) /* in strips that stay in the cache */
                for (int t = 0; t < m; ++t)
                    for (int i = top; i < top + 16 && i < n; ++i) across[(size_t)t * n + i] = cost[i * pitch + t];
        }
        for (int t = 0; t < m; ++t)
            if (root[from[t]] < 0) from[t] = nearest(across + (size_t)t * n, w, &key[t], n), key[t] -= v[t];
        next = least_of(key, m);
    }
    for (int i = 0; i < n; ++i) u[i] = (double)cost[i * pitch + column[i]] - v[column[i]];
    result = 0;
end:
    free(price), free(from), free(across);
    return result;
}
