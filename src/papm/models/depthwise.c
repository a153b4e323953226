/* A convolution of each channel of one image and the ReLU6 after it, and their gradients; see depthwise.py.

   Maps are [height][width][channels], in float32 or bfloat16; sums are in float32. Rows are converted once into buffers with
   zeros around them. Channels come in whole vectors there: `pitch` is their number rounded up. NaN stays NaN.          */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define LARGEST 5 /* side of a kernel */

/* As many registers as it takes; sums in plain arrays were kept in memory. */
typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

/* One call's shapes: maps in and out, the kernel's side, its stride, the zeros before the first row and column. */
typedef struct {
    int height, width, channels, rows, columns, kernel, stride, top, left;
    int half; /* maps are bfloat16 */
    int clip; /* what comes in is ReLU6's argument */
} Shape;

static inline float wide(uint16_t v)
{
    const uint32_t bits = (uint32_t)v << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* To the nearest, ties to even. */
static inline uint16_t narrow(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return v != v ? 0x7fc0 : (uint16_t)rounded;
}

static inline float relu6(float v) { return v < 0.0f ? 0.0f : v > 6.0f ? 6.0f : v; }
static inline float passes(float v, float gradient) { return v <= 0.0f || v >= 6.0f ? 0.0f : gradient; }

static inline float at(const void *map, long k, int half)
{
    return half ? wide(((const uint16_t *)map)[k]) : ((const float *)map)[k];
}

/* One row of a map into a buffer, `half` and `clip` known to the compiler. */
static inline void load(const void *map, long start, float *to, int cells, int channels, int pitch, int half, int clip)
{
    for (int x = 0; x < cells; ++x)
        for (int c = 0; c < channels; ++c) {
            const float v = at(map, start + (long)x * channels + c, half);
            to[(long)x * pitch + c] = clip ? relu6(v) : v;
        }
}

static void load_row(const Shape *s, const void *map, int row, float *buffer, int pitch)
{
    const long start = (long)row * s->width * s->channels;
    float *to = buffer + (long)s->left * pitch;
    if (s->half && s->clip) load(map, start, to, s->width, s->channels, pitch, 1, 1);
    else if (s->half) load(map, start, to, s->width, s->channels, pitch, 1, 0);
    else load(map, start, to, s->width, s->channels, pitch, 0, s->clip);
}

/* Gradients of one row of the result, nothing where ReLU6 is flat. */
static inline void load_gradient(const void *out, const void *gradient, long start, float *to, int cells, int channels,
                                 int pitch, int half)
{
    for (int x = 0; x < cells; ++x)
        for (int c = 0; c < channels; ++c) {
            const long k = start + (long)x * channels + c;
            to[(long)x * pitch + c] = passes(at(out, k, half), at(gradient, k, half));
        }
}

/* Gradients of one row of what came in, from a buffer. Each kind of map has a loop of its own: pointers of one kind may alias. */
static inline void store_gradient(const void *in, void *to, long start, const float *restrict buffer, int cells, int channels,
                                  int pitch, int half, int clip)
{
    for (int x = 0; x < cells; ++x) {
        const long k = start + (long)x * channels;
        const float *restrict g = buffer + (long)x * pitch;
        if (half) {
            const uint16_t *restrict v = (const uint16_t *)in + k;
            uint16_t *restrict made = (uint16_t *)to + k;
            for (int c = 0; c < channels; ++c) made[c] = narrow(clip ? passes(wide(v[c]), g[c]) : g[c]);
        } else {
            const float *restrict v = (const float *)in + k;
            float *restrict made = (float *)to + k;
            for (int c = 0; c < channels; ++c) made[c] = clip ? passes(v[c], g[c]) : g[c];
        }
    }
}

/* One row of the result; `rows` are the buffers of the kernel's rows. */
static inline void row_of(const Shape *s, float *const *rows, const float *weight, const float *bias, void *out, long start,
                          int pitch, int kernel, int half)
{
    for (int x = 0; x < s->columns; ++x)
        for (int first = 0; first < s->channels; first += LANES) {
            Vector sum = *(const Vector *)(bias + first);
            for (int i = 0; i < kernel; ++i) {
                const float *v = rows[i] + (long)x * s->stride * pitch + first;
                const float *w = weight + (long)i * kernel * pitch + first;
                for (int j = 0; j < kernel; ++j)
                    sum += *(const Vector *)(v + (long)j * pitch) * *(const Vector *)(w + (long)j * pitch);
            }
            const int n = s->channels - first < LANES ? s->channels - first : LANES;
            const long k = start + (long)x * s->channels + first;
            if (n == LANES && half)
                for (int c = 0; c < LANES; ++c) ((uint16_t *)out)[k + c] = narrow(relu6(sum[c]));
            else
                for (int c = 0; c < n; ++c) {
                    if (half) ((uint16_t *)out)[k + c] = narrow(relu6(sum[c]));
                    else ((float *)out)[k + c] = relu6(sum[c]);
                }
        }
}

/* What one row of the result says of one row of what came in and of one row of the kernel. */
static inline void back_row(const Shape *s, const float *row, const float *gradient, const float *weight, float *to_row,
                            float *to_weight, int pitch, int kernel)
{
    for (int first = 0; first < pitch; first += LANES) {
        Vector w[LARGEST], sum[LARGEST] = {{0}};
        for (int j = 0; j < kernel; ++j) w[j] = *(const Vector *)(weight + (long)j * pitch + first);
        for (int x = 0; x < s->columns; ++x) {
            const Vector g = *(const Vector *)(gradient + (long)x * pitch + first);
            const long place = (long)x * s->stride * pitch + first;
            for (int j = 0; j < kernel; ++j) {
                sum[j] += g * *(const Vector *)(row + place + (long)j * pitch);
                *(Vector *)(to_row + place + (long)j * pitch) += g * w[j];
            }
        }
        for (int j = 0; j < kernel; ++j) *(Vector *)(to_weight + (long)j * pitch + first) += sum[j];
    }
}

/* Rows of the input as buffers in a ring; a row beyond the image is zero. */
typedef struct {
    float *memory, *nothing, *weight, *bias;
    long span; /* of one buffer */
    int pitch, next;
} Ring;

/* Zeroed memory for `rows` buffers, one of zeros, and the kernel; NULL where there is none. */
static float *ring(Ring *r, const Shape *s, const float *weight, const float *bias, int rows)
{
    const int squared = s->kernel * s->kernel, reach = (s->columns - 1) * s->stride + s->kernel;
    const int cells = s->left + s->width > reach ? s->left + s->width : reach;
    r->pitch = (s->channels + LANES - 1) / LANES * LANES;
    r->span = (long)cells * r->pitch;
    r->next = 0;
    r->memory = calloc((size_t)(r->span * (rows + 1) + (long)(squared + 1) * r->pitch), sizeof(float));
    if (!r->memory) return NULL;
    r->nothing = r->memory + r->span * rows;
    r->weight = r->nothing + r->span;
    r->bias = r->weight + (long)squared * r->pitch;
    for (int k = 0; k < squared; ++k)
        memcpy(r->weight + (long)k * r->pitch, weight + (long)k * s->channels, (size_t)s->channels * sizeof(float));
    if (bias) memcpy(r->bias, bias, (size_t)s->channels * sizeof(float));
    return r->memory;
}

/* The buffers of the kernel's rows for row y of the result. */
static void gather(Ring *r, const Shape *s, const void *in, int y, float **rows)
{
    const int first = y * s->stride - s->top;
    const int end = first + s->kernel < s->height ? first + s->kernel : s->height;
    for (; r->next < end; ++r->next) load_row(s, in, r->next, r->memory + r->next % s->kernel * r->span, r->pitch);
    for (int i = 0; i < s->kernel; ++i) {
        const int row = first + i;
        rows[i] = row < 0 || row >= s->height ? r->nothing : r->memory + row % s->kernel * r->span;
    }
}

/* out = ReLU6(bias + weight * in), with `in` through ReLU6 first where `clip`; weight is [kernel²][channels]. 1: no memory. */
int papm_depthwise(const void *in, const float *weight, const float *bias, void *out, const int *shape)
{
    Shape s;
    Ring r;
    float *rows[LARGEST];
    memcpy(&s, shape, sizeof s);
    if (!ring(&r, &s, weight, bias, s.kernel)) return 1;
    for (int y = 0; y < s.rows; ++y) {
        const long start = (long)y * s.columns * s.channels;
        gather(&r, &s, in, y, rows);
        if (s.half && s.kernel == 3) row_of(&s, rows, r.weight, r.bias, out, start, r.pitch, 3, 1);
        else if (s.half) row_of(&s, rows, r.weight, r.bias, out, start, r.pitch, 5, 1);
        else if (s.kernel == 3) row_of(&s, rows, r.weight, r.bias, out, start, r.pitch, 3, 0);
        else row_of(&s, rows, r.weight, r.bias, out, start, r.pitch, 5, 0);
    }
    free(r.memory);
    return 0;
}

static void flush(const Shape *s, const void *in, void *to_in, int row, float *buffer, long span, int pitch)
{
    const long start = (long)row * s->width * s->channels;
    const float *from = buffer + (long)s->left * pitch;
    if (s->half && s->clip) store_gradient(in, to_in, start, from, s->width, s->channels, pitch, 1, 1);
    else if (s->half) store_gradient(in, to_in, start, from, s->width, s->channels, pitch, 1, 0);
    else store_gradient(in, to_in, start, from, s->width, s->channels, pitch, 0, s->clip);
    memset(buffer, 0, (size_t)span * sizeof(float));
}

/* The gradients of what came in, of the weight [kernel²][channels] and of the bias. 1: no memory. */
int papm_depthwise_back(const void *in, const float *weight, const void *out, const void *gradient, void *to_in,
                        float *to_weight, float *to_bias, const int *shape)
{
    Shape s;
    Ring r;
    float *rows[LARGEST];
    memcpy(&s, shape, sizeof s);
    const int squared = s.kernel * s.kernel;
    if (!ring(&r, &s, weight, NULL, s.kernel)) return 1;
    const long line = (long)s.columns * r.pitch;
    /* A ring of the rows' own gradients, one for rows beyond the image, a row of the result, the sums of the kernel. */
    float *own = calloc((size_t)(r.span * (s.kernel + 1) + line + (long)squared * r.pitch), sizeof(float));
    if (!own) {
        free(r.memory);
        return 1;
    }
    float *row = own + r.span * (s.kernel + 1), *sums = row + line;
    int done = 0; /* rows whose gradients are complete */
    for (int y = 0; y < s.rows; ++y) {
        const int first = y * s.stride - s.top;
        for (; done < first; ++done)
            flush(&s, in, to_in, done, own + done % s.kernel * r.span, r.span, r.pitch);
        gather(&r, &s, in, y, rows);
        if (s.half) load_gradient(out, gradient, (long)y * s.columns * s.channels, row, s.columns, s.channels, r.pitch, 1);
        else load_gradient(out, gradient, (long)y * s.columns * s.channels, row, s.columns, s.channels, r.pitch, 0);
        for (int x = 0; x < s.columns; ++x)
            for (int c = 0; c < r.pitch; ++c) r.bias[c] += row[(long)x * r.pitch + c];
        for (int i = 0; i < s.kernel; ++i) {
            const int place = first + i;
            if (place < 0 || place >= s.height) continue;
            float *to = own + place % s.kernel * r.span;
            const float *w = r.weight + (long)i * s.kernel * r.pitch;
            float *sum = sums + (long)i * s.kernel * r.pitch;
            if (s.kernel == 3) back_row(&s, rows[i], row, w, to, sum, r.pitch, 3);
            else back_row(&s, rows[i], row, w, to, sum, r.pitch, 5);
        }
    }
    for (; done < s.height; ++done) flush(&s, in, to_in, done, own + done % s.kernel * r.span, r.span, r.pitch);
    for (int k = 0; k < squared; ++k)
        memcpy(to_weight + (long)k * s.channels, sums + (long)k * r.pitch, (size_t)s.channels * sizeof(float));
    memcpy(to_bias, r.bias, (size_t)s.channels * sizeof(float));
    free(own);
    free(r.memory);
    return 0;
}
