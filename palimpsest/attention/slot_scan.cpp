// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/slot_scan.h"

#include <limits>
#include <optional>

#include "palimpsest/core/error.h"
#include "palimpsest/kernels/slot_scan.h"
#include "palimpsest/nn/shapes.h"

namespace palimpsest::attention {

namespace {

constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();
constexpr int64_t kChunk = 32;

at::Tensor finite(const at::Tensor& x) { return x.masked_fill(x.eq(kNegativeInfinity), 0); }

/// log of the mass before and after each token, [B, H, L, n].
at::Tensor masses(const at::Tensor& control, const at::Tensor& value_control, SlotWriting writing,
                  const at::Tensor& start) {
  at::Tensor own = control;
  if (writing == SlotWriting::kAdditive) {
    at::Tensor touched = control.ne(0);
    if (value_control.defined()) touched = touched.logical_or(value_control.ne(0));
    own = at::zeros_like(control).masked_fill(touched.logical_not(), kNegativeInfinity);
    return at::maximum(std::get<0>(own.cummax(2)), start.unsqueeze(2));
  }
  return at::logaddexp(at::logcumsumexp(own, 2), start.unsqueeze(2));
}

/// What a chunk of T tokens does to slots, beside its keys and values.
struct Chunk {
  at::Tensor mass;        ///< [B, H, T, n]
  at::Tensor decay;       ///< [B, H, T, n]: of what was there before the chunk, as query t sees it
  at::Tensor weight;      ///< [B, H, T(i), T(t), n]: of token i as query t sees it, 0 for i > t
  at::Tensor end_weight;  ///< [B, H, T(i), n]: as it is at the end
  at::Tensor phi;         ///< [B, H, T, n]: as it was when it was written
};

Chunk chunk_of(const at::Tensor& control, const at::Tensor& mass, const at::Tensor& before, SlotWriting writing) {
  const int64_t count = control.size(2);
  Chunk made{.mass = mass};
  const at::Tensor safe = finite(mass);
  const at::Tensor later =
      at::ones({count, count}, control.options().dtype(at::kBool)).triu().view({1, 1, count, count, 1});
  if (writing == SlotWriting::kRunning) {
    made.decay = at::exp(before.unsqueeze(2) - safe);
    made.weight =
        at::exp((control.unsqueeze(3) - safe.unsqueeze(2)).masked_fill(later.logical_not(), kNegativeInfinity));
    made.end_weight = made.weight.select(3, count - 1);
    made.phi = at::exp(control - safe);
    return made;
  }
  made.decay = at::ones_like(control);
  made.phi = writing == SlotWriting::kFrozen ? at::exp(control - safe) : control;
  made.weight = made.phi.unsqueeze(3).masked_fill(later.logical_not(), 0).expand({-1, -1, -1, count, -1});
  made.end_weight = made.phi;
  return made;
}

/// Keys or values at the end of a chunk, [B, H, n, D].
at::Tensor advance(const at::Tensor& before, const Chunk& chunk, const at::Tensor& rows) {
  const at::Tensor decay = chunk.decay.select(2, chunk.decay.size(2) - 1).unsqueeze(-1);  // [B, H, n, 1]
  return decay * before + at::matmul(chunk.end_weight.transpose(2, 3), rows);
}

kernels::Writing writing_of(SlotWriting writing) {
  return writing == SlotWriting::kRunning  ? kernels::Writing::kRunning
         : writing == SlotWriting::kFrozen ? kernels::Writing::kFrozen
                                           : kernels::Writing::kAdditive;
}

class SlotScanPart : public Part {
 public:
  /// `fused`: the kernel, where it fits; else chunk by chunk.
  SlotScanPart(SlotScan scan, bool fused) : scan_(std::move(scan)), fused_(fused) {
    using nn::check_shape;
    const at::Tensor& q = scan_.query;
    check_shape(q, {-1, -1, -1, -1}, "query");
    check_shape(scan_.key, q.sizes(), "key");
    check_shape(scan_.value, q.sizes(), "value");
    check_shape(scan_.control, {q.size(0), q.size(1), q.size(2), -1}, "control");
    if (scan_.value_control.defined()) {
      check_shape(scan_.value_control, scan_.control.sizes(), "value_control");
      if (scan_.writing != SlotWriting::kAdditive) throw internal_error("values of their own are written additively");
    }
    if (!scan_.start.defined())
      scan_.start = SlotState::empty(q.size(0), q.size(1), scan_.control.size(3), q.size(3), q.options());
  }

  std::vector<at::Tensor> inputs() const override {
    std::vector<at::Tensor> all = {scan_.query, scan_.key, scan_.value, scan_.control};
    if (scan_.value_control.defined()) all.push_back(scan_.value_control);
    return all;
  }

  Partial forward(const std::vector<at::Tensor>& in, double scale) const override {
    if (const auto job = job_of(in, scale)) {
      const auto result = kernels::slot_scan(*job);
      return {result.out, result.lse};
    }
    SlotState state = scan_.start;
    std::vector<at::Tensor> outs, lses;
    for (int64_t first = 0; first < in[0].size(2); first += kChunk) {
      const Piece piece = piece_of(in, first, state);
      const at::Tensor u = logits(piece, state, scale);
      const at::Tensor lse = at::logsumexp(u, -1);
      const at::Tensor p = at::exp(u - finite(lse).unsqueeze(-1));
      outs.push_back(read(p, piece, state));
      lses.push_back(lse);
      step(state, piece);
    }
    if (outs.empty()) return {at::zeros_like(in[0]), at::zeros({in[0].size(0), in[0].size(1), 0}, in[0].options())};
    return {at::cat(outs, 2), at::cat(lses, 2)};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& in, const Partial& merged, const at::Tensor& grad,
                                   double scale) const override {
    if (const auto job = job_of(in, scale)) return kernels::slot_scan_backward(*job, merged.out, merged.lse, grad);
    std::vector<at::Tensor> grads;
    for (const at::Tensor& tensor : in) grads.push_back(at::zeros_like(tensor, at::MemoryFormat::Contiguous));
    const int64_t length = in[0].size(2);
    if (length == 0) return grads;
    std::vector<SlotState> starts = {scan_.start};
    for (int64_t first = 0; first + kChunk < length; first += kChunk) {
      SlotState state = starts.back();
      step(state, piece_of(in, first, state));
      starts.push_back(std::move(state));
    }
    const bool running = scan_.writing == SlotWriting::kRunning, frozen = scan_.writing == SlotWriting::kFrozen;
    at::Tensor key_grad = at::zeros_like(scan_.start.key), value_grad = at::zeros_like(scan_.start.value);
    // running: sum over later t of exp(z_end - z_t) (u du + p dp); frozen: of w_i a_i exp(z_end - z_i).
    at::Tensor centre = at::zeros_like(scan_.start.mass);
    for (int64_t index = static_cast<int64_t>(starts.size()) - 1; index >= 0; --index) {
      const SlotState& state = starts[static_cast<size_t>(index)];
      const int64_t first = index * kChunk;
      const Piece piece = piece_of(in, first, state);
      const Chunk& of_keys = piece.chunk;
      const Chunk& of_values = piece.values();
      const at::Tensor g = grad.narrow(2, first, piece.count), out = merged.out.narrow(2, first, piece.count);
      const at::Tensor lse = merged.lse.narrow(2, first, piece.count).unsqueeze(-1);
      const at::Tensor u = logits(piece, state, scale);  // [B, H, T, n]
      const at::Tensor p = at::exp(u - lse).to(g.scalar_type());
      const at::Tensor gv = at::matmul(g, piece.value.transpose(2, 3));  // [B, H, t, i]
      const at::Tensor qk = at::matmul(piece.query, piece.key.transpose(2, 3)) * scale;
      const at::Tensor dp =
          of_values.decay * at::matmul(g, state.value.transpose(2, 3)) + through(gv, of_values.weight);
      const at::Tensor du = p * (dp - (g * out).sum(-1, true));
      const at::Tensor dus = du * scale;

      const at::Tensor by_key = mix(dus, of_keys.weight);    // [B, H, t, i]: sum_m du E
      const at::Tensor by_value = mix(p, of_values.weight);  // [B, H, t, i]: sum_m p E
      const auto put = [&](size_t which, const at::Tensor& value) {
        grads[which].narrow(2, first, piece.count).copy_(value);
      };
      put(0, at::matmul(dus * of_keys.decay, state.key) + at::matmul(by_key, piece.key));
      put(1, at::matmul(by_key.transpose(2, 3), piece.query) + at::matmul(of_keys.end_weight, key_grad));
      put(2, at::matmul(by_value.transpose(2, 3), g) + at::matmul(of_values.end_weight, value_grad));

      // Gradient of each token's weights, as the chunk's queries and everything after the chunk see them.
      const at::Tensor key_later = at::matmul(piece.key, key_grad.transpose(2, 3));        // [B, H, i, n]
      const at::Tensor value_later = at::matmul(piece.value, value_grad.transpose(2, 3));  // [B, H, i, n]
      const at::Tensor of_key = du.unsqueeze(2) * qk.transpose(2, 3).unsqueeze(-1);        // [B, H, i, t, n]
      const at::Tensor of_value = p.unsqueeze(2) * gv.transpose(2, 3).unsqueeze(-1);
      if (running) {
        const at::Tensor c = finite(u) * du + p * dp;  // [B, H, t, n]
        const at::Tensor here = (of_keys.weight * (of_key + of_value - c.unsqueeze(2))).sum(3);
        put(3, here + of_keys.end_weight * (key_later + value_later - centre.unsqueeze(2)));
        centre = (of_keys.decay * c).sum(2) + last(of_keys.decay) * centre;
      } else {
        const at::Tensor later = at::ones({piece.count, piece.count}, of_key.options()).triu().unsqueeze(-1);
        const at::Tensor dphi_key = (of_key * later).sum(3) + key_later,
                         dphi_value = (of_value * later).sum(3) + value_later;
        if (frozen) {
          // ds_j = w_j a_j - sum_{i >= j} w_i a_i exp(s_j - z_i), from the end to the beginning.
          const at::Tensor wa = of_keys.phi * (dphi_key + dphi_value);
          const at::Tensor safe = finite(of_keys.mass);
          const at::Tensor control = piece.control;
          const at::Tensor ratio = at::exp((control.unsqueeze(3) - safe.unsqueeze(2))
                                               .masked_fill(later.eq(0), kNegativeInfinity));  // [B, H, j, i, n]
          const at::Tensor end = safe.select(2, piece.count - 1).unsqueeze(2);
          put(3, wa - (ratio * wa.unsqueeze(2)).sum(3) - at::exp(control - end) * centre.unsqueeze(2));
          const at::Tensor before = state.mass;  // [B, H, n]
          centre = (at::exp(before.unsqueeze(2) - safe) * wa).sum(2) + at::exp(before - end.squeeze(2)) * centre;
        } else if (scan_.value_control.defined()) {
          put(3, dphi_key);
          put(4, dphi_value);
        } else {
          put(3, dphi_key + dphi_value);
        }
      }
      key_grad =
          at::matmul((dus * of_keys.decay).transpose(2, 3), piece.query) + last(of_keys.decay).unsqueeze(-1) * key_grad;
      value_grad =
          at::matmul((p * of_values.decay).transpose(2, 3), g) + last(of_values.decay).unsqueeze(-1) * value_grad;
    }
    return grads;
  }

  /// The quadratic form, out of differentiable operations: every token's weight for every query.
  Plain plain(double scale) const override {
    const at::Tensor &s = scan_.control, &start = scan_.start.mass;
    const int64_t length = s.size(2);
    const at::Tensor seen =
        at::ones({length, length}, s.options().dtype(at::kBool)).triu().view({1, 1, length, length, 1});
    const auto spread = [&](const at::Tensor& phi) {
      return phi.unsqueeze(3).masked_fill(seen.logical_not(), 0).expand({-1, -1, -1, length, -1});
    };
    at::Tensor weight, value_weight, decay;
    if (scan_.writing == SlotWriting::kAdditive) {
      weight = spread(s);
      value_weight = scan_.value_control.defined() ? spread(scan_.value_control) : weight;
      decay = at::ones_like(s);
    } else {
      const at::Tensor top = at::maximum(finite(s.amax(2)), finite(start)).detach().unsqueeze(2);
      const at::Tensor alpha = at::exp(s - top), first = at::exp(start.unsqueeze(2) - top);
      const at::Tensor total = alpha.cumsum(2) + first;  // [B, H, L, n]
      const at::Tensor safe = total.masked_fill(total.eq(0), 1);
      if (scan_.writing == SlotWriting::kRunning) {
        weight = (alpha.unsqueeze(3) / safe.unsqueeze(2)).masked_fill(seen.logical_not(), 0);
        decay = first / safe;
      } else {
        weight = spread(alpha / safe);
        decay = at::ones_like(s);
      }
      value_weight = weight;
    }
    const auto memory = [&](const at::Tensor& w, const at::Tensor& rows, const at::Tensor& before) {
      return at::matmul(w.permute({0, 1, 3, 4, 2}), rows.unsqueeze(2)) + decay.unsqueeze(-1) * before.unsqueeze(2);
    };
    const at::Tensor keys = memory(weight, scan_.key, scan_.start.key);  // [B, H, L, n, D]
    const at::Tensor empty = masses(s, scan_.value_control, scan_.writing, start).eq(kNegativeInfinity);
    const at::Tensor u = at::matmul(keys, scan_.query.unsqueeze(-1)).squeeze(-1) * scale;
    return {u.masked_fill(empty, kNegativeInfinity), memory(value_weight, scan_.value, scan_.start.value)};
  }

  SlotState end() const {
    if (const auto job = job_of(inputs(), 1)) {
      const auto result = kernels::slot_scan(*job);
      return {result.mass, result.end_key, result.end_value};
    }
    SlotState state = scan_.start;
    for (int64_t first = 0; first < scan_.query.size(2); first += kChunk) step(state, piece_of(inputs(), first, state));
    return state;
  }

 private:
  /// What the kernel is given, where it fits.
  std::optional<kernels::SlotScanJob> job_of(const std::vector<at::Tensor>& in, double scale) const {
    if (!fused_ || in.size() != 4 || in[0].numel() == 0) return std::nullopt;
    kernels::SlotScanJob job{
        in[0], in[1], in[2], in[3], scan_.start.mass, scan_.start.key, scan_.start.value, writing_of(scan_.writing),
        scale};
    if (!kernels::slot_scan_fits(job)) return std::nullopt;
    return job;
  }

  struct Piece {
    int64_t count;
    at::Tensor query, key, value, control;
    Chunk chunk;
    Chunk value_chunk;
    const Chunk& values() const { return value_chunk.phi.defined() ? value_chunk : chunk; }
  };

  Piece piece_of(const std::vector<at::Tensor>& in, int64_t first, const SlotState& state) const {
    const int64_t count = std::min(kChunk, in[0].size(2) - first);
    const auto cut = [&](size_t which) { return in[which].narrow(2, first, count); };
    Piece piece{count, cut(0), cut(1), cut(2), cut(3), {}, {}};
    const at::Tensor own_values = scan_.value_control.defined() ? cut(4) : at::Tensor();
    const at::Tensor mass = masses(piece.control, own_values, scan_.writing, state.mass);
    piece.chunk = chunk_of(piece.control, mass, state.mass, scan_.writing);
    if (own_values.defined()) piece.value_chunk = chunk_of(own_values, mass, state.mass, scan_.writing);
    return piece;
  }

  void step(SlotState& state, const Piece& piece) const {
    state = {piece.chunk.mass.select(2, piece.count - 1), advance(state.key, piece.chunk, piece.key),
             advance(state.value, piece.values(), piece.value)};
  }

  /// u [B, H, T, n]
  static at::Tensor logits(const Piece& piece, const SlotState& state, double scale) {
    const at::Tensor qk = at::matmul(piece.query, piece.key.transpose(2, 3));  // [B, H, t, i]
    const at::Tensor u =
        (piece.chunk.decay * at::matmul(piece.query, state.key.transpose(2, 3)) + through(qk, piece.chunk.weight)) *
        scale;
    return u.masked_fill(piece.chunk.mass.eq(kNegativeInfinity), kNegativeInfinity);
  }

  /// sum_i x[t, i] E[i, t, m], [B, H, t, m]
  static at::Tensor through(const at::Tensor& x, const at::Tensor& weight) {
    return (x.transpose(2, 3).unsqueeze(-1) * weight).sum(2);
  }
  /// sum_m x[t, m] E[i, t, m], [B, H, t, i]
  static at::Tensor mix(const at::Tensor& x, const at::Tensor& weight) {
    return (x.unsqueeze(2) * weight).sum(-1).transpose(2, 3);
  }

  static at::Tensor read(const at::Tensor& p, const Piece& piece, const SlotState& state) {
    const Chunk& chunk = piece.values();
    return at::matmul(p * chunk.decay, state.value) + at::matmul(mix(p, chunk.weight), piece.value);
  }

  static at::Tensor last(const at::Tensor& decay) { return decay.select(2, decay.size(2) - 1); }

  SlotScan scan_;
  bool fused_;
};

}  // namespace

SlotState SlotState::empty(int64_t batch, int64_t heads, int64_t slots, int64_t width, const at::TensorOptions& options,
                           bool readable) {
  const auto plain = options.requires_grad(false);
  return {at::full({batch, heads, slots}, readable ? 0.0 : kNegativeInfinity, plain),
          at::zeros({batch, heads, slots, width}, plain), at::zeros({batch, heads, slots, width}, plain)};
}

std::shared_ptr<const Part> slot_scan_part(SlotScan scan) {
  return std::make_shared<SlotScanPart>(std::move(scan), /*fused=*/true);
}

std::shared_ptr<const Part> chunked_slot_scan_part(SlotScan scan) {
  return std::make_shared<SlotScanPart>(std::move(scan), /*fused=*/false);
}

SlotState slot_scan_end(const SlotScan& scan) {
  const at::NoGradGuard no_grad;
  return SlotScanPart(scan, /*fused=*/true).end();
}

}  // namespace palimpsest::attention
