// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/lsh_part.h"

#include <algorithm>
#include <limits>

#include "palimpsest/nn/shapes.h"

namespace palimpsest::attention {

namespace {

constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();
constexpr double kAlone = -5e4;  // the logit of a token with itself: nothing beside any other, all where it is alone
constexpr double kTiny = 1e-12;

/// Rows of axis 2 of x [B, H, L, ..] at index [B, H, N].
at::Tensor rows_at(const at::Tensor& x, const at::Tensor& index) {
  auto shape = x.sizes().vec();
  std::vector<int64_t> view = {index.size(0), index.size(1), index.size(2)};
  shape[2] = index.size(2);
  view.resize(shape.size(), 1);
  return x.gather(2, index.view(view).expand(shape));
}

/// Who stands where in each round.
struct Order {
  int64_t rounds, blocks, block;  ///< R, blocks of the longest row, b
  at::Tensor token;               ///< [B, H, R, blocks * b] int64: which token, L behind the last
  at::Tensor place;               ///< [B, H, R, L]: where it stands
  at::Tensor bucket;              ///< [B, H, R, L]
  at::Tensor back;                ///< [B, R, blocks] int64: the block (round * blocks + block) that each looks back to
};

Order order_of(const at::Tensor& qk, const at::Tensor& key_mask, const at::Tensor& rotations,
               const LshOptions& options) {
  const at::NoGradGuard no_grad;
  const int64_t batch = qk.size(0), heads = qk.size(1), length = qk.size(2);
  const auto whole = qk.options().dtype(at::kLong).requires_grad(false);
  const bool hash_all = options.hash_padding || !key_mask.defined();
  const at::Tensor count = hash_all ? at::full({batch}, length, whole) : key_mask.sum(1);  // [B]
  Order made{options.rounds, lsh_buckets(length, options.bucket), options.bucket, {}, {}, {}, {}};
  const int64_t half = made.blocks / 2, room = made.blocks * made.block;
  nn::check_shape(rotations, {-1, -1, qk.size(3), made.rounds, -1}, "rotations");
  // A row's own number of buckets: an even number of blocks that holds its tokens.
  const at::Tensor own = (at::div(count + 2 * made.block - 1, 2 * made.block, "floor") * 2).clamp_min(2);  // [B]
  at::Tensor turned = at::einsum(
      "bhld,xydrn->bhrln", {qk, rotations.narrow(4, 0, half).expand({batch, heads, -1, -1, -1}).to(qk.scalar_type())});
  const at::Tensor beyond =
      at::arange(half, whole).view({1, 1, 1, 1, half}).ge(at::div(own, 2, "floor").view({batch, 1, 1, 1, 1}));
  const at::Tensor up = turned.masked_fill(beyond, kNegativeInfinity),
                   down = turned.neg().masked_fill(beyond, kNegativeInfinity);
  at::Tensor bucket = at::cat({up, down}, -1).argmax(-1);  // [B, H, R, L]
  bucket = at::where(bucket.ge(half), bucket - half + at::div(own, 2, "floor").view({batch, 1, 1, 1}), bucket);
  if (!hash_all) bucket = bucket.masked_fill(key_mask.logical_not().view({batch, 1, 1, length}), made.blocks);
  made.bucket = bucket;
  const at::Tensor sorted =
      std::get<1>((bucket * length + at::arange(length, whole)).sort(/*stable=*/true, 3, /*descending=*/false));
  made.place = std::get<1>(sorted.sort(3));
  made.token = at::constant_pad_nd(sorted, {0, room - length}, static_cast<double>(length));
  const at::Tensor block = at::arange(made.blocks, whole).view({1, 1, made.blocks});
  const at::Tensor round = at::arange(made.rounds, whole).view({1, made.rounds, 1});
  const at::Tensor last = own.view({batch, 1, 1}) - 1;
  const at::Tensor round_back = options.wrap_global ? (round - 1).remainder(made.rounds) : round;
  made.back = at::where(block.eq(0), round_back * made.blocks + last, round * made.blocks + block - 1);
  return made;
}

class LshPart : public Part {
 public:
  LshPart(at::Tensor query, at::Tensor key, at::Tensor value, at::Tensor key_mask, Order order, LshOptions options)
      : query_(std::move(query)),
        key_(std::move(key)),
        value_(std::move(value)),
        key_mask_(std::move(key_mask)),
        order_(std::move(order)),
        options_(options) {
    if (query_.numel() == 0) return;
    const int64_t b = order_.block, n = order_.blocks, r = order_.rounds;
    query_index_ = order_.token.view({batch(), heads(), r * n * b});
    const at::Tensor blocks = order_.token.view({batch(), heads(), r * n, b});
    const at::Tensor back = rows_at(blocks, order_.back.view({batch(), 1, r * n}).expand({batch(), heads(), r * n}));
    const at::Tensor keys = at::cat({blocks, back}, 3);  // [B, H, R n, 2b]
    key_index_ = keys.view({batch(), heads(), r * n * 2 * b});
    mask_ = visible(blocks, keys).view({batch() * heads() * r * n, 1, b, 2 * b});
  }

  std::vector<at::Tensor> inputs() const override { return {query_, key_, value_}; }

  Partial forward(const std::vector<at::Tensor>& in, double scale) const override {
    if (query_.numel() == 0) return dense_part(in[0], in[1], in[2])->forward(in, scale);
    const auto folded = fold(in);
    const Partial inner = inner_part(folded)->forward(folded, scale);
    const at::Tensor out = by_round(inner.out);                // [B, H, R, L, D]
    const at::Tensor lse = by_round(inner.lse.unsqueeze(-1));  // [B, H, R, L, 1]
    std::vector<Partial> rounds;
    for (int64_t r = 0; r < order_.rounds; ++r) rounds.push_back({out.select(2, r), lse.select(2, r).squeeze(-1)});
    return merge(rounds);
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& in, const Partial& merged, const at::Tensor& grad,
                                   double scale) const override {
    if (query_.numel() == 0) return {at::zeros_like(in[0]), at::zeros_like(in[1]), at::zeros_like(in[2])};
    const auto folded = fold(in);
    const Partial whole{fold_rows(merged.out, query_index_),
                        fold_rows(merged.lse.unsqueeze(-1), query_index_).squeeze(-1)};
    const auto grads = inner_part(folded)->backward(folded, whole, fold_rows(grad, query_index_), scale);
    return {sum_rows(grads[0], query_index_), sum_rows(grads[1], key_index_), sum_rows(grads[2], key_index_)};
  }

  /// Each round's keys twice: as seen in a query's own block, and in the one it looks back to.
  Plain plain(double scale) const override {
    const at::Tensor place = at::div(order_.place, order_.block, "floor");  // [B, H, R, L]: the block of each
    const at::Tensor real =
        key_mask_.defined() ? key_mask_ : at::ones({batch(), length()}, place.options().dtype(at::kBool));
    const at::Tensor at = at::arange(length(), place.options());
    at::Tensor seen = real.view({batch(), 1, 1, length()}).logical_and(real.view({batch(), 1, length(), 1}));
    seen = seen.logical_and(at.view({-1, 1}).ne(at.view({1, -1})));
    if (options_.causal) seen = seen.logical_and(at.view({-1, 1}).ge(at.view({1, -1})));
    std::vector<at::Tensor> columns;
    at::Tensor met = at::zeros_like(seen.expand({batch(), heads(), length(), length()}));
    for (int64_t r = 0; r < order_.rounds; ++r) {
      const at::Tensor mine = place.select(2, r);  // [B, H, L]
      const at::Tensor back =
          order_.back.select(1, r).unsqueeze(1).expand({batch(), heads(), order_.blocks}).gather(2, mine);
      const int64_t back_round = options_.wrap_global ? (r + order_.rounds - 1) % order_.rounds : r;
      for (const bool own_block : {true, false}) {
        at::Tensor here;
        at::Tensor bucket_round = order_.bucket.select(2, r);
        if (own_block) {
          here = mine.unsqueeze(-1).eq(mine.unsqueeze(2));
        } else {
          const at::Tensor in_round = at::div(back, order_.blocks, "floor");
          here = at::zeros_like(met);
          for (int64_t q = 0; q < order_.rounds; ++q) {
            const at::Tensor there = back.remainder(order_.blocks).unsqueeze(-1).eq(place.select(2, q).unsqueeze(2));
            here = here.logical_or(there.logical_and(in_round.eq(q).unsqueeze(-1)));
          }
        }
        if (options_.in_bucket) {
          // Keys are compared by the bucket of the round they stand in: another round's is never the same.
          at::Tensor same = bucket_round.unsqueeze(-1).eq(bucket_round.unsqueeze(2));
          if (!own_block && back_round != r) {
            const at::Tensor crosses = at::div(back, order_.blocks, "floor").ne(r).unsqueeze(-1);
            same = same.logical_and(crosses.logical_not());
          }
          here = here.logical_and(same);
        }
        here = here.logical_and(seen);
        if (options_.dedup) {
          const at::Tensor again = met;
          met = met.logical_or(here);
          here = here.logical_and(again.logical_not());
        }
        columns.push_back(here);
      }
    }
    const at::Tensor hidden = real.logical_not().view({batch(), 1, length(), 1});
    const at::Tensor key = key_.masked_fill(hidden, 0), value = value_.masked_fill(hidden, 0);
    const auto copies = static_cast<int64_t>(columns.size());
    const at::Tensor logits = (at::matmul(query_, key.transpose(2, 3)) * scale).repeat({1, 1, 1, copies});
    return {logits.masked_fill(at::cat(columns, 3).logical_not(), kNegativeInfinity), value.repeat({1, 1, copies, 1})};
  }

 private:
  int64_t batch() const { return query_.size(0); }
  int64_t heads() const { return query_.size(1); }
  int64_t length() const { return query_.size(2); }

  /// A value for each token, and one for what is no token, at index [.., any].
  at::Tensor look_up(const at::Tensor& of_token, double otherwise, const at::Tensor& index) const {
    const at::Tensor table = at::constant_pad_nd(of_token, {0, 1}, otherwise);  // [B, H, L + 1]
    return table.gather(2, index.reshape({batch(), heads(), -1})).view_as(index);
  }

  /// [B, H, R n, b, 2b] bool for tokens queries [B, H, R n, b] and keys [B, H, R n, 2b].
  at::Tensor visible(const at::Tensor& queries, const at::Tensor& keys) const {
    const int64_t b = order_.block, n = order_.blocks;
    const at::Tensor real = key_mask_.defined()
                                ? key_mask_.unsqueeze(1).expand({batch(), heads(), length()}).to(at::kLong)
                                : at::ones({batch(), heads(), length()}, queries.options());
    const at::Tensor q = queries.unsqueeze(-1), k = keys.unsqueeze(3);
    at::Tensor seen = look_up(real, 0, queries).unsqueeze(-1).logical_and(look_up(real, 0, keys).unsqueeze(3));
    seen = seen.logical_and(q.ne(k));
    if (options_.causal) seen = seen.logical_and(q.ge(k));
    if (!options_.in_bucket && !options_.dedup) return seen;
    const at::Tensor round_of_query = at::arange(order_.rounds, queries.options()).repeat_interleave(n);  // [R n]
    const at::Tensor own_round = round_of_query.view({1, order_.rounds * n, 1}).expand({batch(), -1, b});
    const at::Tensor back_round =
        at::div(order_.back, n, "floor").view({batch(), order_.rounds * n, 1}).expand({-1, -1, b});
    const at::Tensor round_of_key = at::cat({own_round, back_round}, 2);  // [B, R n, 2b]
    if (options_.in_bucket) {
      const auto bucket = [&](const at::Tensor& tokens, const at::Tensor& round) {
        // Of each token in the round where it stands here; rounds are kept apart.
        const at::Tensor table = at::constant_pad_nd(order_.bucket, {0, 1}, -1).flatten(2, 3);  // [B, H, R (L + 1)]
        const at::Tensor at = round.unsqueeze(1) * (length() + 1) + tokens;
        const at::Tensor found = table.gather(2, at.reshape({batch(), heads(), -1})).view_as(tokens);
        return found + round.unsqueeze(1) * (order_.blocks + 2);
      };
      seen = seen.logical_and(bucket(queries, own_round).unsqueeze(-1).eq(bucket(keys, round_of_key).unsqueeze(3)));
    }
    if (options_.dedup) {
      // A pair stays where it meets first: in the order of rounds, a query's own block before the one it looks back to.
      const at::Tensor meets_before = at::zeros_like(seen);
      const at::Tensor round = round_of_query.view({1, 1, order_.rounds * n, 1, 1});
      const at::Tensor second_half = at::arange(2 * b, queries.options()).ge(b).view({1, 1, 1, 1, 2 * b});
      const auto block_of = [&](const at::Tensor& tokens, int64_t r) {
        return look_up(at::div(order_.place.select(2, r), b, "floor"), -2, tokens);
      };
      for (int64_t r = 0; r < order_.rounds; ++r) {
        const at::Tensor block = block_of(queries, r);  // [B, H, R n, b]
        const at::Tensor own = block.unsqueeze(-1).eq(block_of(keys, r).unsqueeze(3));
        const at::Tensor back_of = order_.back.select(1, r)
                                       .unsqueeze(1)
                                       .expand({batch(), heads(), n})
                                       .gather(2, block.clamp_min(0).reshape({batch(), heads(), -1}))
                                       .view_as(block);
        at::Tensor looked = at::zeros_like(own);
        for (int64_t s = 0; s < order_.rounds; ++s) {
          const at::Tensor there = back_of.remainder(n).unsqueeze(-1).eq(block_of(keys, s).unsqueeze(3));
          looked.logical_or_(there.logical_and(at::div(back_of, n, "floor").eq(s).unsqueeze(-1)));
        }
        if (options_.in_bucket) {
          const at::Tensor mine = look_up(order_.bucket.select(2, r), -1, queries).unsqueeze(-1);
          const at::Tensor theirs = look_up(order_.bucket.select(2, r), -1, keys).unsqueeze(3);
          own.logical_and_(mine.eq(theirs));
          looked.logical_and_(mine.eq(theirs)).logical_and_(at::div(back_of, n, "floor").eq(r).unsqueeze(-1));
        }
        meets_before.logical_or_(own.logical_and(round.gt(r).logical_or(round.eq(r).logical_and(second_half))));
        meets_before.logical_or_(looked.logical_and(round.gt(r)));
      }
      seen = seen.logical_and(meets_before.logical_not());
    }
    return seen;
  }

  std::shared_ptr<const Part> inner_part(const std::vector<at::Tensor>& folded) const {
    return dense_part(folded[0], folded[1], folded[2], {.mask = mask_});
  }

  at::Tensor without_padding(const at::Tensor& x) const {
    if (!key_mask_.defined()) return x;
    return x.masked_fill(key_mask_.logical_not().view({batch(), 1, length(), 1}), 0);
  }

  /// [B, H, L, D] at index [B, H, R n m] -> [B H R n, 1, m, D]; 0 where there is no token.
  at::Tensor fold_rows(const at::Tensor& x, const at::Tensor& index) const {
    const int64_t blocks = order_.rounds * order_.blocks;
    const at::Tensor table = at::constant_pad_nd(without_padding(x), {0, 0, 0, 1});  // [B, H, L + 1, D]
    return rows_at(table, index).view({batch() * heads() * blocks, 1, index.size(2) / blocks, x.size(3)});
  }

  std::vector<at::Tensor> fold(const std::vector<at::Tensor>& in) const {
    return {fold_rows(in[0], query_index_), fold_rows(in[1], key_index_), fold_rows(in[2], key_index_)};
  }

  /// [B H R n, 1, b, X] -> [B, H, R, L, X]
  at::Tensor by_round(const at::Tensor& x) const {
    const int64_t room = order_.blocks * order_.block, width = x.size(3);
    const at::Tensor rows = x.reshape({batch(), heads(), order_.rounds, room, width});
    return rows.gather(3, order_.place.unsqueeze(-1).expand({batch(), heads(), order_.rounds, length(), width}));
  }

  /// The sum of the rows that belong to each token.
  at::Tensor sum_rows(const at::Tensor& x, const at::Tensor& index) const {
    const int64_t width = x.size(3);
    at::Tensor table = at::zeros({batch(), heads(), length() + 1, width}, x.options());
    table.scatter_add_(2, index.unsqueeze(-1).expand({batch(), heads(), index.size(2), width}),
                       x.reshape({batch(), heads(), index.size(2), width}));
    return without_padding(table.narrow(2, 0, length()));
  }

  at::Tensor query_, key_, value_, key_mask_;
  Order order_;
  LshOptions options_;
  at::Tensor query_index_, key_index_, mask_;
};

/// Each query's own value at a logit that is nothing beside any other.
class AlonePart : public Part {
 public:
  AlonePart(at::Tensor query, at::Tensor value, at::Tensor key_mask)
      : query_(std::move(query)), value_(std::move(value)), key_mask_(std::move(key_mask)) {}

  std::vector<at::Tensor> inputs() const override { return {query_, value_}; }

  Partial forward(const std::vector<at::Tensor>& in, double /*scale*/) const override {
    const auto wide = in[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor lse = at::full({in[0].size(0), in[0].size(1), in[0].size(2)}, kAlone, in[0].options().dtype(wide));
    if (!key_mask_.defined()) return {in[1].contiguous(), lse};
    const at::Tensor hidden = key_mask_.logical_not().unsqueeze(1);
    return {in[1].masked_fill(hidden.unsqueeze(-1), 0).contiguous(), lse.masked_fill(hidden, kNegativeInfinity)};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& in, const Partial& merged, const at::Tensor& grad,
                                   double /*scale*/) const override {
    at::Tensor weight = at::exp(kAlone - merged.lse).to(grad.scalar_type()).unsqueeze(-1);
    if (key_mask_.defined()) weight = weight.masked_fill(key_mask_.logical_not().view({weight.size(0), 1, -1, 1}), 0);
    return {at::zeros_like(in[0]), weight * grad};
  }

  Plain plain(double /*scale*/) const override {
    at::Tensor logits =
        at::full({query_.size(0), query_.size(1), query_.size(2), 1}, kAlone, query_.options().requires_grad(false));
    at::Tensor value = value_;
    if (key_mask_.defined()) {
      const at::Tensor hidden = key_mask_.logical_not().view({query_.size(0), 1, query_.size(2), 1});
      logits = logits.masked_fill(hidden, kNegativeInfinity);
      value = value.masked_fill(hidden, 0);
    }
    return {logits, value.unsqueeze(-2)};
  }

 private:
  at::Tensor query_, value_, key_mask_;
};

}  // namespace

int64_t lsh_buckets(int64_t length, int64_t bucket) {
  return std::max<int64_t>(2, (length + 2 * bucket - 1) / (2 * bucket) * 2);
}

Parts lsh_parts(const at::Tensor& qk, const at::Tensor& value, const at::Tensor& key_mask, const at::Tensor& rotations,
                const LshOptions& options) {
  at::Tensor query = qk;
  if (key_mask.defined()) query = query.masked_fill(key_mask.logical_not().view({qk.size(0), 1, qk.size(2), 1}), 0);
  const at::Tensor key = query / query.norm(2, -1, true).clamp_min(kTiny);
  Order order;
  if (qk.numel() > 0)
    order = order_of(options.hash_padding ? qk.detach() : query.detach(), key_mask, rotations, options);
  return {std::make_shared<LshPart>(query, key, value, key_mask, std::move(order), options),
          std::make_shared<AlonePart>(query, value, key_mask)};
}

}  // namespace palimpsest::attention
