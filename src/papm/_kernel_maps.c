/* Adds one normalised kernel window a point into a map: out += exp(-(r2 * scale)^(s/2)) / sum of it over the pixels that count.

   Pixels whose centre lies inside [low, high) count in the sum, pixels of the map among them get their share. Shapes 2, 4, 8 and
   16 are reached by squaring. Rows are padded to whole vectors with a distance at which the kernel is nothing. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8
#define FAR 1e4f /* its square, cube … stay finite; the kernel there is below 1e-37 */

/* exp(-t), t >= 0, relative error below 3e-7, at least 1.6e-38; plain arithmetic that compilers turn into vector code. */
static inline float falling(float t)
{
    float x = -t;
    x = x > -87.0f ? x : -87.0f;
    float k = rintf(x * 1.44269504f);
    float r = x - k * 0.693359375f + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float y = p * r * r + r + 1.0f;
    int bits = ((int)k + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return y * power;
}

#define POWER_2(t) (t)
#define POWER_4(t) ((t) * (t))
#define POWER_8(t) POWER_4(POWER_4(t))
#define POWER_16(t) POWER_4(POWER_8(t))

/* One row of a window: values[k] = kernel at across[k] + down; returns their sum, taken lane by lane. */
#define ROW(NAME, POWER)                                                                             \
    static float NAME(const float *restrict across, float down, int pitch, float *restrict values)   \
    {                                                                                                \
        float sums[LANES] = {0}, sum = 0.0f;                                                         \
        for (int block = 0; block < pitch; block += LANES)                                           \
            for (int lane = 0; lane < LANES; lane++) {                                               \
                float t = across[block + lane] + down;                                               \
                float v = falling(POWER(t));                                                         \
                values[block + lane] = v;                                                            \
                sums[lane] += v;                                                                     \
            }                                                                                        \
        for (int lane = 0; lane < LANES; lane++)                                                     \
            sum += sums[lane];                                                                       \
        return sum;                                                                                  \
    }

ROW(row_2, POWER_2)
ROW(row_4, POWER_4)
ROW(row_8, POWER_8)
ROW(row_16, POWER_16)

static int bound(float v, int least, int most)
{
    float up = ceilf(v);
    return up < least ? least : up > most ? most : (int)up;
}

/* points: n pairs (x, y); keep: n flags; low, high: corners (x, y) of what counts; out: rows of `cells` cells. Returns 0, or 1
   without memory. */
int papm_windows(const float *points, const unsigned char *keep, long n, int radius, float scale, int squarings,
                 const float *low, const float *high, int height, int width, int stride, int cells, float *out)
{
    int side = 2 * radius + 1, pitch = (side + LANES - 1) / LANES * LANES;
    float *memory = malloc(sizeof(float) * (size_t)pitch * (side + 1));
    if (!memory)
        return 1;
    float *across = memory, *values = memory + pitch;
    float (*row_of)(const float *, float, int, float *) =
        squarings == 0 ? row_2 : squarings == 1 ? row_4 : squarings == 2 ? row_8 : row_16;
    for (long i = 0; i < n; i++) {
        if (!keep[i])
            continue;
        float x = points[2 * i], y = points[2 * i + 1];
        int px = (int)floorf(x), py = (int)floorf(y);
        /* Pixels of the window whose centres lie inside what counts: left ≤ column < right, top ≤ row < bottom. */
        int left = bound(low[0] - 0.5f, px - radius, px + radius + 1), right = bound(high[0] - 0.5f, left, px + radius + 1);
        int top = bound(low[1] - 0.5f, py - radius, py + radius + 1), bottom = bound(high[1] - 0.5f, top, py + radius + 1);
        for (int k = 0; k < pitch; k++) {
            float d = left + k + 0.5f - x;
            across[k] = left + k < right ? d * d * scale : FAR;
        }
        double sum = 0.0; /* of rows: thousands of tails would be lost in a float */
        for (int row = top; row < bottom; row++) {
            float d = row + 0.5f - y;
            sum += row_of(across, d * d * scale, pitch, values + (size_t)(row - top) * pitch);
        }
        if (!(sum > 1e-30))
            continue;
        float share = (float)(1.0 / sum);
        int first = left > 0 ? left : 0, last = right < width ? right : width;
        for (int row = top > 0 ? top : 0; row < bottom && row < height; row++) {
            const float *from = values + (size_t)(row - top) * pitch;
            float *line = out + (long)(row / stride) * cells;
            if (stride == 1)
                for (int column = first; column < last; column++)
                    line[column] += from[column - left] * share;
            else /* cell by cell: small numbers are added up before they meet a large one */
                for (int column = first; column < last;) {
                    int cell = column / stride, end = (cell + 1) * stride < last ? (cell + 1) * stride : last;
                    float part = 0.0f;
                    for (; column < end; column++)
                        part += from[column - left];
                    line[cell] += part * share;
                }
        }
    }
    free(memory);
    return 0;
}
