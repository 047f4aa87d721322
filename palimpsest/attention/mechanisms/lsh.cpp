// SPDX-License-Identifier: Apache-2.0
// Reformer's attention by hashing, without its reversible layers (ALGORITHMS 2.4). Queries are keys: the layer's query
// projection serves as both (`qk=k`, `qk=mean` for another).
#include "palimpsest/attention/lsh_part.h"
#include "palimpsest/attention/mechanism.h"
#include "palimpsest/core/random.h"

namespace palimpsest::attention {

namespace {

class Lsh : public Mechanism {
 public:
  Lsh(MechanismArguments& read, const MechanismPlace& place) : Mechanism(place.use), heads_(place.heads) {
    options_.bucket = read.size_or("bucket", 64, 1, 1 << 20);
    options_.rounds = read.size_or("rounds", 4, 1, 64);
    options_.wrap_global = read.choice("wrap", {"round", "global"}) == "global";
    options_.hash_padding = read.choice("pad", {"last", "hashed"}) == "hashed";
    options_.dedup = read.flag("dedup");
    options_.in_bucket = read.flag("inbucket");
    options_.causal = causal();
    shared_heads_ = read.flag("share_heads");
    source_ = read.choice("qk", {"q", "k", "mean"});
    key_ = random_key(static_cast<uint64_t>(read.size_or("seed", 0, 0)), place.layer, 0x15a);
  }

  std::string refusal() const override {
    return use_ == Use::kCross ? "queries are keys, and a source has no queries" : "";
  }
  std::string no_stream() const override {
    return "lsh sorts the whole text, so that a later token moves the blocks of an earlier one";
  }
  bool is_bounded() const override { return false; }
  bool content_decides() const override { return true; }

  Parts own_parts(const AttentionInput& in) const override {
    const at::Tensor qk = source_ == "q" ? in.query : source_ == "k" ? in.key : (in.query + in.key) / 2;
    return lsh_parts(qk, in.value, in.key_mask, rotations(qk), options_);
  }

  at::Tensor sees(int64_t length) const override {
    const at::Tensor all = at::ones({length, length}, at::kBool);
    return causal() ? all.tril() : all;
  }

 private:
  /// [1, H or 1, D, R, nb / 2]; a column depends on its own number alone.
  at::Tensor rotations(const at::Tensor& qk) const {
    const int64_t heads = shared_heads_ ? 1 : heads_, width = qk.size(3), rounds = options_.rounds;
    const int64_t half = lsh_buckets(qk.size(2), options_.bucket) / 2;
    at::Tensor made = at::empty({heads, rounds, half, width}, at::kDouble);
    auto* to = made.data_ptr<double>();
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t round = 0; round < rounds; ++round) {
        for (int64_t column = 0; column < half; ++column) {
          Random random(random_key(key_, head, round, column));
          for (int64_t i = 0; i < width; ++i) *to++ = random.normal();
        }
      }
    }
    return made.permute({0, 3, 1, 2}).unsqueeze(0).to(qk.options().requires_grad(false));
  }

  int64_t heads_;
  LshOptions options_;
  bool shared_heads_ = false;
  std::string source_;
  uint64_t key_ = 0;
};

}  // namespace

MechanismKind lsh_mechanism() {
  return {"lsh",
          "lsh:bucket=64,rounds=4[,wrap=round|global][,pad=last|hashed][,dedup][,inbucket][,qk=q|k|mean][,share_heads]"
          "[,seed=N]",
          "tokens of like hashes read each other (Reformer's; in causal use its training form)",
          {"lsh:bucket=8,rounds=2", "lsh:bucket=4,rounds=3,dedup,qk=mean", "lsh:bucket=8,rounds=2,inbucket,share_heads",
           "lsh:bucket=5,rounds=3,wrap=global,dedup", "lsh:bucket=6,rounds=2,dedup,inbucket,qk=k"},
          [](MechanismArguments& read, const MechanismPlace& place) { return std::make_shared<Lsh>(read, place); }};
}

}  // namespace palimpsest::attention
