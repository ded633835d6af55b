/* The arithmetic of a spike-and-slab site in one pass: what SpikeSlabSite, MultipliedSpikeSlabSite and
 * ConcreteSite of fused.py say, in single precision.  guides/core/kernels.py compiles this file and states what the arguments are.
 *
 * Symbols: lambda logits, mu means and s log scales of the slabs, alpha = sigmoid(lambda), off = 1 - alpha,
 * s2 = exp(2 s); prior = {half, mean, shift, constant} with half = 1 / (2 s_p^2), shift = log s_p - 1/2 - logit(pi)
 * and constant = -log(1 - pi).
 * Arrays are [rows, cols]; z and c are [cols].
 */
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Columns whose contributions are added in single precision. */
enum { BLOCK = 4096 };

/* exp by Cephes' polynomial, right to two units in the last place; arguments beyond the range are clipped. */
INLINE float fast_exp(float x) {
    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* adding 1.5 * 2^23 rounds to an integer */
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;     /* x - n log 2, in two parts */
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23; /* 2^n */
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* log by Cephes' polynomial, right to two units in the last place, for x > 0; of 0 it is -127 log 2. */
INLINE float fast_log(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t e = (bits - 0x3f3504f3) >> 23; /* x = m 2^e, sqrt(1/2) <= m < sqrt(2) */
    bits -= e << 23;
    float m;
    memcpy(&m, &bits, sizeof m);
    float r = m - 1.0f, q = r * r, n = (float)e, p = 7.0376836292e-2f;
    p = p * r - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    return (p * r * q - n * 2.12194440e-4f - 0.5f * q) + r + n * 0.693359375f;
}

/* log(1 + t) for 0 <= t <= 1, as 2 artanh(u) with u = t / (2 + t) <= 1/3; truncated below 1e-8. */
INLINE float log_of_1_plus(float t) {
    float u = t / (2.0f + t), q = u * u, p = 1.0f / 15;
    p = p * q + 1.0f / 13;
    p = p * q + 1.0f / 11;
    p = p * q + 1.0f / 9;
    p = p * q + 1.0f / 7;
    p = p * q + 1.0f / 5;
    p = p * q + 1.0f / 3;
    return 2.0f * u * (p * q + 1.0f);
}

typedef struct {
    float alpha, off, softplus, s2;
} weight;

/* One exponential serves sigmoid and softplus. */
INLINE weight read_weight(float lambda, float s) {
    float t = fast_exp(lambda > 0 ? -lambda : lambda), large = 1.0f / (1.0f + t), small = t * large;
    weight w;
    w.alpha = lambda > 0 ? large : small;
    w.off = lambda > 0 ? small : large;
    w.softplus = (lambda > 0 ? lambda : 0.0f) + log_of_1_plus(t);
    w.s2 = fast_exp(2.0f * s);
    return w;
}

/* KL, with its constant in every weight's, so that no large sums cancel; with a flow, seen = sum_j c_j mean_ij and
 * the like for variances.
 */
INLINE double forward(int64_t rows, int64_t cols, const float *restrict prior, const float *restrict lambda,
                      const float *restrict mu, const float *restrict s, const float *restrict z,
                      const float *restrict c, float *restrict mean, float *restrict variance,
                      float *restrict seen_mean, float *restrict seen_variance, const int flow) {
    const float half = prior[0], prior_mean = prior[1], shift = prior[2], constant = prior[3];
    double total = 0;
    for (int64_t i = 0; i < rows; i++) {
        float kl = 0, a = 0, b = 0;
        const int64_t k = i * cols;
#pragma omp simd reduction(+ : kl, a, b)
        for (int64_t j = 0; j < cols; j++) {
            weight w = read_weight(lambda[k + j], s[k + j]);
            float m = flow ? mu[k + j] * z[j] : mu[k + j], d = m - prior_mean;
            float am = w.alpha * m, v = w.alpha * (w.s2 + w.off * m * m);
            float cost = (w.s2 + d * d) * half + lambda[k + j] - s[k + j] + shift;
            kl += w.alpha * cost + (constant - w.softplus);
            mean[k + j] = am;
            variance[k + j] = v;
            if (flow) {
                a += c[j] * am;
                b += c[j] * c[j] * v;
            }
        }
        if (flow) {
            seen_mean[i] = a;
            seen_variance[i] = b;
        }
        total += kl;
    }
    return total;
}

/* d_* are derivatives of the loss; d_z and d_c are added to. */
INLINE void backward(int64_t rows, int64_t cols, const float *restrict prior, float d_kl,
                     const float *restrict lambda, const float *restrict mu, const float *restrict s,
                     const float *restrict z, const float *restrict c, const float *restrict d_mean,
                     const float *restrict d_variance, const float *restrict d_seen_mean,
                     const float *restrict d_seen_variance, float *restrict d_lambda, float *restrict d_mu,
                     float *restrict d_s, float *restrict d_z, float *restrict d_c, const int flow) {
    const float half = prior[0], prior_mean = prior[1], shift = prior[2], precision = 2 * half * d_kl;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t k = i * cols;
        const float a = flow ? d_seen_mean[i] : 0, b = flow ? d_seen_variance[i] : 0;
#pragma omp simd
        for (int64_t j = 0; j < cols; j++) {
            weight w = read_weight(lambda[k + j], s[k + j]);
            float m = flow ? mu[k + j] * z[j] : mu[k + j], d = m - prior_mean;
            float dm = d_mean[k + j], dv = d_variance[k + j];
            if (flow) {
                d_c[j] += w.alpha * (a * m + 2 * b * c[j] * (w.s2 + w.off * m * m));
                dm += a * c[j];
                dv += b * c[j] * c[j];
            }
            float cost = (w.s2 + d * d) * half + lambda[k + j] - s[k + j] + shift;
            /* d variance / d alpha = s2 + (1 - 2 alpha) m^2 */
            float d_alpha = m * dm + (w.s2 + (w.off - w.alpha) * m * m) * dv + d_kl * cost;
            float d_m = w.alpha * (dm + 2 * w.off * m * dv + d * precision);
            d_lambda[k + j] = w.alpha * w.off * d_alpha;
            d_s[k + j] = w.alpha * (w.s2 * (2 * dv + precision) - d_kl);
            d_mu[k + j] = flow ? d_m * z[j] : d_m;
            if (flow) d_z[j] += d_m * mu[k + j];
        }
    }
}

double spike_slab_forward(int64_t n, const float *prior, const float *lambda, const float *mu, const float *s,
                          float *mean, float *variance) {
    double total = 0;
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t size = n - at < BLOCK ? n - at : BLOCK;
        total += forward(1, size, prior, lambda + at, mu + at, s + at, 0, 0, mean + at, variance + at, 0, 0, 0);
    }
    return total;
}

void spike_slab_backward(int64_t n, const float *prior, float d_kl, const float *lambda, const float *mu,
                         const float *s, const float *d_mean, const float *d_variance, float *d_lambda,
                         float *d_mu, float *d_s) {
    backward(1, n, prior, d_kl, lambda, mu, s, 0, 0, d_mean, d_variance, 0, 0, d_lambda, d_mu, d_s, 0, 0, 0);
}

double multiplied_forward(int64_t rows, int64_t cols, const float *prior, const float *lambda, const float *mu,
                          const float *s, const float *z, const float *c, float *mean, float *variance,
                          float *seen_mean, float *seen_variance) {
    return forward(rows, cols, prior, lambda, mu, s, z, c, mean, variance, seen_mean, seen_variance, 1);
}

void multiplied_backward(int64_t rows, int64_t cols, const float *prior, float d_kl, const float *lambda,
                         const float *mu, const float *s, const float *z, const float *c, const float *d_mean,
                         const float *d_variance, const float *d_seen_mean, const float *d_seen_variance,
                         float *d_lambda, float *d_mu, float *d_s, float *d_z, float *d_c) {
    backward(rows, cols, prior, d_kl, lambda, mu, s, z, c, d_mean, d_variance, d_seen_mean, d_seen_variance,
             d_lambda, d_mu, d_s, d_z, d_c, 1);
}

INLINE float dot(int64_t n, const float *restrict a, const float *restrict b) {
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < n; j++) total += a[j] * b[j];
    return total;
}

/* row = factor * values and sum += factor * weights: the two halves of a linear map's derivative. */
INLINE void linear_backward(int64_t n, float factor, const float *restrict values,
                            const float *restrict weights, float *restrict row, float *restrict sum) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        row[j] = factor * values[j];
        sum[j] += factor * weights[j];
    }
}

/* One step of a gated flow on a vector, see guides/flows/fused.py: with x = z[kept], h = tanh(w1 x + b1) and
 * [t; l] = w2 h + b2, g = sigmoid(l), the coordinates z[moved] become g z + (1 - g) t.  seen, width and moving
 * are the lengths of x, h and t; memory keeps x, room for its derivative, h, its slope 1 - h^2 (written without
 * cancellation), t and g.
 */
void gated_forward(int64_t dim, int64_t seen, int64_t width, int64_t moving, const float *z,
                   const int64_t *kept, const int64_t *moved, const float *w1, const float *b1,
                   const float *w2, const float *b2, float *restrict y, float *log_det,
                   float *restrict memory) {
    float *x = memory, *h = x + 2 * seen, *slope = h + width, *t = slope + width, *g = t + moving, total = 0;
    for (int64_t j = 0; j < seen; j++) x[j] = z[kept[j]];
    for (int64_t i = 0; i < width; i++) {
        float a = b1[i] + dot(seen, w1 + i * seen, x), e = fast_exp(a > 0 ? -2 * a : 2 * a);
        h[i] = (a > 0 ? 1 - e : e - 1) / (1 + e);
        slope[i] = 4 * e / ((1 + e) * (1 + e));
    }
    for (int64_t i = 0; i < 2 * moving; i++) t[i] = b2[i] + dot(width, w2 + i * width, h);
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < moving; i++) {
        float l = g[i], e = fast_exp(l > 0 ? -l : l), large = 1.0f / (1.0f + e);
        total += (l > 0 ? 0.0f : l) - log_of_1_plus(e);
        g[i] = l > 0 ? large : e * large;
    }
    *log_det = total;
    memcpy(y, z, dim * sizeof *y);
    for (int64_t i = 0; i < moving; i++) y[moved[i]] = t[i] + g[i] * (z[moved[i]] - t[i]);
}

/* d_* are derivatives of the loss. */
void gated_backward(int64_t dim, int64_t seen, int64_t width, int64_t moving, const float *z,
                    const int64_t *kept, const int64_t *moved, const float *w1, const float *w2,
                    const float *d_y, float d_log_det, float *memory, float *restrict d_z,
                    float *restrict d_w1, float *restrict d_b1, float *restrict d_w2, float *restrict d_b2) {
    float *x = memory, *d_x = x + seen, *h = d_x + seen, *slope = h + width, *t = slope + width,
          *g = t + moving;
    memset(d_x, 0, seen * sizeof *d_x);
    memset(d_b1, 0, width * sizeof *d_b1); /* of h first */
    memcpy(d_z, d_y, dim * sizeof *d_z);
    for (int64_t i = 0; i < moving; i++) {
        float d = d_y[moved[i]], off = 1 - g[i];
        d_z[moved[i]] = d * g[i];
        d_b2[i] = d * off;
        d_b2[moving + i] = off * (d * (z[moved[i]] - t[i]) * g[i] + d_log_det);
    }
    for (int64_t i = 0; i < 2 * moving; i++)
        linear_backward(width, d_b2[i], h, w2 + i * width, d_w2 + i * width, d_b1);
    for (int64_t i = 0; i < width; i++) {
        d_b1[i] *= slope[i];
        linear_backward(seen, d_b1[i], x, w1 + i * seen, d_w1 + i * seen, d_x);
    }
    for (int64_t j = 0; j < seen; j++) d_z[kept[j]] += d_x[j];
}

/* On entry gate holds uniform numbers in [0, 1); off it is an exact zero, for denormal weights are slow. */
double concrete_forward(int64_t n, const float *restrict prior, float temperature, const float *restrict lambda,
                        const float *restrict mu, const float *restrict s, const float *restrict eps,
                        float *restrict gate, float *restrict value) {
    const float half = prior[0], prior_mean = prior[1], shift = prior[2], constant = prior[3];
    const float sharpness = 1.0f / temperature;
    double total = 0;
    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t end = n - at < BLOCK ? n : at + BLOCK;
        float kl = 0;
#pragma omp simd reduction(+ : kl)
        for (int64_t j = at; j < end; j++) {
            weight w = read_weight(lambda[j], s[j]);
            float u = gate[j], x = (lambda[j] - fast_log(u / (1.0f - u))) * sharpness;
            float g = x < -80.0f ? 0.0f : 1.0f / (1.0f + fast_exp(-x)), d = mu[j] - prior_mean;
            float cost = (w.s2 + d * d) * half + lambda[j] - s[j] + shift;
            kl += w.alpha * cost + (constant - w.softplus);
            gate[j] = g;
            value[j] = (mu[j] + fast_exp(s[j]) * eps[j]) * g;
        }
        total += kl;
    }
    return total;
}

void concrete_backward(int64_t n, const float *restrict prior, float d_kl, float temperature,
                       const float *restrict lambda, const float *restrict mu, const float *restrict s,
                       const float *restrict eps, const float *restrict gate, const float *restrict d_value,
                       float *restrict d_lambda, float *restrict d_mu, float *restrict d_s) {
    const float half = prior[0], prior_mean = prior[1], shift = prior[2], precision = 2 * half * d_kl;
    const float sharpness = 1.0f / temperature;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        weight w = read_weight(lambda[j], s[j]);
        float noise = fast_exp(s[j]) * eps[j], d = mu[j] - prior_mean, on = d_value[j] * gate[j];
        float cost = (w.s2 + d * d) * half + lambda[j] - s[j] + shift;
        d_lambda[j] = w.alpha * w.off * d_kl * cost + on * (mu[j] + noise) * (1.0f - gate[j]) * sharpness;
        d_mu[j] = w.alpha * d * precision + on;
        d_s[j] = w.alpha * (w.s2 * precision - d_kl) + on * noise;
    }
}
