// SPDX-License-Identifier: Apache-2.0
// Chunks of C tokens that read themselves alone (GMAT section 3.1; ALGORITHMS 2.3). `permute`: chunk i of a head reads
// chunk sigma(i), as BlockBERT does.
#include "palimpsest/attention/pattern.h"
#include "palimpsest/core/random.h"

namespace palimpsest::attention {

namespace {

class Chunk : public Pattern {
 public:
  Chunk(Use use, int64_t size) : Pattern(use), size_(size) {}
  std::string refusal() const override {
    return use_ == Use::kCross ? "chunks are of one sequence, and a source is another" : "";
  }

 protected:
  at::Tensor visible(const at::Tensor& query, const at::Tensor& key) const override {
    const at::Tensor same = at::div(query, size_, "floor").eq(at::div(key, size_, "floor"));
    return causal() ? same.logical_and(key.le(query)) : same;
  }
  std::optional<Fold> fold() const override { return Fold{size_, 0, 0}; }
  bool fold_is_full() const override { return !causal(); }
  int64_t newest() const override { return size_; }

 private:
  int64_t size_;
};

/// Chunks in an order of their own for each head. The number of chunks decides the order, so it follows from the text.
class PermutedChunk : public Mechanism {
 public:
  PermutedChunk(Use use, int64_t size, int64_t heads, uint64_t key)
      : Mechanism(use), size_(size), heads_(heads), key_(key) {}
  std::string refusal() const override {
    if (use_ == Use::kCross) return "chunks are of one sequence, and a source is another";
    return causal() ? "a permuted chunk reads one that may lie after it" : "";
  }

  Parts own_parts(const AttentionInput& in) const override {
    const at::Tensor at = token_positions(in.key_mask, 1, in.query.size(2), in.query.device());
    const at::Tensor chunk = at::div(at, size_, "floor");  // [B or 1, L]
    const int64_t count = chunk.numel() > 0 ? chunk.max().item<int64_t>() + 1 : 1;
    // A row with fewer chunks than another has an order of its own length.
    const at::Tensor counts = chunk.numel() > 0 ? chunk.amax(1) + 1 : at::ones({chunk.size(0)}, at::kLong);
    at::Tensor table = at::zeros({chunk.size(0), heads_, count}, at::kLong);  // [B or 1, H, k]
    for (int64_t row = 0; row < chunk.size(0); ++row) {
      const int64_t own = counts[row].item<int64_t>();
      for (int64_t head = 0; head < heads_; ++head)
        table[row][head].narrow(0, 0, own).copy_(at::tensor(order(head, own), at::kLong));
    }
    table = table.to(in.query.device());
    const int64_t length = chunk.size(1);
    const at::Tensor reads = table.gather(2, chunk.unsqueeze(1).expand({chunk.size(0), heads_, length}));  // [B, H, L]
    at::Tensor mask = reads.unsqueeze(-1).eq(chunk.view({chunk.size(0), 1, 1, length}));
    return {dense_part(in.query, in.key, in.value, {.key_mask = in.key_mask, .mask = mask})};
  }

  at::Tensor sees(int64_t length) const override {
    const int64_t count = std::max<int64_t>(1, (length + size_ - 1) / size_);
    const at::Tensor chunk = at::div(at::arange(length, at::kLong), size_, "floor");
    at::Tensor seen = at::zeros({length, length}, at::kBool);
    for (int64_t head = 0; head < heads_; ++head) {
      const at::Tensor reads = at::tensor(order(head, count), at::kLong).index_select(0, chunk);
      seen = seen.logical_or(reads.unsqueeze(-1).eq(chunk.unsqueeze(0)));
    }
    return seen;
  }

 private:
  std::vector<int64_t> order(int64_t head, int64_t count) const {
    return permutation(count, random_key(key_, head, count));
  }
  int64_t size_, heads_;
  uint64_t key_;
};

}  // namespace

MechanismKind chunk_mechanism() {
  return {"chunk",
          "chunk:C[,permute[,seed=N]]",
          "chunks of C tokens that read themselves alone",
          {"chunk:16", "chunk:7", "chunk:16,permute"},
          [](MechanismArguments& read, const MechanismPlace& place) -> std::shared_ptr<Mechanism> {
            const int64_t size = read.size("", 1);
            if (!read.flag("permute")) return std::make_shared<Chunk>(place.use, size);
            const auto seed = static_cast<uint64_t>(read.size_or("seed", 0, 0));
            return std::make_shared<PermutedChunk>(place.use, size, place.heads, random_key(seed, place.layer));
          }};
}

}  // namespace palimpsest::attention
