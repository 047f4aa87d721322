// SPDX-License-Identifier: Apache-2.0
// Keys that every query reads alike, on ATen's flash kernel (CPU) or composed from matrix products.
#include <limits>
#include <optional>

#include "palimpsest/attention/partial.h"
#include "palimpsest/nn/shapes.h"

namespace palimpsest::attention {

namespace {
constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();
// Rows this short are composed of two batched products, as all rows are on devices other than the CPU. From 32 keys on
// the flash kernel is faster (forward and backward at 16 x 4 x 32 x 32: 535 us against 785, benchmarks/attention.cpp).
constexpr int64_t kShortRow = 8;

at::Tensor flat(const at::Tensor& x) { return x.reshape({x.size(0) * x.size(1), x.size(2), x.size(3)}); }

class DensePart : public Part {
 public:
  DensePart(at::Tensor query, at::Tensor key, at::Tensor value, Visibility visibility)
      : query_(std::move(query)), key_(std::move(key)), value_(std::move(value)), visibility_(std::move(visibility)) {
    using nn::check_shape;
    check_shape(query_, {-1, -1, -1, -1}, "query");
    const auto size = [&](int64_t axis) { return query_.size(axis); };
    check_shape(key_, {size(0), size(1), -1, size(3)}, "key");
    check_shape(value_, {size(0), size(1), key_.size(2), size(3)}, "value");
    if (visibility_.key_mask.defined()) {
      if (visibility_.key_mask.dim() == 3) {
        check_shape(visibility_.key_mask, {size(0), size(1), key_.size(2)}, "key_mask");
      } else {
        check_shape(visibility_.key_mask, {size(0), key_.size(2)}, "key_mask");
      }
      TORCH_CHECK(visibility_.key_mask.scalar_type() == at::kBool, "key_mask must be boolean");
    }
    if (visibility_.mask.defined()) {
      const at::Tensor& mask = visibility_.mask;
      check_shape(mask, {-1, -1, size(2), key_.size(2)}, "mask");
      TORCH_CHECK(mask.scalar_type() == at::kBool && (mask.size(0) == 1 || mask.size(0) == size(0)) &&
                      (mask.size(1) == 1 || mask.size(1) == size(1)),
                  "mask must be boolean and [B or 1, H or 1, L, S]");
    }
  }

  std::vector<at::Tensor> inputs() const override { return {query_, key_, value_}; }

  Partial forward(const std::vector<at::Tensor>& inputs, double scale) const override {
    const at::Tensor& q = inputs[0];
    const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    // The kernel divides by the number of keys or queries: an empty axis never reaches it.
    if (q.numel() == 0 || inputs[1].size(2) == 0) {
      return {at::zeros_like(q, at::MemoryFormat::Contiguous),
              at::full({q.size(0), q.size(1), q.size(2)}, kNegativeInfinity, q.options().dtype(wide))};
    }
    const auto [k, v] = visible_only(inputs[1], inputs[2]);
    Partial result;
    if (use_flash(q, k)) {
      std::tie(result.out, result.lse) = at::_scaled_dot_product_flash_attention_for_cpu(
          last_axis_dense(q), last_axis_dense(k), last_axis_dense(v), 0.0, kernel_causal(q, k), bias(q, k), scale);
    } else {
      const at::Tensor logits = composed_logits(q, k, scale);
      result.lse = at::logsumexp(logits, -1).view({q.size(0), q.size(1), q.size(2)});
      const at::Tensor weights = weights_of(logits, result.lse);
      result.out = at::bmm(weights.to(v.scalar_type()), flat(v)).view_as(q);
    }
    if (const at::Tensor empty = empty_rows(q, k); empty.defined()) {
      result.lse = result.lse.masked_fill(empty, kNegativeInfinity);
      result.out = result.out.masked_fill(empty.unsqueeze(-1), 0);
    }
    return result;
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Partial& merged, const at::Tensor& grad,
                                   double scale) const override {
    const at::Tensor& q = inputs[0];
    if (q.numel() == 0 || inputs[1].size(2) == 0) {
      return {at::zeros_like(q), at::zeros_like(inputs[1]), at::zeros_like(inputs[2])};
    }
    const auto [k, v] = visible_only(inputs[1], inputs[2]);
    at::Tensor g = grad, dq, dk, dv;
    if (const at::Tensor empty = empty_rows(q, k); empty.defined()) g = g.masked_fill(empty.unsqueeze(-1), 0);
    if (use_flash(q, k)) {
      std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          g.contiguous(), last_axis_dense(q), last_axis_dense(k), last_axis_dense(v), merged.out.contiguous(),
          merged.lse, 0.0, kernel_causal(q, k), bias(q, k), scale);
    } else {
      const at::Tensor weights = weights_of(composed_logits(q, k, scale), merged.lse);  // [B*H, L, S]
      const at::Tensor gf = flat(g);
      const at::Tensor mean = (gf * flat(merged.out)).sum(-1, true).to(weights.scalar_type());  // [B*H, L, 1]
      const at::Tensor dlogits = ((at::bmm(gf, flat(v).transpose(1, 2)) - mean) * weights * scale).to(q.scalar_type());
      dv = at::bmm(weights.to(g.scalar_type()).transpose(1, 2), gf).view_as(v);
      dq = at::bmm(dlogits, flat(k)).view_as(q);
      dk = at::bmm(dlogits.transpose(1, 2), flat(q)).view_as(k);
    }
    return {dq, dk, dv};
  }

  Plain plain(double scale) const override {
    const auto [k, v] = visible_only(key_, value_);
    at::Tensor logits = at::matmul(query_, k.transpose(-2, -1)) * scale;  // [B, H, L, S]
    if (const at::Tensor hidden = hidden_keys(query_, k); hidden.defined())
      logits = logits.masked_fill(hidden, kNegativeInfinity);
    return {logits, v};
  }

 private:
  static at::Tensor last_axis_dense(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

  static bool use_flash(const at::Tensor& q, const at::Tensor& k) {
    // Double keeps to the kernel at every length, so that finite differences reach it; short float rows are composed.
    return q.is_cpu() && (k.size(2) > kShortRow || q.scalar_type() == at::kDouble);
  }

  /// Keys and values with invisible rows selected to 0: a NaN there times a weight of 0 would still be NaN.
  std::pair<at::Tensor, at::Tensor> visible_only(const at::Tensor& k, const at::Tensor& v) const {
    if (!visibility_.key_mask.defined()) return {k, v};
    const at::Tensor hidden = hidden_by_key().unsqueeze(-1);  // [B, H or 1, S, 1]
    return {k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)};
  }

  /// [B, H or 1, S]
  at::Tensor hidden_by_key() const {
    const at::Tensor hidden = visibility_.key_mask.logical_not();
    return hidden.dim() == 3 ? hidden : hidden.unsqueeze(1);
  }

  bool needs_causal(const at::Tensor& q) const { return visibility_.causal && q.size(2) > 1; }
  /// The kernel's own causal mask is aligned to the first key, which is ours only for as many keys as queries.
  bool kernel_causal(const at::Tensor& q, const at::Tensor& k) const {
    return needs_causal(q) && q.size(2) == k.size(2) && !visibility_.key_mask.defined() && !visibility_.mask.defined();
  }

  /// [L, S] bool: true where causality hides the key.
  static at::Tensor future(const at::Tensor& q, const at::Tensor& k) {
    return at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu(k.size(2) - q.size(2) + 1);
  }

  /// Bool, broadcast over [B, H, L, S], true = hidden; undefined where everything is visible.
  at::Tensor hidden_keys(const at::Tensor& q, const at::Tensor& k) const {
    at::Tensor hidden;
    const auto hide = [&](const at::Tensor& more) { hidden = hidden.defined() ? hidden.logical_or(more) : more; };
    if (visibility_.key_mask.defined()) hide(hidden_by_key().unsqueeze(2));
    if (visibility_.mask.defined()) hide(visibility_.mask.logical_not());
    if (needs_causal(q)) hide(future(q, k).view({1, 1, q.size(2), k.size(2)}));
    return hidden;
  }

  std::optional<at::Tensor> bias(const at::Tensor& q, const at::Tensor& k) const {
    if (kernel_causal(q, k)) return std::nullopt;
    const at::Tensor hidden = hidden_keys(q, k);
    if (!hidden.defined()) return std::nullopt;
    return at::zeros(hidden.sizes(), q.options()).masked_fill_(hidden, kNegativeInfinity);
  }

  /// [B, H or 1, L] bool: rows that see no key; undefined where there can be none.
  at::Tensor empty_rows(const at::Tensor& q, const at::Tensor& k) const {
    const bool starts_before_keys = visibility_.causal && q.size(2) > k.size(2);
    if (!visibility_.key_mask.defined() && !visibility_.mask.defined() && !starts_before_keys) return {};
    const at::Tensor empty = hidden_keys(q, k).all(-1);  // [B or 1, H or 1, L or 1]
    return empty.expand({q.size(0), empty.size(1), q.size(2)});
  }

  at::Tensor composed_logits(const at::Tensor& q, const at::Tensor& k, double scale) const {
    const at::Tensor fq = flat(q), fk = flat(k).transpose(1, 2);
    const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor logits = at::bmm(fq, fk).to(wide).mul_(scale);  // [B*H, L, S]
    if (const at::Tensor hidden = hidden_keys(q, k); hidden.defined()) {
      logits.view({q.size(0), q.size(1), q.size(2), k.size(2)}).masked_fill_(hidden, kNegativeInfinity);
    }
    return logits;
  }

  /// exp(logits - lse), [B*H, L, S]; rows whose lse is -inf give 0.
  static at::Tensor weights_of(const at::Tensor& logits, const at::Tensor& lse) {
    const at::Tensor finite = lse.masked_fill(lse.eq(kNegativeInfinity), 0);
    return at::exp(logits - finite.reshape({logits.size(0), logits.size(1), 1}));
  }

  at::Tensor query_, key_, value_;
  Visibility visibility_;
};

class SelfPart : public Part {
 public:
  SelfPart(at::Tensor query, at::Tensor key, at::Tensor value)
      : query_(std::move(query)), key_(std::move(key)), value_(std::move(value)) {
    nn::check_shape(key_, query_.sizes(), "key");
    nn::check_shape(value_, query_.sizes(), "value");
  }

  std::vector<at::Tensor> inputs() const override { return {query_, key_, value_}; }

  Partial forward(const std::vector<at::Tensor>& in, double scale) const override {
    return {in[2].contiguous(), logit(in[0], in[1], scale)};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& in, const Partial& merged, const at::Tensor& grad,
                                   double scale) const override {
    const at::Tensor weight =
        at::exp(logit(in[0], in[1], scale) - merged.lse).to(grad.scalar_type()).unsqueeze(-1);  // [B, H, L, 1]
    const at::Tensor dlogit = weight * (grad * (in[2] - merged.out)).sum(-1, true) * scale;
    return {dlogit * in[1], dlogit * in[0], weight * grad};
  }

  Plain plain(double scale) const override {
    return {(query_ * key_).sum(-1, true) * scale, value_.unsqueeze(-2)};  // [B, H, L, 1], [B, H, L, 1, D]
  }

 private:
  static at::Tensor logit(const at::Tensor& q, const at::Tensor& k, double scale) {
    const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return (q * k).to(wide).sum(-1) * scale;
  }
  at::Tensor query_, key_, value_;
};

}  // namespace

std::shared_ptr<const Part> dense_part(at::Tensor query, at::Tensor key, at::Tensor value, Visibility visibility) {
  return std::make_shared<DensePart>(std::move(query), std::move(key), std::move(value), std::move(visibility));
}

std::shared_ptr<const Part> self_part(at::Tensor query, at::Tensor key, at::Tensor value) {
  return std::make_shared<SelfPart>(std::move(query), std::move(key), std::move(value));
}

}  // namespace palimpsest::attention
