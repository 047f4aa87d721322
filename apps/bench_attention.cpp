// SPDX-License-Identifier: Apache-2.0
// `palimpsest bench attention`: one layer's attention, projections left out.
#include "apps/bench.h"
#include "apps/command.h"
#include "palimpsest/attention/mechanism.h"
#include "palimpsest/core/error.h"
#include "palimpsest/nn/byte_counter.h"

namespace palimpsest::app {

namespace {

using attention::AttentionInput;
using attention::Use;

/// The inputs of one layer; leaves of the graph where gradients are wanted.
AttentionInput random_input(const BenchFlags& flags, at::ScalarType dtype) {
  at::manual_seed(static_cast<uint64_t>(flags.seed));
  const int64_t keys = flags.source_length > 0 ? flags.source_length : flags.length;
  const auto leaf = [&](at::IntArrayRef shape) { return at::randn(shape, dtype).requires_grad_(flags.backward); };
  return {.query = leaf({flags.batch, flags.heads, flags.length, flags.head_dim}),
          .key = leaf({flags.batch, flags.heads, keys, flags.head_dim}),
          .value = leaf({flags.batch, flags.heads, keys, flags.head_dim}),
          .tokens = leaf({flags.batch, keys, flags.heads * flags.head_dim})};
}

/// Reads tokens first to first + count (the inputs hold LENGTH of them, read again and again).
attention::Parts step(const attention::Mechanism& mechanism, const AttentionInput& input, int64_t first, int64_t count,
                      attention::State& state) {
  const int64_t begin = first % (input.query.size(2) - count + 1);
  const auto cut = [&](const at::Tensor& x, int64_t axis) { return x.defined() ? x.narrow(axis, begin, count) : x; };
  return mechanism.step({.query = cut(input.query, 2),
                         .key = cut(input.key, 2),
                         .value = cut(input.value, 2),
                         .tokens = cut(input.tokens, 1),
                         .control = cut(input.control, 2)},
                        state, "layer");
}

/// The state after so many tokens.
attention::State state_after(const attention::Mechanism& mechanism, const AttentionInput& input, int64_t tokens) {
  attention::State state;
  const int64_t slice = std::min<int64_t>(512, input.query.size(2));
  for (int64_t first = 0; first < tokens; first += slice)
    step(mechanism, input, first, std::min(slice, tokens - first), state);
  return state;
}

}  // namespace

void list_mechanisms(bool json) {
  for (const attention::MechanismKind& kind : attention::mechanism_kinds()) {
    std::vector<std::string> uses;
    for (const Use use : {Use::kEncoder, Use::kCross, Use::kCausal}) {
      const bool any = std::any_of(kind.examples.begin(), kind.examples.end(), [&](const std::string& text) {
        try {
          attention::make_mechanism(text, {.use = use, .width = 8, .heads = 2, .options = at::kMeta});
          return true;
        } catch (const Error&) {
          return false;
        }
      });
      if (any) uses.push_back(attention::use_name(use));
    }
    if (json) {
      print_json({{"name", kind.name}, {"form", kind.form}, {"summary", kind.summary}, {"uses", uses}});
    } else {
      print_line(fmt::format("{}\n    {} ({})", kind.form, kind.summary, fmt::join(uses, ", ")));
    }
  }
}

Measured bench_attention(const BenchFlags& flags) {
  if (flags.causal && flags.source_length > 0)
    throw usage_error("a source is read as a whole", "--causal", "leave --causal or --source-length away");
  if (flags.after >= 0 && (!flags.causal || flags.backward))
    throw usage_error("steps are causal and without gradients", "--after", "give --causal, and no --backward");
  if (flags.backward && flags.source_length > 0)
    throw usage_error("gradients are measured without a source", "--backward", "leave --source-length away");
  if (!flags.memory.empty())
    throw usage_error("a layer's memory is measured with its model", "--memory", "use bench encode or bench train");
  const at::ScalarType dtype = flags.model.dtype.empty() ? at::kFloat : nn::dtype_of(flags.model.dtype);
  const std::string text = flags.model.texts.attention.empty() ? "dense" : flags.model.texts.attention;
  const at::AutoGradMode with_graph(flags.backward);
  AttentionInput input = random_input(flags, dtype);
  const at::Tensor grad = at::randn(input.query.sizes(), dtype);
  std::vector<at::Tensor> leaves = {input.query, input.key, input.value};
  Measured measured;
  std::shared_ptr<attention::Mechanism> mechanism;
  const Use use = flags.source_length > 0 ? Use::kCross : flags.causal ? Use::kCausal : Use::kEncoder;
  if (text != "sdpa") {
    mechanism = attention::make_mechanism(
        text, {.use = use, .width = flags.heads * flags.head_dim, .heads = flags.heads, .options = dtype});
    mechanism->initialize(static_cast<uint64_t>(flags.seed), text);
    // What a learned control says is measured apart: it is a projection like those of the queries.
    std::vector<double> control_s;
    for (int64_t i = 0; i < flags.warm_up + flags.repeats; ++i) {
      const auto start = Clock::now();
      const at::Tensor control = mechanism->learned_control(input);
      if (i >= flags.warm_up) control_s.push_back(seconds_since(start));
      if (control.defined()) input.control = control.detach().requires_grad_(flags.backward);
    }
    measured.more["control_s"] = input.control.defined() ? median(control_s) : 0;
    if (input.control.defined()) leaves.push_back(input.control);
  }
  attention::Source source;
  if (use == Use::kCross) {
    std::vector<double> source_s;
    for (int64_t i = 0; i < flags.warm_up + flags.repeats; ++i) {
      const auto start = Clock::now();
      source = mechanism ? mechanism->source(input) : attention::Source{input.key, input.value, {}};
      if (i >= flags.warm_up) source_s.push_back(seconds_since(start));
    }
    measured.more["source_s"] = median(source_s);
  }
  const auto attend = [&] {
    if (!mechanism) {
      return use == Use::kCross
                 ? at::scaled_dot_product_attention(input.query, source.key, source.value)
                 : at::scaled_dot_product_attention(input.query, input.key, input.value, {}, 0, flags.causal);
    }
    if (use == Use::kCross) {
      return attention::attend(
          {attention::dense_part(input.query, source.key, source.value, {.key_mask = source.key_mask})});
    }
    return attention::attend(mechanism->parts(input));
  };
  if (flags.after >= 0) {
    if (!mechanism) throw usage_error("sdpa keeps no state", "--after", "give --attention dense");
    if (const std::string why = mechanism->no_stream(); !why.empty())
      throw usage_error(text + " is not read token by token: " + why, "--after");
    attention::State state = state_after(*mechanism, input, flags.after);
    int64_t read = flags.after;
    const Json before = measured.more;
    measured = repeat(flags, [&] {
      for (int64_t i = 0; i < flags.length; ++i) attention::attend(step(*mechanism, input, read++, 1, state));
    });
    measured.more = before;
    measured.more["seconds_per_step"] = median(measured.seconds) / static_cast<double>(flags.length);
    measured.more["state_bytes"] = state.bytes();
    return measured;
  }
  nn::ByteCounter bytes;
  int64_t most = 0;
  const auto work = [&] {
    bytes.restart_peak();
    const int64_t before = bytes.now();
    int64_t kept = 0;
    {
      const at::Tensor out = attend();
      kept = out.numel() * out.element_size();
      if (flags.backward) {
        const auto grads = torch::autograd::grad({out}, leaves, {grad}, {}, false, /*allow_unused=*/true);
        for (const at::Tensor& each : grads)
          if (each.defined()) kept += each.numel() * each.element_size();
      }
      most = std::max(most, bytes.peak() - before - kept);
    }
  };
  const Json more = measured.more;
  measured = repeat(flags, work);
  measured.more = more;
  // Beyond inputs and outputs; gradients are outputs.
  measured.more["peak_bytes"] = std::max<int64_t>(0, most);
  if (mechanism && flags.causal) {
    const at::NoGradGuard no_grad;
    const bool streams = mechanism->no_stream().empty();
    // A bounded state is as large after one token as after all.
    const int64_t tokens = mechanism->is_bounded() ? 1 : flags.length;
    measured.more["state_bytes"] = streams ? state_after(*mechanism, input, tokens).bytes() : 0;
    measured.more["bounded"] = streams && mechanism->is_bounded();
  }
  measured.more["attention"] = text;
  measured.more["use"] = attention::use_name(use);
  measured.more["heads"] = flags.heads;
  measured.more["head_dim"] = flags.head_dim;
  return measured;
}

}  // namespace palimpsest::app
