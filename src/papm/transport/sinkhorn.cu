// All scaling iterations of a batch in one launch: CLUSTER thread blocks to an image; see cuda.py.
//
// Defined in front of this file: real (float or double) and LOG (its logarithm), ROWS, HALF (initialiser, cells to each side
// by row of the window), OFFSET (first entry of each row), ENTRIES, LANES (threads to a cell, a power of two up to 32),
// CLUSTER (blocks to an image), FLOOR.
//
// Points come sorted by cell, so that those in a run of cells of one row are a run of points: `start` says where. From it
// every cell lists its own entries once (list_kernel, list_point), and both half-steps are gathers: no atomics, the same
// result on every run. u and v live in shared memory; the blocks of an image trade theirs through u_out and v_out.

#define RADIUS (ROWS / 2)

__device__ __forceinline__ void image_barrier() {
#if CLUSTER > 1
    __threadfence();
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(1024, 1)
sinkhorn(const real *__restrict__ kernel,   // [B, ENTRIES, n]
         const int *__restrict__ cell,      // [B, n], row * w + column
         const int *__restrict__ start,     // [B, h * w + 1]
         const int *__restrict__ first,     // [B, h * w + 1], where the list of each cell begins
         const real *__restrict__ a,        // [B, n]
         const real *__restrict__ b,        // [B, h * w]
         real *list_kernel,                 // [B, ENTRIES * n], scratch
         int *list_point,                   // [B, ENTRIES * n], scratch
         real *u_out,                       // [B, n], the start on entry
         real *v_out,                       // [B, h * w]
         real *moved,                       // [B, n], sum of u K ln(K) v of each point: -1/eps of what moving it costs
         int n, int h, int w, int iterations) {
    extern __shared__ real pool[];
    constexpr int half_of[ROWS] = HALF, offset_of[ROWS] = OFFSET;
    const int m = h * w, pitch = w + 2 * RADIUS, size = (h + 2 * RADIUS) * pitch;
    const int image = blockIdx.x / CLUSTER, block = blockIdx.x % CLUSTER;
    const int thread = threadIdx.x, threads = blockDim.x;
    kernel += (size_t)image * ENTRIES * n;
    list_kernel += (size_t)image * ENTRIES * n;
    list_point += (size_t)image * ENTRIES * n;
    cell += (size_t)image * n;
    a += (size_t)image * n;
    u_out += (size_t)image * n;
    moved += (size_t)image * n;
    start += (size_t)image * (m + 1);
    first += (size_t)image * (m + 1);
    b += (size_t)image * m;
    v_out += (size_t)image * m;

    real *u = pool, *v = pool + n;  // v has a margin of RADIUS cells, always zero
    for (int i = thread; i < n; i += threads) u[i] = u_out[i];
    for (int j = thread; j < size; j += threads) v[j] = 0;

    // This block's share of the points and of the cells.
    const int points_each = (n + CLUSTER - 1) / CLUSTER, cells_each = (m + CLUSTER - 1) / CLUSTER;
    const int point_from = min(block * points_each, n), point_to = min(point_from + points_each, n);
    const int cell_from = min(block * cells_each, m), cell_to = min(cell_from + cells_each, m);

    for (int j = cell_from + thread; j < cell_to; j += threads) {
        const int y = j / w, x = j - y * w;
        int to = first[j];
        for (int r = 0; r < ROWS; ++r) {
            const int row = y - (r - RADIUS);  // the row of points that see this cell through row r of their window
            if (row < 0 || row >= h) continue;
            const int side = half_of[r];
            const int low = start[row * w + max(x - side, 0)], high = start[row * w + min(x + side, w - 1) + 1];
            for (int i = low; i < high; ++i, ++to) {
                const int column = cell[i] - row * w;
                list_kernel[to] = kernel[(size_t)(offset_of[r] + side + x - column) * n + i];
                list_point[to] = i;
            }
        }
    }
    __syncthreads();

    const int groups = threads / LANES, group = thread / LANES, lane = thread % LANES;
    for (int it = 0; it < iterations; ++it) {
        for (int base = cell_from; base < cell_to; base += groups) {  // every thread takes part in the shuffles
            const int j = base + group;
            real sum = 0;
            if (j < cell_to) {
                const int end = first[j + 1];
                for (int e = first[j] + lane; e < end; e += LANES) sum += u[list_point[e]] * list_kernel[e];
            }
            for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (j < cell_to && lane == 0) {
                const real value = b[j] / (sum + FLOOR);
                v[(j / w + RADIUS) * pitch + j % w + RADIUS] = value;
                if (CLUSTER > 1 || it == iterations - 1) v_out[j] = value;
            }
        }
        image_barrier();
        if (CLUSTER > 1) {
            for (int j = thread; j < m; j += threads)
                if (j < cell_from || j >= cell_to) v[(j / w + RADIUS) * pitch + j % w + RADIUS] = __ldcg(v_out + j);
            __syncthreads();
        }
        for (int i = point_from + thread; i < point_to; i += threads) {
            const real *at = v + (cell[i] / w) * pitch + cell[i] % w;  // the window's top left corner
            const real *k = kernel + i;
            real sum = 0;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int side = half_of[r];
#pragma unroll
                for (int c = RADIUS - side; c <= RADIUS + side; ++c, k += n) sum += at[r * pitch + c] * *k;
            }
            const real value = a[i] / (sum + FLOOR);
            u[i] = value;
            if (CLUSTER > 1 || it == iterations - 1) u_out[i] = value;
        }
        image_barrier();
        if (CLUSTER > 1) {
            for (int i = thread; i < n; i += threads)
                if (i < point_from || i >= point_to) u[i] = __ldcg(u_out + i);
            __syncthreads();
        }
    }
    for (int i = point_from + thread; i < point_to; i += threads) {
        const real *at = v + (cell[i] / w) * pitch + cell[i] % w;
        const real *k = kernel + i;
        real sum = 0;
        for (int r = 0; r < ROWS; ++r)
            for (int c = RADIUS - half_of[r]; c <= RADIUS + half_of[r]; ++c, k += n)
                if (*k > 0) sum += at[r * pitch + c] * (*k * LOG(*k));
        moved[i] = u[i] * sum;
    }
}
