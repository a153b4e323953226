/* How many pairs a maximum pairing of two sets of points has, at each of several rising distances; see pair_sizes.py.

   A pairing at one distance is one at the next, so it is only ever grown: breadth-first trees of alternating paths from all
   free annotated points at once; a tree that meets a free prediction flips its path and is done, the others go on. When no
   tree meets one, no pairing is larger (Berge). Nothing recurses.

   Predictions lie in a grid of squares, so that each annotated point looks at its surroundings only. Distances are computed
   as the Python does, square root included, so that a pair exactly at a limit is in for both. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NO_MEMORY 1
#define TOO_MANY 2
#define MOST_CELLS 1024 /* along a side of the grid */

typedef struct {
    double x, y, side; /* the corner, and the side of a square */
    int columns, rows;
    int *starts; /* [columns * rows + 1] */
    int *order;  /* [n] points, square by square */
} Grid;

static int square(double value, double origin, double side, int count) {
    const double place = (value - origin) / side;
    if (!(place > 0)) return 0;
    return place >= count ? count - 1 : (int)place;
}

static int grid_of(Grid *grid, const double *xy, int n, double reach) {
    double low[2] = {xy[0], xy[1]}, high[2] = {xy[0], xy[1]};
    for (int i = 0; i < n; ++i)
        for (int k = 0; k < 2; ++k) {
            const double value = xy[2 * i + k];
            if (value < low[k]) low[k] = value;
            if (value > high[k]) high[k] = value;
        }
    const double wide = high[0] - low[0], tall = high[1] - low[1];
    grid->x = low[0];
    grid->y = low[1];
    grid->side = fmax(fmax(reach / 2, fmax(wide, tall) / MOST_CELLS), 1e-9);
    grid->columns = square(high[0], low[0], grid->side, MOST_CELLS) + 1;
    grid->rows = square(high[1], low[1], grid->side, MOST_CELLS) + 1;
    const int cells = grid->columns * grid->rows;
    grid->starts = calloc((size_t)cells + 1, sizeof *grid->starts);
    grid->order = malloc((size_t)n * sizeof *grid->order);
    int *cell = malloc((size_t)n * sizeof *cell);
    if (!grid->starts || !grid->order || !cell) {
        free(cell);
        return NO_MEMORY;
    }
    for (int i = 0; i < n; ++i) {
        cell[i] = square(xy[2 * i + 1], low[1], grid->side, grid->rows) * grid->columns +
                  square(xy[2 * i], low[0], grid->side, grid->columns);
        ++grid->starts[cell[i] + 1];
    }
    for (int c = 0; c < cells; ++c) grid->starts[c + 1] += grid->starts[c];
    for (int i = n; i-- > 0;) grid->order[--grid->starts[cell[i] + 1]] = i; /* each end moves down to its beginning … */
    memmove(grid->starts, grid->starts + 1, (size_t)cells * sizeof *grid->starts);
    grid->starts[cells] = n; /* … and the beginnings move into place */
    free(cell);
    return 0;
}

/* Neighbours of one annotated point within the last limit: with `rows`, they are written there, each beside the first limit
   that lets it in. Returns how many. */
static int64_t look(const Grid *grid, const double *xy, const double *at, const double *limits, int count, int *rows,
                    int *first) {
    const double reach = limits[count - 1], wide = reach * (1 + 1e-9) + 1e-9;
    const int left = square(at[0] - wide, grid->x, grid->side, grid->columns);
    const int right = square(at[0] + wide, grid->x, grid->side, grid->columns);
    const int top = square(at[1] - wide, grid->y, grid->side, grid->rows);
    const int bottom = square(at[1] + wide, grid->y, grid->side, grid->rows);
    int64_t found = 0;
    for (int r = top; r <= bottom; ++r) {
        const int end = grid->starts[r * grid->columns + right + 1];
        for (int place = grid->starts[r * grid->columns + left]; place < end; ++place) {
            const int i = grid->order[place];
            const double dx = xy[2 * i] - at[0], dy = xy[2 * i + 1] - at[1];
            const double distance = sqrt(dx * dx + dy * dy);
            if (!(distance <= reach)) continue;
            if (rows) {
                int low = 0, high = count - 1; /* the first limit that is not below */
                while (low < high) {
                    const int middle = (low + high) / 2;
                    if (limits[middle] < distance) low = middle + 1;
                    else high = middle;
                }
                rows[found] = i;
                first[found] = low;
            }
            ++found;
        }
    }
    return found;
}

/* One round of trees over the edges let in so far; returns how many pairs it added. */
static int grow(int m, const int64_t *starts, const int *lengths, const int *rows, int *row_of, int *column_of, int *parent,
                int *seen, int stamp, int *root, int *ended, int *queue) {
    int tail = 0, added = 0;
    for (int j = 0; j < m; ++j)
        if (row_of[j] < 0 && lengths[j]) {
            queue[tail++] = j;
            root[j] = j;
            ended[j] = 0;
        }
    for (int head = 0; head < tail; ++head) {
        const int column = queue[head];
        if (ended[root[column]]) continue;
        const int *near = rows + starts[column];
        for (int k = 0; k < lengths[column]; ++k) {
            int row = near[k];
            if (seen[row] == stamp) continue;
            seen[row] = stamp;
            parent[row] = column;
            const int next = column_of[row];
            if (next >= 0) {
                root[next] = root[column];
                queue[tail++] = next;
                continue;
            }
            ended[root[column]] = 1;
            ++added;
            while (row >= 0) { /* the column at the root had no row */
                const int owner = parent[row], before = row_of[owner];
                row_of[owner] = row;
                column_of[row] = owner;
                row = before;
            }
            break;
        }
    }
    return added;
}

/* predicted [n][2], truth [m][2], limits [count] rising. Gives sizes [count], and in `pairs` how many lie within the last. */
int papm_pair_sizes(const double *predicted, int n, const double *truth, int m, const double *limits, int count,
                    long long most, long long *sizes, long long *pairs) {
    int code = NO_MEMORY;
    Grid grid = {0};
    int64_t *starts = calloc((size_t)m + 1, sizeof *starts);
    int *lengths = calloc((size_t)m, sizeof *lengths), *row_of = malloc((size_t)m * sizeof *row_of);
    int *root = malloc((size_t)m * sizeof *root), *ended = malloc((size_t)m * sizeof *ended);
    int *queue = malloc((size_t)m * sizeof *queue), *tally = malloc(((size_t)count + 1) * sizeof *tally);
    int *column_of = malloc((size_t)n * sizeof *column_of), *parent = malloc((size_t)n * sizeof *parent);
    int *seen = calloc((size_t)n, sizeof *seen), *found = malloc((size_t)n * sizeof *found);
    int *limit_of = malloc((size_t)n * sizeof *limit_of), *rows = NULL, *first = NULL;
    *pairs = 0;
    if (!starts || !lengths || !row_of || !root || !ended || !queue || !tally || !column_of || !parent || !seen || !found ||
        !limit_of || grid_of(&grid, predicted, n, limits[count - 1]))
        goto done;
    for (int j = 0; j < m; ++j) starts[j + 1] = starts[j] + look(&grid, predicted, truth + 2 * j, limits, count, NULL, NULL);
    *pairs = starts[m];
    if (starts[m] > most) {
        code = TOO_MANY;
        goto done;
    }
    rows = malloc(((size_t)starts[m] + 1) * sizeof *rows);
    first = malloc(((size_t)starts[m] + 1) * sizeof *first);
    if (!rows || !first) goto done;
    for (int j = 0; j < m; ++j) { /* the neighbours of each, those let in first at the front */
        const int64_t size = look(&grid, predicted, truth + 2 * j, limits, count, found, limit_of);
        memset(tally, 0, ((size_t)count + 1) * sizeof *tally);
        for (int64_t k = 0; k < size; ++k) ++tally[limit_of[k] + 1];
        for (int k = 0; k < count; ++k) tally[k + 1] += tally[k];
        for (int64_t k = 0; k < size; ++k) {
            const int64_t place = starts[j] + tally[limit_of[k]]++;
            rows[place] = found[k];
            first[place] = limit_of[k];
        }
    }
    memset(row_of, -1, (size_t)m * sizeof *row_of);
    memset(column_of, -1, (size_t)n * sizeof *column_of);
    const int limit = n < m ? n : m;
    int held = 0, stamp = 0;
    for (int k = 0; k < count; ++k) {
        int fresh = 0;
        for (int j = 0; j < m; ++j) {
            int64_t place = starts[j] + lengths[j];
            while (place < starts[j + 1] && first[place] <= k) ++place, fresh = 1;
            lengths[j] = (int)(place - starts[j]);
        }
        while (fresh && held < limit) {
            fresh = grow(m, starts, lengths, rows, row_of, column_of, parent, seen, ++stamp, root, ended, queue);
            held += fresh;
        }
        sizes[k] = held;
    }
    code = 0;
done:
    free(grid.starts), free(grid.order), free(starts), free(lengths), free(row_of), free(root), free(ended), free(queue);
    free(tally), free(column_of), free(parent), free(seen), free(found), free(limit_of), free(rows), free(first);
    return code;
}
