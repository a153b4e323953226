/* Scaling iterations on the windows of one image; see windows.py and native.py.

   kernel [n][rows][width]: exp(-C/eps) - far in the window of each point, zero where it does not count.
   base   [n]: where that window starts in the padded map of `pitch` columns.
   map    scratch of 2 * (h + rows - 1) * pitch floats.                                                        */
#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* The width is a constant in each copy, so that the inner loops become a few vector instructions. */
#define LOOPS(WIDTH)                                                                          \
    static void scatter_##WIDTH(const float *k, const float *u, const int *base, float *sum,  \
                                int n, int rows, int pitch) {                                 \
        for (int i = 0; i < n; ++i, k += rows * WIDTH) {                                      \
            const float ui = u[i];                                                            \
            if (ui == 0.0f) continue;                                                         \
            for (int r = 0; r < rows; ++r) {                                                  \
                float *restrict to = sum + base[i] + r * pitch;                               \
                const float *restrict from = k + r * WIDTH;                                   \
                for (int c = 0; c < WIDTH; ++c) to[c] += ui * from[c];                        \
            }                                                                                 \
        }                                                                                     \
    }                                                                                         \
    static void gather_##WIDTH(const float *k, const float *a, const int *base,               \
                               const float *v, float *u, float rest, int n, int rows,         \
                               int pitch) {                                                   \
        for (int i = 0; i < n; ++i, k += rows * WIDTH) {                                      \
            float part[WIDTH] = {0};                                                          \
            float total = 0.0f;                                                               \
            if (a[i] == 0.0f) {                                                               \
                u[i] = 0.0f;                                                                  \
                continue;                                                                     \
            }                                                                                 \
            for (int r = 0; r < rows; ++r) {                                                  \
                const float *restrict at = v + base[i] + r * pitch;                           \
                const float *restrict from = k + r * WIDTH;                                   \
                for (int c = 0; c < WIDTH; ++c) part[c] += at[c] * from[c];                   \
            }                                                                                 \
            for (int c = 0; c < WIDTH; ++c) total += part[c];                                 \
            u[i] = a[i] / (total + rest);                                                     \
        }                                                                                     \
    }

LOOPS(4) LOOPS(8) LOOPS(12) LOOPS(16) LOOPS(24) LOOPS(32) LOOPS(48) LOOPS(64)

typedef void (*scatter_t)(const float *, const float *, const int *, float *, int, int, int);
typedef void (*gather_t)(const float *, const float *, const int *, const float *, float *, float, int, int, int);

/* Returns 0, or 1 for a width it has no loop for. u holds the start on entry, the result on return; v the result. */
int papm_sinkhorn(const float *kernel, const int *base, const float *a, const float *b, float *u, float *v,
                  float *map, int n, int h, int w, int rows, int width, float floor_, float far_, int iterations) {
    scatter_t scatter;
    gather_t gather;
    switch (width) {
#define CASE(WIDTH) case WIDTH: scatter = scatter_##WIDTH; gather = gather_##WIDTH; break;
        CASE(4) CASE(8) CASE(12) CASE(16) CASE(24) CASE(32) CASE(48) CASE(64)
        default: return 1;
    }
    const int radius = rows / 2, pitch = w + width - 1, size = (h + rows - 1) * pitch;
    float *sum = map, *pad = map + size;
    memset(pad, 0, sizeof(float) * size);
#if defined(__SSE__)
    const unsigned int mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040u); /* numbers below 1e-38 are zero: they cannot count beside the floor, and are slow */
#endif
    for (int it = 0; it < iterations; ++it) {
        memset(sum, 0, sizeof(float) * size);
        scatter(kernel, u, base, sum, n, rows, pitch);
        float rest = floor_, all = 0.0f;
        if (far_ > 0.0f) {
            for (int i = 0; i < n; ++i) all += u[i];
            rest += far_ * all;
        }
        for (int y = 0; y < h; ++y) {
            const float *restrict s = sum + (y + radius) * pitch + radius;
            const float *restrict by = b + y * w;
            float *restrict p = pad + (y + radius) * pitch + radius;
            for (int x = 0; x < w; ++x) p[x] = by[x] / (s[x] + rest);
        }
        rest = floor_;
        if (far_ > 0.0f) {
            all = 0.0f;
            for (int j = 0; j < size; ++j) all += pad[j];
            rest += far_ * all;
        }
        gather(kernel, a, base, pad, u, rest, n, rows, pitch);
    }
    for (int y = 0; y < h; ++y) memcpy(v + y * w, pad + (y + radius) * pitch + radius, sizeof(float) * w);
#if defined(__SSE__)
    _mm_setcsr(mode);
#endif
    return 0;
}
