// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/folded_part.h"

#include <algorithm>
#include <limits>

#include "palimpsest/nn/shapes.h"

namespace palimpsest::attention {

namespace {

constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

/// Takes the rows of axis 2 (of [B, H, L, ..]) in the order [B, L].
at::Tensor in_order(const at::Tensor& x, const at::Tensor& order) {
  if (!order.defined()) return x;
  auto shape = x.sizes().vec();
  std::vector<int64_t> view(shape.size(), 1);
  view[0] = shape[0];
  view[2] = order.size(1);
  shape[2] = order.size(1);
  return x.gather(2, order.view(view).expand(shape));
}

class FoldedPart : public Part {
 public:
  FoldedPart(at::Tensor query, at::Tensor key, at::Tensor value, FoldedShape shape)
      : query_(std::move(query)), key_(std::move(key)), value_(std::move(value)), shape_(std::move(shape)) {
    nn::check_shape(key_, {query_.size(0), query_.size(1), other_keys() ? -1 : query_.size(2), query_.size(3)}, "key");
    nn::check_shape(value_, key_.sizes(), "value");
    if (query_.numel() == 0) return;
    // Real tokens first, in their order; rows that already lie so are left alone.
    if (shape_.key_mask.defined() && length() > 1) {
      const at::Tensor& mask = shape_.key_mask;
      const int64_t rest = length() - 1;
      if (mask.narrow(1, 1, rest).logical_and(mask.narrow(1, 0, rest).logical_not()).any().item<bool>()) {
        order_ = std::get<1>(mask.to(at::kByte).sort(/*stable=*/true, /*dim=*/1, /*descending=*/true));
        back_ = at::argsort(order_, 1, false);
      }
    }
    mask_ = block_mask();
  }

  std::vector<at::Tensor> inputs() const override { return {query_, key_, value_}; }

  Partial forward(const std::vector<at::Tensor>& in, double scale) const override {
    if (query_.numel() == 0) return dense_part(in[0], in[1], in[2])->forward(in, scale);
    const auto folded = fold(in);
    const Partial inner = inner_part(folded)->forward(folded, scale);
    return {unfold_queries(inner.out), unfold_queries(inner.lse.unsqueeze(-1)).squeeze(-1)};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& in, const Partial& merged, const at::Tensor& grad,
                                   double scale) const override {
    if (query_.numel() == 0) return {at::zeros_like(in[0]), at::zeros_like(in[1]), at::zeros_like(in[2])};
    const auto folded = fold(in);
    const Partial whole{fold_queries(merged.out), fold_queries(merged.lse.unsqueeze(-1)).squeeze(-1)};
    const auto grads = inner_part(folded)->backward(folded, whole, fold_queries(grad), scale);
    return {unfold_queries(grads[0]), unfold_keys(grads[1]), unfold_keys(grads[2])};
  }

  Plain plain(double scale) const override {
    const at::Tensor position = token_index();  // [B or 1, L]
    const at::Tensor key_at = other_keys() ? at::arange(key_.size(2), position.options()).unsqueeze(0) : position;
    at::Tensor visible = shape_.visible(position.unsqueeze(-1), key_at.unsqueeze(1)).unsqueeze(1);
    const auto restrict_to = [&](const at::Tensor& mask, int64_t axis) {
      if (mask.defined()) visible = visible.logical_and(mask.unsqueeze(1).unsqueeze(axis));
    };
    if (!other_keys()) restrict_to(shape_.key_mask, 2);
    restrict_to(shape_.key_mask, 3);
    restrict_to(shape_.read, 2);
    restrict_to(shape_.readers, 3);
    const at::Tensor key_mask = other_keys() ? at::Tensor() : shape_.key_mask;
    return dense_part(query_, key_, value_, {.key_mask = key_mask, .mask = visible})->plain(scale);
  }

 private:
  int64_t batch() const { return query_.size(0); }
  int64_t heads() const { return query_.size(1); }
  int64_t length() const { return query_.size(2); }
  int64_t block() const { return shape_.fold.block; }
  bool other_keys() const { return shape_.key_block > 0; }
  int64_t key_block() const { return other_keys() ? shape_.key_block : block(); }
  int64_t blocks() const { return (length() + block() - 1) / block(); }
  int64_t reach() const { return shape_.fold.before + 1 + shape_.fold.after; }

  at::Tensor token_index() const {
    if (shape_.key_mask.defined()) return shape_.key_mask.to(at::kLong).cumsum(1).sub(1);
    return at::arange(length(), query_.options().dtype(at::kLong).requires_grad(false)).unsqueeze(0);
  }

  static at::Tensor both(const at::Tensor& a, const at::Tensor& b) {
    return a.defined() && b.defined() ? a.logical_and(b) : (a.defined() ? a : b);
  }

  /// [B, L] in the folded order.
  at::Tensor ordered(const at::Tensor& mask) const {
    return !mask.defined() || !order_.defined() ? mask : mask.gather(1, order_);
  }

  /// [B*k or 1, 1, C, W] bool, undefined where everything is visible.
  at::Tensor block_mask() const {
    const bool whole = length() % block() == 0;
    const bool inside = shape_.fold.before == 0 && shape_.fold.after == 0;
    if (shape_.all_visible && whole && inside && !shape_.key_mask.defined() && !shape_.readers.defined() &&
        !shape_.read.defined()) {
      return {};
    }
    const auto options = query_.options().dtype(at::kLong).requires_grad(false);
    const at::Tensor first = at::arange(blocks(), options).mul_(block()).view({-1, 1, 1});  // [k, 1, 1]
    const at::Tensor query = first + at::arange(block(), options).view({1, -1, 1});         // [k, C, 1]
    const at::Tensor first_key = at::arange(blocks(), options).mul_(key_block()).view({-1, 1, 1});
    const at::Tensor key =
        first_key +
        at::arange(-shape_.fold.before * key_block(), (shape_.fold.after + 1) * key_block(), options).view({1, 1, -1});
    at::Tensor mask = shape_.visible(query, key).logical_and(key.ge(0)).logical_and(key.lt(key_.size(2)));  // [k, C, W]
    mask = mask.unsqueeze(0);
    const at::Tensor read = other_keys() ? at::Tensor() : ordered(both(shape_.key_mask, shape_.read));
    if (read.defined()) {
      const at::Tensor at_key = key.view({-1}).clamp(0, length() - 1);  // [k*W]
      mask = mask.logical_and(read.index_select(1, at_key).view({batch(), blocks(), 1, reach() * block()}));
    }
    const at::Tensor readers = ordered(both(shape_.key_mask, shape_.readers));
    if (readers.defined()) {
      const at::Tensor at_query = query.view({-1}).clamp(0, length() - 1);
      mask = mask.logical_and(readers.index_select(1, at_query).view({batch(), blocks(), block(), 1}));
    }
    return mask.expand({batch(), blocks(), block(), reach() * key_block()})
        .reshape({batch() * blocks(), 1, block(), reach() * key_block()});
  }

  std::shared_ptr<const Part> inner_part(const std::vector<at::Tensor>& folded) const {
    return dense_part(folded[0], folded[1], folded[2], {.mask = mask_});
  }

  /// Rows [B, L, H, D] -> [B, k + more, size, H, D], `before` blocks of zeros first.
  at::Tensor blocked(at::Tensor rows, int64_t size, int64_t before, int64_t after) const {
    const int64_t front = before * size, back = (blocks() + after) * size - rows.size(1);
    if (front > 0 || back > 0) rows = at::constant_pad_nd(rows, {0, 0, 0, 0, front, back});
    return rows.reshape({batch(), before + blocks() + after, size, heads(), rows.size(3)});
  }

  at::Tensor fold_queries(const at::Tensor& x) const {
    return blocked(in_order(x, order_).transpose(1, 2), block(), 0, 0).flatten(0, 1).transpose(1, 2);  // [B*k, H, C, D]
  }

  at::Tensor fold_keys(const at::Tensor& x) const {
    const at::Tensor in_place = other_keys() ? x : in_order(visible_rows(x), order_);
    const at::Tensor rows = blocked(in_place.transpose(1, 2), key_block(), shape_.fold.before, shape_.fold.after);
    if (reach() == 1) return rows.flatten(0, 1).transpose(1, 2);
    std::vector<at::Tensor> neighbours;
    for (int64_t i = 0; i < reach(); ++i) neighbours.push_back(rows.narrow(1, i, blocks()));  // [B, k, C, H, D]
    return at::cat(neighbours, 2).flatten(0, 1).transpose(1, 2);                              // [B*k, H, W, D]
  }

  /// Padding selected to 0, so that a NaN there stays there.
  at::Tensor visible_rows(const at::Tensor& x) const {
    if (!shape_.key_mask.defined()) return x;
    return x.masked_fill(shape_.key_mask.logical_not().view({batch(), 1, length(), 1}), 0);
  }

  std::vector<at::Tensor> fold(const std::vector<at::Tensor>& in) const {
    return {fold_queries(visible_rows(in[0])), fold_keys(in[1]), fold_keys(in[2])};
  }

  at::Tensor unfold_queries(const at::Tensor& x) const {
    const at::Tensor rows =
        x.transpose(1, 2).reshape({batch(), blocks() * block(), heads(), x.size(3)}).narrow(1, 0, length());
    return in_order(rows.transpose(1, 2), back_);
  }

  at::Tensor unfold_keys(const at::Tensor& x) const {
    const int64_t size = key_block();
    const at::Tensor parts = x.transpose(1, 2).reshape({batch(), blocks(), reach(), size, heads(), x.size(3)});
    const int64_t all = shape_.fold.before + blocks() + shape_.fold.after;
    at::Tensor rows;
    if (reach() == 1) {
      rows = parts.flatten(1, 3);
    } else {
      rows = at::zeros({batch(), all, size, heads(), x.size(3)}, x.options());
      for (int64_t i = 0; i < reach(); ++i) rows.narrow(1, i, blocks()).add_(parts.select(2, i));
      rows = rows.flatten(1, 2);
    }
    rows = rows.narrow(1, shape_.fold.before * size, key_.size(2)).transpose(1, 2);
    return other_keys() ? rows : in_order(rows, back_);
  }

  at::Tensor query_, key_, value_;
  FoldedShape shape_;
  at::Tensor order_, back_;  ///< [B, L], undefined where nothing moves
  at::Tensor mask_;
};

class RowsPart : public Part {
 public:
  RowsPart(at::Tensor query, at::Tensor key, at::Tensor value, at::Tensor places, at::Tensor valid,
           Visibility visibility)
      : query_(std::move(query)),
        key_(std::move(key)),
        value_(std::move(value)),
        places_(std::move(places)),
        valid_(std::move(valid)),
        visibility_(std::move(visibility)) {}

  std::vector<at::Tensor> inputs() const override { return {query_, key_, value_}; }

  Partial forward(const std::vector<at::Tensor>& in, double scale) const override {
    const std::vector<at::Tensor> chosen = {in_order(in[0], places_), in[1], in[2]};
    const Partial inner = part(chosen)->forward(chosen, scale);
    at::Tensor out = at::zeros_like(in[0], at::MemoryFormat::Contiguous);
    at::Tensor lse = at::full({in[0].size(0), in[0].size(1), in[0].size(2)}, kNegativeInfinity, inner.lse.options());
    // Places that are not valid share a place with one that may be: they add nothing.
    out.scatter_add_(2, index(out), inner.out.masked_fill(invalid().unsqueeze(-1), 0));
    lse = lse.scatter_reduce(2, index(lse), inner.lse.masked_fill(invalid(), kNegativeInfinity), "amax");
    return {out, lse};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& in, const Partial& merged, const at::Tensor& grad,
                                   double scale) const override {
    const std::vector<at::Tensor> chosen = {in_order(in[0], places_), in[1], in[2]};
    const Partial whole{in_order(merged.out, places_), in_order(merged.lse, places_)};
    const at::Tensor g = in_order(grad, places_).masked_fill(invalid().unsqueeze(-1), 0);
    auto grads = part(chosen)->backward(chosen, whole, g, scale);
    const at::Tensor dq = at::zeros_like(in[0], at::MemoryFormat::Contiguous);
    dq.scatter_add_(2, index(dq), grads[0]);
    return {dq, grads[1], grads[2]};
  }

  Plain plain(double scale) const override {
    const int64_t length = query_.size(2);
    at::Tensor reads = at::zeros({places_.size(0), length}, places_.options());
    reads.scatter_add_(1, places_, valid_.to(places_.scalar_type()));
    Visibility visibility = visibility_;
    const at::Tensor rows = reads.gt(0).view({-1, 1, length, 1}).expand({-1, 1, length, key_.size(2)});
    visibility.mask = rows;
    return dense_part(query_, key_, value_, visibility)->plain(scale);
  }

 private:
  /// [B, 1, G]
  at::Tensor invalid() const { return valid_.logical_not().unsqueeze(1); }
  at::Tensor index(const at::Tensor& like) const {
    auto shape = like.sizes().vec();
    shape[2] = places_.size(1);
    return like.dim() == 4 ? places_.view({-1, 1, places_.size(1), 1}).expand(shape)
                           : places_.view({-1, 1, places_.size(1)}).expand(shape);
  }
  std::shared_ptr<const Part> part(const std::vector<at::Tensor>& in) const {
    return dense_part(in[0], in[1], in[2], visibility_);
  }
  at::Tensor query_, key_, value_, places_, valid_;
  Visibility visibility_;
};

}  // namespace

Fold band_fold(int64_t reach, bool both) {
  // Small blocks waste fewer logits, large ones keep the kernel busy.
  constexpr int64_t kLeast = 16, kMost = 128;
  const int64_t block = std::clamp<int64_t>(reach, kLeast, kMost);
  const int64_t neighbours = (reach + block - 1) / block;
  return {block, neighbours, both ? neighbours : 0};
}

std::shared_ptr<const Part> folded_part(at::Tensor query, at::Tensor key, at::Tensor value, FoldedShape shape) {
  return std::make_shared<FoldedPart>(std::move(query), std::move(key), std::move(value), std::move(shape));
}

std::shared_ptr<const Part> rows_part(at::Tensor query, at::Tensor key, at::Tensor value, at::Tensor places,
                                      at::Tensor valid, Visibility visibility) {
  return std::make_shared<RowsPart>(std::move(query), std::move(key), std::move(value), std::move(places),
                                    std::move(valid), std::move(visibility));
}

}  // namespace palimpsest::attention
