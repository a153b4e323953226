// A batch of assignment problems in one launch, a thread block to a problem; see cuda.py, and assign.c for the method.
//
// Defined in front of this file: REDUX (1 where the device has warp-wide integer minima: compute capability 8.0).
//
// A thread owns every blockDim-th column: the keys of its columns are its own affair. Columns that are reached at the same
// time (edges without slack are common: a tree that left the forest stays tight) join together, and their rows are scanned
// together. What depends on the order of threads is decided by the smaller index, so that every run gives the same.
//
// Shared memory: by column v, key (inside the forest: when it joined), from (the row it was reached from; ~row inside the
// forest), owner; by row u (inside the forest: u less the time it joined), column, root (-1 outside the forest), list.

#define NEVER 1e300
#define NOBODY 0x7fffffff
#define FULL 0xffffffffu
#define LARGEST 1e30f   // what is not finite counts as this: bad costs may not hang the device
#define TOGETHER 1e-13  // of the numbers themselves: how far sums that are equal may differ by rounding

struct Found {
    double key;
    int at;
};

struct Reached {  // a column: the row it was reached from and that row's root, the row that has it (-1: it is free)
    int from, root, owner;
};

__device__ __forceinline__ bool before(double key, int at, Found than) {
    return key < than.key || (key == than.key && at < than.at);
}

// The least key of a warp and where it is, in every lane.
__device__ __forceinline__ Found warp_least(Found mine) {
#if REDUX
    const long long bits = __double_as_longlong(mine.key);
    const unsigned long long order = bits < 0 ? ~(unsigned long long)bits : (unsigned long long)bits | 1ull << 63;
    const unsigned high = (unsigned)(order >> 32), low = (unsigned)order;
    const unsigned top = __reduce_min_sync(FULL, high);
    const unsigned rest = __reduce_min_sync(FULL, high == top ? low : FULL);
    const unsigned at = __reduce_min_sync(FULL, high == top && low == rest ? (unsigned)mine.at : FULL);
    const unsigned long long least = (unsigned long long)top << 32 | rest;
    return {__longlong_as_double((long long)(least >> 63 ? least ^ 1ull << 63 : ~least)), (int)at};
#else
    for (int step = 16; step > 0; step /= 2) {
        const double key = __shfl_xor_sync(FULL, mine.key, step);
        const int at = __shfl_xor_sync(FULL, mine.at, step);
        if (before(key, at, mine)) mine = {key, at};
    }
    return mine;
#endif
}

__device__ __forceinline__ double cost_at(const float *cost, size_t offset) {
    return (double)fmaxf(fminf(__ldg(cost + offset), LARGEST), -LARGEST);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
assign(const float *__restrict__ costs,  // [B, N, M]
       const int *__restrict__ counts,   // [B, 2]: the rows and columns of each problem that are real
       long long *matched,               // [B, N]: the column of each row, -1 for none
       int *steps,                       // [B, 3]: rounds of bids, rounds of growth, rows scanned
       int N, int M, int rows_room, int columns_room, int rounds) {
    extern __shared__ double pool[];
    __shared__ Found least_of_warp[2][32];
    __shared__ Reached reached_by_warp[2][32];
    __shared__ int listed[2], bidding;  // how long the list is, in turn
    const int thread = threadIdx.x, threads = blockDim.x, lane = thread % 32, warp = thread / 32, warps = threads / 32;
    const float *cost = costs + (size_t)blockIdx.x * N * M;
    // There must be no more rows than columns: else they trade places.
    const int given = min(max(counts[2 * blockIdx.x], 0), N), offered = min(max(counts[2 * blockIdx.x + 1], 0), M);
    const bool turned = given > offered;
    const int n = turned ? offered : given, m = turned ? given : offered;
    const size_t down = turned ? 1 : M, right = turned ? M : 1;  // from one row to the next, one column to the next

    double *v = pool, *key = v + columns_room, *u = key + columns_room;
    int *from = (int *)(u + rows_room), *owner = from + columns_room;
    int *column = owner + columns_room, *root = column + rows_room, *list = root + rows_room;
    for (int j = thread; j < m; j += threads) v[j] = 0, owner[j] = -1;
    for (int i = thread; i < n; i += threads) column[i] = -1, root[i] = -1;

    // 1. Bids: a warp to a row. key: the best offer for a column (as bits), from: who made it; u and list: a row's own.
    int round = 0;
    for (bool more = n > 0; more && round < rounds; ++round) {
        for (int j = thread; j < m; j += threads) key[j] = 0, from[j] = NOBODY;
        if (thread == 0) bidding = 0;
        __syncthreads();
        for (int i = warp; i < n; i += warps) {
            if (column[i] >= 0) continue;
            Found best = {NEVER, NOBODY};
            double second = NEVER;
#pragma unroll 8
            for (int j = lane; j < m; j += 32) {
                const double d = cost_at(cost, i * down + j * right) - v[j];
                if (d < best.key) second = best.key, best = {d, j};
                else if (d < second) second = d;
            }
            const Found first = warp_least(best);
            const double gap = warp_least({first.at == best.at ? second : best.key, lane}).key - first.key;
            if (lane == 0) {
                const bool bids = owner[first.at] < 0 || gap > 0;  // at a tie it would change hands for nothing, and again
                list[i] = bids ? first.at : -1;
                u[i] = m > 1 ? gap : 0.0;
                if (bids) {
                    atomicMax((unsigned long long *)&key[first.at], (unsigned long long)__double_as_longlong(u[i]));
                    bidding = 1;
                }
            }
        }
        __syncthreads();
        more = bidding;
        for (int i = thread; i < n; i += threads)
            if (column[i] < 0 && list[i] >= 0 && u[i] == key[list[i]]) atomicMin(&from[list[i]], i);
        __syncthreads();
        for (int j = thread; j < m; j += threads) {
            const int winner = from[j];
            if (winner == NOBODY) continue;
            if (owner[j] >= 0) column[owner[j]] = -1;
            owner[j] = winner, column[winner] = j;
            v[j] -= key[j];
        }
    }

    // 2. Trees from all rows that are still free.
    if (thread == 0) listed[0] = 0;
    __syncthreads();
    for (int i = warp; i < n; i += warps) {
        if (column[i] >= 0) {
            if (lane == 0) u[i] = cost_at(cost, i * down + column[i] * right) - v[column[i]];
            continue;
        }
        Found best = {NEVER, NOBODY};
#pragma unroll 8
        for (int j = lane; j < m; j += 32) {
            const double d = cost_at(cost, i * down + j * right) - v[j];
            if (d < best.key) best = {d, j};
        }
        best = warp_least(best);
        if (lane == 0) u[i] = best.key, root[i] = i, list[atomicAdd(&listed[0], 1)] = i;
    }
    for (int j = thread; j < m; j += threads) key[j] = NEVER, from[j] = NOBODY;
    __syncthreads();

    int left = listed[0], growths = 0, scanned = 0, turn = 0;
    // Every growth takes a column in or gives one away: there are at most m + 1 for each row. More would be a fault, and a
    // fault may cost pairs, but may not hang the device.
    const long long most = (long long)left * (m + 1);
    bool fresh = true;  // the list holds the whole forest, for columns without a key; else rows that joined, for all columns
    while (left && growths < most) {
        // Keys from the rows of the list; then the least of all.
        const int rows = listed[turn];
        Found mine = {2 * NEVER, NOBODY};
        for (int j = thread; j < m; j += threads) {
            if (from[j] < 0) continue;  // inside
            double least = key[j];
            if (!fresh || least == NEVER) {
                const double price = v[j];
                int who = fresh ? NOBODY : -1;  // of equals: whoever was there before, then the smaller row
#pragma unroll 8
                for (int k = 0; k < rows; ++k) {
                    const int i = list[k];
                    const double d = cost_at(cost, i * down + j * right) - u[i] - price;
                    if (d < least || (d == least && i < who)) least = d, who = i;
                }
                if (who >= 0 && who != NOBODY) key[j] = least, from[j] = who;
            }
            if (before(least, j, mine)) mine = {least, j};
        }
        mine = warp_least(mine);
        __syncwarp();  // the minima order no memory, and lane 0 reads what another lane wrote
        if (lane == 0) {
            least_of_warp[turn][warp] = mine;
            if (mine.at != NOBODY) {
                const int row = from[mine.at];
                reached_by_warp[turn][warp] = {row, root[row], owner[mine.at]};
            }
            if (warp == 0) listed[turn ^ 1] = 0;
        }
        __syncthreads();
        const Found least = warp_least(lane < warps ? least_of_warp[turn][lane] : Found{2 * NEVER, NOBODY});
        const Reached reached = reached_by_warp[turn][least.at % threads / 32];  // of the warp that owns the column
        const double now = least.key;
        turn ^= 1;
        ++growths;
        if (reached.owner >= 0) {
            for (int j = thread; j < m; j += threads) {
                const int parent = from[j], i = owner[j];
                if (parent < 0 || i < 0 || key[j] - now > TOGETHER * (fabs(now) + fabs(u[i]))) continue;
                root[i] = root[parent], u[i] -= key[j];
                from[j] = ~parent;
                list[atomicAdd(&listed[turn], 1)] = i;
            }
            fresh = false;
            __syncthreads();
            scanned += listed[turn];
            continue;
        }
        // A free column: flip the path to the root, and let that tree go.
        if (thread == 0) {
            for (int at = least.at, i = reached.from, far = 0; far < n; ++far) {
                const int held = column[i];
                column[i] = at, owner[at] = i;
                if (i == reached.root) break;
                at = held, i = ~from[at];
            }
        }
        for (int i = thread; i < n; i += threads) {
            if (root[i] == reached.root) u[i] += now, root[i] = -1;
            else if (root[i] >= 0) list[atomicAdd(&listed[turn], 1)] = i;
        }
        fresh = true, --left;
        __syncthreads();
        for (int j = thread; j < m; j += threads) {
            const int parent = from[j] < 0 ? ~from[j] : from[j];
            if (root[parent] >= 0) continue;
            if (from[j] < 0) v[j] += key[j] - now;
            key[j] = NEVER, from[j] = parent;
        }
        if (left) scanned += listed[turn];
    }
    for (int i = thread; i < N; i += threads) {
        const int found = i >= given ? -1 : turned ? owner[i] : column[i];
        matched[(size_t)blockIdx.x * N + i] = found;
    }
    if (thread == 0) {
        int *out = steps + 3 * blockIdx.x;
        out[0] = round, out[1] = growths, out[2] = scanned;
    }
}
