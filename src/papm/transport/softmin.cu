// Passes over a dense cost [B, n, m], each reading it once and keeping nothing of its size; see softmin.py.
//
// Defined in front of this file: THREADS and TILE, powers of two. A row is the work of a block of THREADS, TILE columns that
// of a block of TILE x TILE. Sums go up in a fixed order: the same result on every run. Numbers come as doubles: that is what torch makes of Python's. NaN in a cost or a potential comes
// out as NaN; what nothing reaches gives +limit.

#define NOTHING (-3.402823466e38f)  // below every exponent that is not -inf

struct Sum {  // sum of exp(x) as total * exp(most)
    float most, total;
};

__device__ __forceinline__ void take(Sum &s, float x) {
    if (x > s.most) {
        s.total = s.total * expf(s.most - x) + 1.0f;
        s.most = x;
    } else {
        s.total += expf(x - s.most);  // 0 for -inf, NaN for NaN
    }
}

__device__ __forceinline__ Sum joined(Sum s, Sum t) {
    const float most = s.most > t.most ? s.most : t.most;
    return Sum{most, s.total * expf(s.most - most) + t.total * expf(t.most - most)};
}

__device__ __forceinline__ float finished(Sum s, float factor, float limit) {
    if (s.total == 0.0f) return limit;  // the factor is negative
    const float x = factor * (s.most + logf(s.total));
    return x < -limit ? -limit : x > limit ? limit : x;
}

__device__ __forceinline__ float exponent_of(float f, float g, float cost, float inverse) {
    const float x = (f + g - cost) * inverse;
    return x > 80.0f ? 80.0f : x;
}

// out[b, i] = factor * ln sum_j exp(add[b, j] - cost[b, i, j] * inverse), within limit. One block to a row.
extern "C" __global__ void __launch_bounds__(THREADS)
softmin_rows(const float *__restrict__ cost, const float *__restrict__ add, float *__restrict__ out, int n, int m,
             double inverse_, double factor, double limit) {
    __shared__ Sum part[THREADS];
    const float inverse = inverse_;
    const size_t row = blockIdx.x;
    const float *c = cost + row * m, *a = add + (row / n) * m;
    Sum s = {NOTHING, 0.0f};
    for (int j = threadIdx.x; j < m; j += THREADS) take(s, a[j] - c[j] * inverse);
    part[threadIdx.x] = s;
    for (int k = THREADS / 2; k > 0; k /= 2) {
        __syncthreads();
        if (threadIdx.x < k) part[threadIdx.x] = joined(part[threadIdx.x], part[threadIdx.x + k]);
    }
    if (threadIdx.x == 0) out[row] = finished(part[0], factor, limit);
}

// out[b, j] = factor * ln sum_i exp(add[b, i] - cost[b, i, j] * inverse), within limit. TILE columns to a block.
extern "C" __global__ void __launch_bounds__(TILE * TILE)
softmin_columns(const float *__restrict__ cost, const float *__restrict__ add, float *__restrict__ out, int n, int m,
                double inverse_, double factor, double limit) {
    __shared__ Sum part[TILE][TILE];
    const float inverse = inverse_;
    const int j = blockIdx.x * TILE + threadIdx.x;
    const size_t image = blockIdx.y;
    const float *c = cost + image * n * m + j, *a = add + image * n;
    Sum s = {NOTHING, 0.0f};
    if (j < m)
        for (int i = threadIdx.y; i < n; i += TILE) take(s, a[i] - c[(size_t)i * m] * inverse);
    part[threadIdx.y][threadIdx.x] = s;
    for (int k = TILE / 2; k > 0; k /= 2) {
        __syncthreads();
        if (threadIdx.y < k)
            part[threadIdx.y][threadIdx.x] = joined(part[threadIdx.y][threadIdx.x], part[threadIdx.y + k][threadIdx.x]);
    }
    if (threadIdx.y == 0 && j < m) out[image * m + j] = finished(part[0][threadIdx.x], factor, limit);
}

// out[b, i] = sum_j exp((f[b, i] + g[b, j] - cost[b, i, j])/eps) * weight[b, j]. One block to a row.
extern "C" __global__ void __launch_bounds__(THREADS)
plan_rows(const float *__restrict__ cost, const float *__restrict__ f, const float *__restrict__ g,
          const float *__restrict__ weight, float *__restrict__ out, int n, int m, double inverse_) {
    __shared__ float part[THREADS];
    const float inverse = inverse_;
    const size_t row = blockIdx.x, image = row / n;
    float s = 0.0f;
    for (int j = threadIdx.x; j < m; j += THREADS)
        s += expf(exponent_of(f[row], g[image * m + j], cost[row * m + j], inverse)) * weight[image * m + j];
    part[threadIdx.x] = s;
    for (int k = THREADS / 2; k > 0; k /= 2) {
        __syncthreads();
        if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
    }
    if (threadIdx.x == 0) out[row] = part[0];
}

// With k = exp(e), e = (f + g - cost)/eps, over rows of weight: out[b, 0] = sum_i a k, out[b, 1] = sum_i s k,
// out[b, 2] = sum_i a k (e + ln a).
extern "C" __global__ void __launch_bounds__(TILE * TILE)
plan_columns(const float *__restrict__ cost, const float *__restrict__ f, const float *__restrict__ g,
             const float *__restrict__ a, const float *__restrict__ s, float *__restrict__ out, int n, int m,
             double inverse_) {
    __shared__ float part[3][TILE][TILE];
    const float inverse = inverse_;
    const int j = blockIdx.x * TILE + threadIdx.x, x = threadIdx.x, y = threadIdx.y;
    const size_t image = blockIdx.y;
    const float *c = cost + image * n * m + j;
    float sent = 0.0f, signed_ = 0.0f, entropy = 0.0f;
    if (j < m) {
        const float potential = g[image * m + j];
        for (int i = y; i < n; i += TILE) {
            const float weight = a[image * n + i];
            if (weight == 0.0f) continue;
            const float e = exponent_of(f[image * n + i], potential, c[(size_t)i * m], inverse), k = expf(e);
            sent += weight * k;
            signed_ += s[image * n + i] * k;
            if (!(k == 0.0f)) entropy += weight * k * (e + logf(weight));
        }
    }
    part[0][y][x] = sent;
    part[1][y][x] = signed_;
    part[2][y][x] = entropy;
    for (int k = TILE / 2; k > 0; k /= 2) {
        __syncthreads();
        if (y < k)
            for (int t = 0; t < 3; ++t) part[t][y][x] += part[t][y + k][x];
    }
    if (y == 0 && j < m)
        for (int t = 0; t < 3; ++t) out[(image * 3 + t) * m + j] = part[t][0][x];
}
