/* Passes over a dense cost [n][m] of one image, each reading it once or twice and keeping nothing of its size; see softmin.py.

   NaN in a cost or a potential comes out as NaN; a row or column that nothing reaches gives +limit.                      */
#include <math.h>
#include <string.h>

#define LANES 32  /* partial sums, so that a sum becomes vector instructions */
#define COLUMNS 64

/* exp to 1e-7 for x of at most 88; exactly 0 below -87. Cephes' polynomial on [-ln2/2, ln2/2]. */
static inline float exponential(float x) {
    const float t = x < -87.0f ? -87.0f : x;
    const float k = (t * 1.44269504f + 12582912.0f) - 12582912.0f;  /* the nearest whole number */
    const float f = (t - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    const int bits = ((int)k + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x < -87.0f ? 0.0f : p * scale;
}

static inline float finished(float most, float sum, float factor, float limit) {
    const float x = factor * (most + logf(sum));
    return x < -limit ? -limit : x > limit ? limit : x;
}

/* out[i] = factor * ln sum_j exp(add[j] - cost[i][j] * inverse), within limit. */
void papm_softmin_rows(const float *cost, const float *add, float *out, int n, int m, float inverse, float factor,
                       float limit) {
    for (int i = 0; i < n; ++i, cost += m) {
        float most[LANES], sum[LANES];
        for (int c = 0; c < LANES; ++c) most[c] = -INFINITY, sum[c] = 0.0f;
        int j = 0;
        for (; j + LANES <= m; j += LANES)
            for (int c = 0; c < LANES; ++c) {
                const float x = add[j + c] - cost[j + c] * inverse;
                most[c] = x > most[c] ? x : most[c];
            }
        for (; j < m; ++j) {
            const float x = add[j] - cost[j] * inverse;
            most[0] = x > most[0] ? x : most[0];
        }
        float top = most[0], total = 0.0f;
        for (int c = 1; c < LANES; ++c) top = most[c] > top ? most[c] : top;
        if (top == -INFINITY) top = 0.0f;
        for (j = 0; j + LANES <= m; j += LANES)
            for (int c = 0; c < LANES; ++c) sum[c] += exponential(add[j + c] - cost[j + c] * inverse - top);
        for (; j < m; ++j) sum[0] += exponential(add[j] - cost[j] * inverse - top);
        for (int c = 0; c < LANES; ++c) total += sum[c];
        out[i] = finished(top, total, factor, limit);
    }
}

/* out[j] = factor * ln sum_i exp(add[i] - cost[i][j] * inverse), within limit. */
void papm_softmin_columns(const float *cost, const float *add, float *out, int n, int m, float inverse, float factor,
                          float limit) {
    for (int first = 0; first < m; first += COLUMNS) {
        const int width = m - first < COLUMNS ? m - first : COLUMNS;
        float most[COLUMNS], sum[COLUMNS];
        for (int c = 0; c < COLUMNS; ++c) most[c] = -INFINITY, sum[c] = 0.0f;
        for (int i = 0; i < n; ++i) {
            const float *restrict row = cost + (size_t)i * m + first;
            for (int c = 0; c < width; ++c) {
                const float x = add[i] - row[c] * inverse;
                most[c] = x > most[c] ? x : most[c];
            }
        }
        for (int c = 0; c < COLUMNS; ++c) most[c] = most[c] == -INFINITY ? 0.0f : most[c];
        for (int i = 0; i < n; ++i) {
            const float *restrict row = cost + (size_t)i * m + first;
            for (int c = 0; c < width; ++c) sum[c] += exponential(add[i] - row[c] * inverse - most[c]);
        }
        for (int c = 0; c < width; ++c) out[first + c] = finished(most[c], sum[c], factor, limit);
    }
}

/* (f + g - C)/eps, at most 80; NaN stays. */
static inline float exponent_of(float f, float g, float cost, float inverse) {
    const float x = (f + g - cost) * inverse;
    return x > 80.0f ? 80.0f : x;
}

/* out[i] = sum_j exp((f[i] + g[j] - cost[i][j])/eps) * b[j]. */
void papm_plan_rows(const float *cost, const float *f, const float *g, const float *b, float *out, int n, int m,
                    float inverse) {
    for (int i = 0; i < n; ++i, cost += m) {
        float sum[LANES] = {0}, total = 0.0f;
        int j = 0;
        for (; j + LANES <= m; j += LANES)
            for (int c = 0; c < LANES; ++c)
                sum[c] += exponential(exponent_of(f[i], g[j + c], cost[j + c], inverse)) * b[j + c];
        for (; j < m; ++j) sum[0] += exponential(exponent_of(f[i], g[j], cost[j], inverse)) * b[j];
        for (int c = 0; c < LANES; ++c) total += sum[c];
        out[i] = total;
    }
}

/* With k = exp(e), e = (f[i] + g[j] - cost[i][j])/eps: out[j] = sum_i a[i] k, out[m + j] = sum_i s[i] k,
   out[2m + j] = sum_i a[i] k (e + ln a[i]), where rows of no weight are left out. */
void papm_plan_columns(const float *cost, const float *f, const float *g, const float *a, const float *s, float *out,
                       int n, int m, float inverse) {
    for (int first = 0; first < m; first += COLUMNS) {
        const int width = m - first < COLUMNS ? m - first : COLUMNS;
        float sent[COLUMNS] = {0}, signed_[COLUMNS] = {0}, entropy[COLUMNS] = {0};
        for (int i = 0; i < n; ++i) {
            const float *restrict row = cost + (size_t)i * m + first;
            const float weight = a[i], sign = s[i];
            if (weight == 0.0f) continue;
            const float log_weight = logf(weight);
            for (int c = 0; c < width; ++c) {
                const float e = exponent_of(f[i], g[first + c], row[c], inverse), k = exponential(e);
                sent[c] += weight * k;
                signed_[c] += sign * k;
                entropy[c] += weight * k * (e < -87.0f ? 0.0f : e + log_weight);
            }
        }
        memcpy(out + first, sent, width * sizeof *out);
        memcpy(out + m + first, signed_, width * sizeof *out);
        memcpy(out + 2 * (size_t)m + first, entropy, width * sizeof *out);
    }
}
