// SPDX-License-Identifier: Apache-2.0
// Attention mechanisms against numbers of their reference implementations (fixtures/README, 2 to 4).
#include "palimpsest/attention/mechanism.h"

#include <limits>

#include "palimpsest/attention/lsh_part.h"
#include "palimpsest/attention/slot_scan.h"
#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/error.h"
#include "palimpsest/core/json.h"
#include "palimpsest/nn/shapes.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"

namespace palimpsest::attention {
namespace {

using checkpoint::TensorSet;
using test::expect_close;
using test::shared;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor leaf(const at::Tensor& x, at::ScalarType dtype = at::kDouble) {
  return x.to(dtype).clone().requires_grad_(true);
}

struct Graded {
  at::Tensor out;
  std::vector<at::Tensor> grads;
};
Graded graded(const at::Tensor& out, const std::vector<at::Tensor>& leaves, const at::Tensor& g) {
  return {out, torch::autograd::grad({(out * g.to(out.scalar_type())).sum()}, leaves, {}, /*retain_graph=*/true)};
}

/// `names` of the gradients of q, k, v and s.
void expect_slots(const TensorSet& set, const std::string& inputs, const std::string& kind, double tolerance,
                  at::ScalarType dtype) {
  const auto of = [&](const char* name) { return leaf(set.tensor(inputs + name), dtype); };
  const at::Tensor q = of("q"), k = of("k"), v = of("v"), s = of("s"), g = set.tensor(inputs + "g");
  Parts parts;
  const std::string place = inputs + kind + "/";
  if (kind == "encoder") {
    const at::Tensor phi = at::softmax(s, 2).transpose(2, 3);
    parts = {dense_part(q, at::matmul(phi, k), at::matmul(phi, v))};
  } else {
    const SlotScan scan{.query = q,
                        .key = k,
                        .value = v,
                        .control = s,
                        .writing = kind == "renorm" ? SlotWriting::kRunning : SlotWriting::kFrozen};
    parts = {slot_scan_part(scan)};
    const SlotState end = slot_scan_end(scan);
    expect_close(end.mass, set.tensor(place + "z_final").to(dtype), tolerance, place + "z");
    expect_close(end.key, set.tensor(place + "Kt_final").to(dtype), tolerance, place + "K");
    expect_close(end.value, set.tensor(place + "Vt_final").to(dtype), tolerance, place + "V");
  }
  for (const at::Tensor& out : {attend(parts), attend_plain(parts)}) {
    const Graded got = graded(out, {q, k, v, s}, g);
    expect_close(got.out, set.tensor(place + "o").to(dtype), tolerance, place + "o");
    const char* names[] = {"dq", "dk", "dv", "ds"};
    for (size_t i = 0; i < 4; ++i)
      expect_close(got.grads[i], set.tensor(place + names[i]).to(dtype), 10 * tolerance, place + names[i]);
  }
}

TEST(MechanismParity, CausalSlotsEqualTheReferenceRecurrence) {
  SKIP_WITHOUT_SHARED("fixtures/abc_causal_a_n4.safetensors");
  for (const char* slots : {"n4", "n16"}) {
    const auto file = [&](const char* tail) {
      return TensorSet::open(shared(fmt::format("fixtures/abc_causal_a_{}{}.safetensors", slots, tail)));
    };
    const TensorSet wide = file("_f64"), narrow = file("");
    for (const char* kind : {"renorm", "frozen", "encoder"}) {
      for (const char* length : {"T1/", "T63/"}) expect_slots(wide, length, kind, 1e-11, at::kDouble);
      for (const char* length : {"T1/", "T63/", "T200/"}) expect_slots(narrow, length, kind, 2e-6, at::kDouble);
      for (const char* length : {"T1/", "T63/", "T200/"}) expect_slots(narrow, length, kind, 3e-5, at::kFloat);
    }
  }
}

TEST(MechanismParity, SlotsOfAPaddedSourceEqualTheReference) {
  SKIP_WITHOUT_SHARED("fixtures/abc_cross_a.safetensors");
  const TensorSet set = TensorSet::open(shared("fixtures/abc_cross_a.safetensors"));
  const auto of = [&](const char* name) { return leaf(set.tensor(fmt::format("cross_padded/{}.f64", name))); };
  const at::Tensor q = of("q"), k = of("k"), v = of("v"), s = of("s");
  const at::Tensor mask = set.tensor("cross_padded/mask").to(at::kBool).view({3, 1, 17, 1});
  const at::Tensor phi = at::softmax(s.masked_fill(mask.logical_not(), -kInfinity), 2).transpose(2, 3);
  const at::Tensor out = attend({dense_part(q, at::matmul(phi, k.masked_fill(mask.logical_not(), 0)),
                                            at::matmul(phi, v.masked_fill(mask.logical_not(), 0)))});
  const Graded got = graded(out, {q, k, v, s}, set.tensor("cross_padded/g.f64"));
  expect_close(out, set.tensor("cross_padded/o.f64"), 1e-11);
  const char* names[] = {"dq", "dk", "dv", "ds"};
  for (size_t i = 0; i < 4; ++i)
    expect_close(got.grads[i], set.tensor(fmt::format("cross_padded/{}.f64", names[i])), 1e-10, names[i]);
}

TEST(MechanismParity, HashedAttentionEqualsTheReference) {
  SKIP_WITHOUT_SHARED("fixtures/lsh_a.safetensors");
  const TensorSet set = TensorSet::open(shared("fixtures/lsh_a.safetensors"));
  const Json described = read_json(shared("fixtures/lsh_a.json"));
  int checked = 0;
  for (const Json& entry : described.at("cases")) {
    const auto name = entry.at("name").get<std::string>();
    const auto rounds = entry.at("rounds").get<int64_t>();
    const bool padded = entry.at("padding_mask").get<bool>();
    LshOptions options{.bucket = 8,
                       .rounds = rounds,
                       .wrap_global = true,
                       .hash_padding = true,
                       .dedup = !entry.at("allow_duplicate_attention").get<bool>(),
                       .in_bucket = !entry.at("attend_across_buckets").get<bool>(),
                       .causal = entry.at("causal").get<bool>()};
    const at::Tensor mask = padded ? set.tensor("mask").to(at::kBool) : at::Tensor();
    // [BH, dh, R, nb/2] -> [B, H, D, R, nb/2]
    const at::Tensor rotations = set.tensor(fmt::format("rot_R{}", rounds)).to(at::kDouble).unsqueeze(1);
    const auto run = [&](bool plain) {
      const at::Tensor qk = leaf(set.tensor("qk").unsqueeze(1)), v = leaf(set.tensor("v").unsqueeze(1));
      const Parts parts = lsh_parts(qk, v, mask, rotations, options);
      const at::Tensor out = plain ? attend_plain(parts) : attend(parts);
      at::Tensor g = set.tensor("g").to(at::kDouble).unsqueeze(1);
      // A padded query of the reference gives its own value back; here it gives nothing.
      if (padded) g = g.masked_fill(mask.logical_not().view({2, 1, 64, 1}), 0);
      return graded(out, {qk, v}, g);
    };
    const auto compared = [&](const at::Tensor& got, const std::string& what) {
      at::Tensor expected = set.tensor(what).to(at::kDouble), ours = got.squeeze(1);
      if (padded) {
        const at::Tensor hidden = mask.logical_not().unsqueeze(-1);
        expected = expected.masked_fill(hidden, 0);
        ours = ours.masked_fill(hidden, 0);
      }
      expect_close(ours, expected, 2e-6, what);
    };
    if (options.dedup) {
      // The reference counts a pair round by round, so that it does not count one that meets across two rounds of its
      // ring, and divides by 1e-9 there. Such pairs are of queries in the first block of a round.
      const at::Tensor buckets = set.tensor(fmt::format("buckets_R{}", rounds)).to(at::kLong).view({2, rounds, 64});
      const at::Tensor place = (buckets * 64 + at::arange(64, at::kLong)).argsort(2, false).argsort(2, false);
      const at::Tensor counted = place.ge(8).all(1).unsqueeze(-1);  // [2, 64, 1]
      ASSERT_GT(counted.sum().item<int64_t>(), 10);
      for (const bool plain : {false, true}) {
        at::Tensor ours = run(plain).out.squeeze(1), expected = set.tensor(name + "/out").to(at::kDouble);
        at::Tensor shown = counted;
        if (padded) shown = shown.logical_and(mask.unsqueeze(-1));
        expect_close(ours.masked_fill(shown.logical_not(), 0), expected.masked_fill(shown.logical_not(), 0), 2e-6,
                     name);
      }
      ++checked;
      continue;
    }
    for (const bool plain : {false, true}) {
      const Graded got = run(plain);
      compared(got.out, name + "/out");
      compared(got.grads[0], name + "/dqk");
      compared(got.grads[1], name + "/dv");
    }
    if (set.contains(name + "/out_roundwrap")) {
      options.wrap_global = false;
      compared(run(false).out, name + "/out_roundwrap");
    }
    ++checked;
  }
  EXPECT_GE(checked, 12);
}

TEST(MechanismParity, LinformerEqualsTheReference) {
  SKIP_WITHOUT_SHARED("fixtures/linformer_a.safetensors");
  const TensorSet set = TensorSet::open(shared("fixtures/linformer_a.safetensors"));
  const Json described = read_json(shared("fixtures/linformer_a.json"));
  const auto slots = described.at("slots").get<int64_t>(), heads = described.at("heads").get<int64_t>(),
             longest = described.at("seq_len").get<int64_t>(), width = described.at("dim").get<int64_t>();
  int checked = 0;
  for (const Json& entry : described.at("cases")) {
    if (entry.at("share_kv").get<bool>() || entry.at("one_kv_head").get<bool>()) continue;  // other models
    const auto name = entry.at("name").get<std::string>() + "/";
    const auto weight = [&](const char* which) { return leaf(set.tensor(name + "w/" + which)); };
    const bool cross = set.contains(name + "context");
    const bool tied = entry.at("proj_v_equals_proj_k").get<bool>();
    const at::Tensor x = leaf(set.tensor(name + "x")), source = cross ? leaf(set.tensor(name + "context")) : x;
    const at::Tensor q = weight("to_q.weight"), k = weight("to_k.weight"), v = weight("to_v.weight");
    const auto mechanism = make_mechanism(
        fmt::format("linformer:{},max={},share_heads{}", slots, longest, tied ? "" : ",separate_kv"),
        {.use = cross ? Use::kCross : Use::kEncoder, .width = width, .heads = heads, .options = at::kDouble});
    {
      const at::NoGradGuard no_grad;
      const auto own = mechanism->named_parameters();
      own["projection.weight"].copy_(set.tensor(name + "w/proj_k").t().unsqueeze(0));
      if (!tied) own["value_projection.weight"].copy_(set.tensor(name + "w/proj_v").t().unsqueeze(0));
    }
    const auto split = [&](const at::Tensor& rows, const at::Tensor& map) {
      return nn::split_heads(at::matmul(rows, map.t()), heads);
    };
    const AttentionInput input{.query = split(x, q), .key = split(source, k), .value = split(source, v)};
    Parts parts;
    if (cross) {
      const Source made = mechanism->source(input);
      parts = {dense_part(input.query, made.key, made.value, {.key_mask = made.key_mask})};
    } else {
      parts = mechanism->parts(input);
    }
    const at::Tensor out =
        at::matmul(nn::join_heads(attend(parts)), set.tensor(name + "w/to_out.weight").to(at::kDouble).t()) +
        set.tensor(name + "w/to_out.bias").to(at::kDouble);
    expect_close(out, set.tensor(name + "out").to(at::kDouble), 2e-6, name + "out");
    const Graded got =
        graded(out, {x, q, k, v, mechanism->named_parameters()["projection.weight"]}, set.tensor(name + "g"));
    const char* names[] = {"grad/x", "grad/to_q.weight", "grad/to_k.weight", "grad/to_v.weight"};
    for (size_t i = 0; i < 4; ++i)
      expect_close(got.grads[i], set.tensor(name + names[i]).to(at::kDouble), 2e-6, name + names[i]);
    at::Tensor projection = set.tensor(name + "grad/proj_k").to(at::kDouble);
    if (tied) projection = projection + set.tensor(name + "grad/proj_v").to(at::kDouble);
    expect_close(got.grads[4].squeeze(0).t(), projection, 4e-6, name + "projection");
    ++checked;
  }
  EXPECT_GE(checked, 3);
}

}  // namespace
}  // namespace palimpsest::attention
