/* Scaling iterations on the windows of one image, in float and in double; see windows.py and native.py.

   kernel [n][rows][width]: exp(-C/eps) - far in the window of each point, zero where it does not count.
   base   [n]: where that window starts in the padded map of `pitch` columns.
   map    scratch of 2 * (h + rows - 1) * pitch numbers.                                                       */
#ifndef real
#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#define PASTED(name, type, of) name##_##type##_##of
#define NAMED(name, type, of) PASTED(name, type, of)
#define OF(name, of) NAMED(name, real, of) /* papm_float_sinkhorn, papm_double_sinkhorn */

#define real float
#include "sinkhorn.c"
#undef real
#define real double
#include "sinkhorn.c"

#else /* what follows is read twice */

/* The width is a constant in each copy, so that the inner loops become a few vector instructions. */
#define LOOPS(WIDTH)                                                                          \
    static void OF(scatter, WIDTH)(const real *k, const real *u, const int *base,             \
                                   real *sum, int n, int rows, int pitch) {                   \
        for (int i = 0; i < n; ++i, k += rows * WIDTH) {                                      \
            const real ui = u[i];                                                             \
            if (ui == 0) continue;                                                            \
            for (int r = 0; r < rows; ++r) {                                                  \
                real *restrict to = sum + base[i] + r * pitch;                                \
                const real *restrict from = k + r * WIDTH;                                    \
                for (int c = 0; c < WIDTH; ++c) to[c] += ui * from[c];                        \
            }                                                                                 \
        }                                                                                     \
    }                                                                                         \
    static void OF(gather, WIDTH)(const real *k, const real *a, const int *base,              \
                                  const real *v, real *u, real rest, int n, int rows,         \
                                  int pitch) {                                                \
        for (int i = 0; i < n; ++i, k += rows * WIDTH) {                                      \
            real part[WIDTH] = {0};                                                           \
            real total = 0;                                                                   \
            if (a[i] == 0) {                                                                  \
                u[i] = 0;                                                                     \
                continue;                                                                     \
            }                                                                                 \
            for (int r = 0; r < rows; ++r) {                                                  \
                const real *restrict at = v + base[i] + r * pitch;                            \
                const real *restrict from = k + r * WIDTH;                                    \
                for (int c = 0; c < WIDTH; ++c) part[c] += at[c] * from[c];                   \
            }                                                                                 \
            for (int c = 0; c < WIDTH; ++c) total += part[c];                                 \
            u[i] = a[i] / (total + rest);                                                     \
        }                                                                                     \
    }

LOOPS(4) LOOPS(8) LOOPS(12) LOOPS(16) LOOPS(24) LOOPS(32) LOOPS(48) LOOPS(64)

typedef void (*OF(scatter, t))(const real *, const real *, const int *, real *, int, int, int);
typedef void (*OF(gather, t))(const real *, const real *, const int *, const real *, real *, real, int, int, int);

/* Returns 0, or 1 for a width it has no loop for. u holds the start on entry, the result on return; v the result. */
int OF(papm, sinkhorn)(const real *kernel, const int *base, const real *a, const real *b, real *u, real *v,
                       real *map, int n, int h, int w, int rows, int width, real floor_, real far_, int iterations) {
    OF(scatter, t) scatter;
    OF(gather, t) gather;
    switch (width) {
#define CASE(WIDTH) case WIDTH: scatter = OF(scatter, WIDTH); gather = OF(gather, WIDTH); break;
        CASE(4) CASE(8) CASE(12) CASE(16) CASE(24) CASE(32) CASE(48) CASE(64)
        default: return 1;
    }
    const int radius = rows / 2, pitch = w + width - 1, size = (h + rows - 1) * pitch;
    real *sum = map, *pad = map + size;
    memset(pad, 0, sizeof(real) * size);
#if defined(__SSE__)
    const unsigned int mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040u); /* numbers below the normal range are zero: they cannot count beside the floor, and are slow */
#endif
    for (int it = 0; it < iterations; ++it) {
        memset(sum, 0, sizeof(real) * size);
        scatter(kernel, u, base, sum, n, rows, pitch);
        real rest = floor_, all = 0;
        if (far_ > 0) {
            for (int i = 0; i < n; ++i) all += u[i];
            rest += far_ * all;
        }
        for (int y = 0; y < h; ++y) {
            const real *restrict s = sum + (y + radius) * pitch + radius;
            const real *restrict by = b + y * w;
            real *restrict p = pad + (y + radius) * pitch + radius;
            for (int x = 0; x < w; ++x) p[x] = by[x] / (s[x] + rest);
        }
        rest = floor_;
        if (far_ > 0) {
            all = 0;
            for (int j = 0; j < size; ++j) all += pad[j];
            rest += far_ * all;
        }
        gather(kernel, a, base, pad, u, rest, n, rows, pitch);
    }
    for (int y = 0; y < h; ++y) memcpy(v + y * w, pad + (y + radius) * pitch + radius, sizeof(real) * w);
#if defined(__SSE__)
    _mm_setcsr(mode);
#endif
    return 0;
}
#endif
