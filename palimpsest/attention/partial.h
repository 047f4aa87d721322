// SPDX-License-Identifier: Apache-2.0
// A partial attention is a value, and partials merge exactly (DESIGN section 1, ALGORITHMS section 0).
// This folder is the only place that touches softmax.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

namespace palimpsest::attention {

/// Attention over one set of keys: the softmax average and the log-sum-exp of its logits.
/// A query that sees no key has out 0 and lse -inf.
struct Partial {
  at::Tensor out;  ///< [B, H, L, D]
  at::Tensor lse;  ///< [B, H, L]; float32 at least
};

/// Attention over the union of disjoint key sets:
/// m = max_j lse_j (0 where all are -inf); w_j = exp(lse_j - m); Z = sum w_j; out = sum w_j out_j / max(Z, tiny); lse =
/// m + log Z.
Partial merge(const std::vector<Partial>& partials);

struct AttendOptions {
  double scale = 0;    ///< of the logits; 0 means 1/sqrt(D)
  double dropout = 0;  ///< of the attention weights; > 0 takes the plain twin
};

/// One disjoint set of keys, as a mechanism sees it. Structure lives in the part, the tensors that are
/// differentiated are handed in: the autograd node owns them.
class Part {
 public:
  virtual ~Part() = default;
  /// The differentiable tensors, always in the same order; the first is the query [B, H, L, D].
  virtual std::vector<at::Tensor> inputs() const = 0;
  virtual Partial forward(const std::vector<at::Tensor>& inputs, double scale) const = 0;
  /// Gradients of `inputs`, given the *merged* attention and the plain gradient of its out. `merged.lse` is 0
  /// where it was -inf.
  virtual std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Partial& merged,
                                           const at::Tensor& grad, double scale) const = 0;
  /// The plain twin: logits [B, H, L, S] with -inf at invisible keys, and values [B, H, S, D] (or [B, H, L, S, D] where
  /// each query has its own), out of differentiable tensor operations alone.
  struct Plain {
    at::Tensor logits, values;
  };
  virtual Plain plain(double scale) const = 0;
};

using Parts = std::vector<std::shared_ptr<const Part>>;

/// Which keys a part shows to which queries.
struct Visibility {
  at::Tensor key_mask = {};  ///< [B, S] or [B, H, S] bool, true = visible; undefined = all
  bool causal = false;       ///< query i sees keys up to i + S - L
  at::Tensor mask = {};      ///< [B or 1, H or 1, L, S] bool, true = visible; undefined = all. Costs L x S
};

/// Keys that every query reads alike: query [B, H, L, D], key and value [B, H, S, D]. On CPU this is ATen's flash
/// kernel (up to 8 keys a composed one of the same numbers); elsewhere the composed one.
std::shared_ptr<const Part> dense_part(at::Tensor query, at::Tensor key, at::Tensor value, Visibility visibility = {});

/// Query i sees one key, its own: query, key and value [B, H, L, D] (a memory slot's view of itself).
std::shared_ptr<const Part> self_part(at::Tensor query, at::Tensor key, at::Tensor value);

/// The merged attention over all parts, [B, H, L, D]: one autograd node, whose backward calls each part's own kernel
/// with the merged out and lse.
at::Tensor attend(const Parts& parts, const AttendOptions& options = {});

/// The oracle: one softmax over the concatenated plain logits. Differentiable any number of times, never fast.
/// Attention weights are dropped here where `options.dropout` > 0.
at::Tensor attend_plain(const Parts& parts, const AttendOptions& options = {});

/// The attention weights over all keys of all parts in their order, [B, H, L, sum S]; 0 on rows that see nothing.
at::Tensor attention_weights(const Parts& parts, const AttendOptions& options = {});

}  // namespace palimpsest::attention
