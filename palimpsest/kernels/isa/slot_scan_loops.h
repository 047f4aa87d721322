// SPDX-License-Identifier: Apache-2.0
// The causal slot scan over the vector type of vectors.h (ALGORITHMS 1.5). Included by one file per instruction set,
// inside an unnamed namespace, after <math.h> and <string.h>.
//
// A head's slots stay in the first cache: 2 n D floats. Tokens come in blocks; within a block a few rows of the slots
// are held in registers while all of its tokens pass, so that a slot is loaded and stored once a block and not once a
// token. What is left is arithmetic: to move a slot and to read it are three operations for each of its numbers.

#include "palimpsest/kernels/isa/vectors.h"

constexpr int64_t kTokens = 16;

inline int64_t padded(int64_t count) { return (count + Vec::kWidth - 1) / Vec::kWidth * Vec::kWidth; }

enum class Step {
  kMove,      // X += c (x - X)
  kAdd,       // X += c x
  kDecayAdd,  // X += c x - d X
};

/// What passes over a matrix X [rows, columns]: for each token t, X changes by coefficient and input, and
/// sum[t] += read X over its rows. With `of_columns` coefficient and decay belong to columns and input and read to rows
/// (X is [D, n]); else the input belongs to columns and all others to rows (X is [n, D]).
struct Pass {
  float* x;
  int64_t rows, columns;
  const float *input, *read, *coefficient, *decay;  ///< of the first token; the next lies `*_step` floats behind
  int64_t input_step, read_step, coefficient_step;  ///< decay goes with the coefficient's step
  float* sum;
  int64_t sum_step;
  int64_t tokens;
};

template <bool kOfColumns, Step kStep, int R, int C>
inline void pass_block(const Pass& p, int64_t row, int64_t column) {
  using V = Vec;
  typename V::type x[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) x[r][c] = V::load(p.x + (row + r) * p.columns + column + c * V::kWidth);
  for (int64_t t = 0; t < p.tokens; ++t) {
    const float* input = p.input + t * p.input_step;
    const float* read = p.read + t * p.read_step + row;
    const float* coefficient = p.coefficient + t * p.coefficient_step;
    const float* decay = kStep == Step::kDecayAdd ? p.decay + t * p.coefficient_step : nullptr;
    float* to = p.sum + t * p.sum_step + column;
    typename V::type sum[C], of_column[C], decay_of_column[C];
    for (int c = 0; c < C; ++c) {
      sum[c] = V::load(to + c * V::kWidth);
      of_column[c] = V::load((kOfColumns ? coefficient : input) + column + c * V::kWidth);
      if (kStep == Step::kDecayAdd && kOfColumns) decay_of_column[c] = V::load(decay + column + c * V::kWidth);
    }
    for (int r = 0; r < R; ++r) {
      const typename V::type of_row = V::all((kOfColumns ? input : coefficient)[row + r]), reads = V::all(read[r]);
      typename V::type decay_of_row = V::zero();
      if (kStep == Step::kDecayAdd && !kOfColumns) decay_of_row = V::all(decay[row + r]);
      for (int c = 0; c < C; ++c) {
        if (kStep == Step::kMove) {
          x[r][c] = kOfColumns ? V::fma(of_column[c], V::sub(of_row, x[r][c]), x[r][c])
                               : V::fma(of_row, V::sub(of_column[c], x[r][c]), x[r][c]);
        } else {
          if (kStep == Step::kDecayAdd)
            x[r][c] = V::fnma(kOfColumns ? decay_of_column[c] : decay_of_row, x[r][c], x[r][c]);
          x[r][c] = V::fma(of_column[c], of_row, x[r][c]);
        }
        sum[c] = V::fma(reads, x[r][c], sum[c]);
      }
    }
    for (int c = 0; c < C; ++c) V::store(to + c * V::kWidth, sum[c]);
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) V::store(p.x + (row + r) * p.columns + column + c * V::kWidth, x[r][c]);
}

template <bool kOfColumns, Step kStep, int C>
inline void pass_columns(const Pass& p, int64_t column) {
  constexpr int kRows = Vec::kRegisters / 4;  // half of the registers hold X where two columns pass at once
  int64_t row = 0;
  for (; row + kRows <= p.rows; row += kRows) pass_block<kOfColumns, kStep, kRows, C>(p, row, column);
  for (; row < p.rows; ++row) pass_block<kOfColumns, kStep, 1, C>(p, row, column);
}

template <bool kOfColumns, Step kStep>
inline void pass(const Pass& p) {
  int64_t column = 0;
  for (; column + 2 * Vec::kWidth <= p.columns; column += 2 * Vec::kWidth)
    pass_columns<kOfColumns, kStep, 2>(p, column);
  for (; column < p.columns; column += Vec::kWidth) pass_columns<kOfColumns, kStep, 1>(p, column);
}

/// Writing moves slots or adds to them.
template <bool kOfColumns>
inline void write_pass(Writing writing, const Pass& p) {
  if (writing == Writing::kRunning) {
    pass<kOfColumns, Step::kMove>(p);
  } else {
    pass<kOfColumns, Step::kAdd>(p);
  }
}

/// How much was written into each slot, as exp(reference) * sum: no logarithm, whose steps are too coarse after many
/// tokens. [padded n] each.
struct Mass {
  float *reference, *sum;
};

inline void begin_mass(const SlotScanHead& head, const Mass& mass) {
  const int64_t columns = padded(head.slots);
  for (int64_t m = 0; m < columns; ++m) {
    const float z = m < head.slots ? head.mass[m] : -INFINITY;
    const bool written = z > -INFINITY;
    mass.reference[m] = written ? z : 0;
    mass.sum[m] = written ? 1 : 0;
  }
}

/// The share w that a token has in each slot (additive: what it adds), [padded n], and log 1 or log 0 of whether a slot
/// was written to, into `open`. `control` is padded.
inline void shares(Writing writing, const float* control, int64_t columns, const Mass& mass, float* share,
                   float* open) {
  using V = Vec;
  // Beyond this distance the reference is moved, long before float32 ends.
  constexpr float kFar = 20;
  for (int64_t m = 0; m < columns; m += V::kWidth) {
    const V::type s = V::load(control + m);
    V::type sum = V::load(mass.sum + m);
    if (writing == Writing::kAdditive) {
      const V::type size = V::max(s, V::sub(V::zero(), s));
      sum = V::where_greater(size, V::zero(), V::all(1), sum);
      V::store(share + m, s);
    } else {
      V::type reference = V::load(mass.reference + m);
      const V::type nothing = V::all(-INFINITY);
      // A slot that nothing was written to takes the first control as its reference.
      const V::type limit = V::where_greater(sum, V::zero(), V::add(reference, V::all(kFar)), nothing);
      if (V::any_greater(s, limit)) {
        const V::type moved = V::where_greater(s, limit, s, reference);
        sum = V::mul(sum, exponential(V::sub(reference, moved)));
        // 0 times what overflowed would not be 0.
        sum = V::where_greater(V::load(mass.sum + m), V::zero(), sum, V::zero());
        reference = moved;
        V::store(mass.reference + m, reference);
      }
      const V::type e = exponential(V::sub(s, reference));
      sum = V::add(sum, e);
      V::store(share + m, V::where_greater(sum, V::zero(), V::div(e, sum), sum));  // 0, or not a number
    }
    V::store(mass.sum + m, sum);
    V::store(open + m, V::where_greater(sum, V::zero(), V::zero(), V::add(sum, V::all(-INFINITY))));
  }
}

/// Rows of tokens, side by side and padded with `fill`.
inline void pack(float* to, int64_t columns, const float* from, int64_t stride, int64_t width, int64_t tokens,
                 float fill) {
  for (int64_t t = 0; t < tokens; ++t) {
    memcpy(to + t * columns, from + t * stride, static_cast<size_t>(width) * sizeof(float));
    for (int64_t i = width; i < columns; ++i) to[t * columns + i] = fill;
  }
}

inline void clear(float* x, int64_t count) { memset(x, 0, static_cast<size_t>(count) * sizeof(float)); }

/// [n, D] -> [D, padded n]
inline void transposed_in(float* to, const float* from, int64_t slots, int64_t width) {
  const int64_t columns = padded(slots);
  for (int64_t d = 0; d < width; ++d)
    for (int64_t m = 0; m < columns; ++m) to[d * columns + m] = m < slots ? from[m * width + d] : 0;
}

/// [n, D] -> [n, padded D]
inline void padded_in(float* to, const float* from, int64_t slots, int64_t width) {
  const int64_t columns = padded(width);
  pack(to, columns, from, width, width, slots, 0);
}

/// Gives out pieces of the scratch.
struct Scratch {
  float* next;
  float* take(int64_t count) {
    float* piece = next;
    next += count;
    return piece;
  }
};

int64_t floats_forward(int64_t slots, int64_t width) {
  const int64_t n = padded(slots), d = padded(width);
  return width * n + slots * d + 2 * n + kTokens * (4 * d + 4 * n);
}

int64_t floats_backward(int64_t length, int64_t slots, int64_t width) {
  const int64_t n = padded(slots), d = padded(width);
  return 2 * width * n + 2 * slots * d + 3 * n + kTokens * (5 * d + 4 * n) + 4 * (length + 1) * n;
}

void forward(const SlotScanHead& head, const SlotScanForward& result) {
  using V = Vec;
  const int64_t n = padded(head.slots), d = padded(head.width);
  Scratch scratch{result.scratch};
  float* keys = scratch.take(head.width * n);    // [D, n]
  float* values = scratch.take(head.slots * d);  // [n, D]
  const Mass mass{scratch.take(n), scratch.take(n)};
  float *query = scratch.take(kTokens * d), *key = scratch.take(kTokens * d), *value = scratch.take(kTokens * d),
        *out = scratch.take(kTokens * d);
  float *control = scratch.take(kTokens * n), *share = scratch.take(kTokens * n), *open = scratch.take(kTokens * n),
        *weight = scratch.take(kTokens * n);
  transposed_in(keys, head.start_key, head.slots, head.width);
  padded_in(values, head.start_value, head.slots, head.width);
  begin_mass(head, mass);
  for (int64_t first = 0; first < head.length; first += kTokens) {
    const int64_t tokens = head.length - first < kTokens ? head.length - first : kTokens;
    pack(query, d, head.query + first * head.query_stride, head.query_stride, head.width, tokens, 0);
    pack(key, d, head.key + first * head.key_stride, head.key_stride, head.width, tokens, 0);
    pack(value, d, head.value + first * head.value_stride, head.value_stride, head.width, tokens, 0);
    pack(control, n, head.control + first * head.control_stride, head.control_stride, head.slots, tokens,
         head.writing == Writing::kAdditive ? 0 : -INFINITY);
    for (int64_t t = 0; t < tokens; ++t) shares(head.writing, control + t * n, n, mass, share + t * n, open + t * n);
    clear(weight, tokens * n);
    write_pass<true>(head.writing, {keys, head.width, n, key, query, share, nullptr, d, d, n, weight, n, tokens});
    // From logits to weights, a token at a time.
    for (int64_t t = 0; t < tokens; ++t) {
      float* row = weight + t * n;
      V::type most = V::all(-INFINITY), opened = most;
      for (int64_t m = 0; m < n; m += V::kWidth) {
        const V::type is_open = V::load(open + t * n + m);
        const V::type u = V::fma(V::load(row + m), V::all(head.scale), is_open);
        V::store(row + m, u);
        most = V::max(most, u);
        opened = V::max(opened, is_open);
      }
      const float top = V::largest(most);
      if (!(top > -INFINITY)) {
        // Nothing to read, or not a number: that must show. (A maximum may pass over what is not a number.)
        const bool nothing = !(V::largest(opened) > -INFINITY);
        for (int64_t m = 0; m < n; ++m) row[m] = nothing ? 0 : NAN;
        result.lse[first + t] = nothing ? -INFINITY : NAN;
        continue;
      }
      V::type sum = V::zero();
      for (int64_t m = 0; m < n; m += V::kWidth) {
        const V::type p = exponential(V::sub(V::load(row + m), V::all(top)));
        V::store(row + m, p);
        sum = V::add(sum, p);
      }
      const float total = V::sum(sum);
      for (int64_t m = 0; m < n; m += V::kWidth) V::store(row + m, V::mul(V::load(row + m), V::all(1 / total)));
      result.lse[first + t] = top + logf(total);
    }
    clear(out, tokens * d);
    write_pass<false>(head.writing, {values, head.slots, d, value, weight, share, nullptr, d, n, n, out, d, tokens});
    for (int64_t t = 0; t < tokens; ++t)
      memcpy(result.out + (first + t) * result.out_stride, out + t * d,
             static_cast<size_t>(head.width) * sizeof(float));
  }
  if (result.end_mass == nullptr) return;
  for (int64_t m = 0; m < head.slots; ++m) {
    result.end_mass[m] =
        mass.sum[m] > 0 ? (head.writing == Writing::kAdditive ? 0 : mass.reference[m] + logf(mass.sum[m])) : -INFINITY;
    for (int64_t i = 0; i < head.width; ++i) {
      result.end_key[m * head.width + i] = keys[i * n + m];
      result.end_value[m * head.width + i] = values[m * d + i];
    }
  }
}

/// What a token's control gets: ds = w (a - c), with c summed from the end, c = own + (1 - w of the next) c; own is
/// u du + p dp (running) or w a (frozen). Additive: ds = a.
inline void control_gradient(Writing writing, int64_t n, const float* share, const float* next_share, const float* a,
                             const float* own, float* carried, float* to) {
  using V = Vec;
  for (int64_t m = 0; m < n; m += V::kWidth) {
    const V::type gained = V::load(a + m);
    if (writing == Writing::kAdditive) {
      V::store(to + m, gained);
      continue;
    }
    const V::type w = V::load(share + m);
    V::type c = V::load(carried + m);
    c = V::fnma(V::load(next_share + m), c, c);
    c = V::add(c, writing == Writing::kRunning ? V::load(own + m) : V::mul(w, gained));
    V::store(carried + m, c);
    V::store(to + m, V::mul(w, V::sub(gained, c)));
  }
}

void backward(const SlotScanHead& head, const SlotScanBackward& job) {
  using V = Vec;
  const int64_t n = padded(head.slots), d = padded(head.width), length = head.length;
  Scratch scratch{job.scratch};
  float *first_wide = scratch.take(head.width * n), *second_wide = scratch.take(head.width * n);  // [D, n]
  float *first_tall = scratch.take(head.slots * d), *second_tall = scratch.take(head.slots * d);  // [n, D]
  const Mass mass{scratch.take(n), scratch.take(n)};
  float* carried = scratch.take(n);
  float *query = scratch.take(kTokens * d), *key = scratch.take(kTokens * d), *value = scratch.take(kTokens * d),
        *grad = scratch.take(kTokens * d), *sum_d = scratch.take(kTokens * d);
  float *control = scratch.take(kTokens * n), *open = scratch.take(kTokens * n), *sum_n = scratch.take(kTokens * n),
        *dp = scratch.take(kTokens * n);
  // Of every token: its share in each slot (and 0 behind the last), what reads it, the gradient of the logit, and c.
  float *share = scratch.take((length + 1) * n), *weight = scratch.take((length + 1) * n),
        *dlogit = scratch.take((length + 1) * n), *own = scratch.take((length + 1) * n);
  const auto load_block = [&](int64_t first, int64_t tokens) {
    pack(query, d, head.query + first * head.query_stride, head.query_stride, head.width, tokens, 0);
    pack(key, d, head.key + first * head.key_stride, head.key_stride, head.width, tokens, 0);
    pack(value, d, head.value + first * head.value_stride, head.value_stride, head.width, tokens, 0);
    pack(grad, d, job.grad + first * job.grad_stride, job.grad_stride, head.width, tokens, 0);
  };

  // Forwards again: what each token reads and, from the slots as they were then, the gradient of the queries.
  transposed_in(first_wide, head.start_key, head.slots, head.width);
  transposed_in(second_wide, head.start_value, head.slots, head.width);
  padded_in(first_tall, head.start_key, head.slots, head.width);
  begin_mass(head, mass);
  for (int64_t first = 0; first < length; first += kTokens) {
    const int64_t tokens = length - first < kTokens ? length - first : kTokens;
    load_block(first, tokens);
    pack(control, n, head.control + first * head.control_stride, head.control_stride, head.slots, tokens,
         head.writing == Writing::kAdditive ? 0 : -INFINITY);
    float *w = share + first * n, *p = weight + first * n, *du = dlogit + first * n;
    for (int64_t t = 0; t < tokens; ++t) shares(head.writing, control + t * n, n, mass, w + t * n, open + t * n);
    clear(sum_n, tokens * n);
    clear(dp, tokens * n);
    write_pass<true>(head.writing, {first_wide, head.width, n, key, query, w, nullptr, d, d, n, sum_n, n, tokens});
    write_pass<true>(head.writing, {second_wide, head.width, n, value, grad, w, nullptr, d, d, n, dp, n, tokens});
    for (int64_t t = 0; t < tokens; ++t) {
      const float* out = job.out + (first + t) * job.out_stride;
      float mean = 0;
      for (int64_t i = 0; i < head.width; ++i) mean += grad[t * d + i] * out[i];
      for (int64_t m = 0; m < n; m += V::kWidth) {
        const V::type u = V::mul(V::load(sum_n + t * n + m), V::all(head.scale));
        const V::type read = exponential(V::add(V::sub(u, V::all(job.lse[first + t])), V::load(open + t * n + m)));
        const V::type dvalue = V::load(dp + t * n + m);
        const V::type change = V::mul(read, V::sub(dvalue, V::all(mean)));
        V::store(p + t * n + m, read);
        V::store(own + (first + t) * n + m, V::fma(u, change, V::mul(read, dvalue)));
        V::store(du + t * n + m, V::mul(change, V::all(head.scale)));
      }
    }
    clear(sum_d, tokens * d);
    write_pass<false>(head.writing, {first_tall, head.slots, d, key, du, w, nullptr, d, n, n, sum_d, d, tokens});
    for (int64_t t = 0; t < tokens; ++t)
      memcpy(job.query_grad + (first + t) * head.width, sum_d + t * d, static_cast<size_t>(head.width) * sizeof(float));
  }
  clear(share + length * n, n);

  // Backwards: what later reads make of each slot's contents, and from it the gradients of keys, values and controls.
  clear(first_wide, head.width * n);
  clear(second_wide, head.width * n);
  clear(first_tall, head.slots * d);
  clear(second_tall, head.slots * d);
  clear(carried, n);
  const int64_t blocks = (length + kTokens - 1) / kTokens;
  for (int64_t block = blocks - 1; block >= 0; --block) {
    const int64_t first = block * kTokens, tokens = length - first < kTokens ? length - first : kTokens;
    load_block(first, tokens);
    const int64_t last = tokens - 1;
    const float *w = share + (first + last) * n, *next = share + (first + last + 1) * n,
                *p = weight + (first + last) * n, *du = dlogit + (first + last) * n;
    const auto reverse = [&](float* wide, float* tall, const float* input, const float* of_read, const float* from,
                             float* to) {
      // sum_n gathers what the token's own row makes of it, sum_d the token's gradient.
      const Pass of_controls{
          wide, head.width, n, input + last * d, from + last * d, of_read, next, -d, -d, -n, sum_n + last * n,
          -n,   tokens};
      const Pass of_rows{tall, head.slots, d,  input + last * d, w,  of_read, next,
                         -d,   -n,         -n, sum_d + last * d, -d, tokens};
      clear(sum_d, tokens * d);
      if (head.writing == Writing::kRunning) {
        pass<true, Step::kDecayAdd>(of_controls);
        pass<false, Step::kDecayAdd>(of_rows);
      } else {
        pass<true, Step::kAdd>(of_controls);
        pass<false, Step::kAdd>(of_rows);
      }
      for (int64_t t = 0; t < tokens; ++t)
        memcpy(to + (first + t) * head.width, sum_d + t * d, static_cast<size_t>(head.width) * sizeof(float));
    };
    clear(sum_n, tokens * n);
    reverse(first_wide, first_tall, query, du, key, job.key_grad);
    reverse(second_wide, second_tall, grad, p, value, job.value_grad);
    for (int64_t t = last; t >= 0; --t) {
      control_gradient(head.writing, n, share + (first + t) * n, share + (first + t + 1) * n, sum_n + t * n,
                       own + (first + t) * n, carried, dp);
      memcpy(job.control_grad + (first + t) * head.slots, dp, static_cast<size_t>(head.slots) * sizeof(float));
    }
  }
}
