// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/mechanism.h"

#include "palimpsest/core/error.h"

namespace palimpsest::attention {

#define PALIMPSEST_MECHANISM(name) MechanismKind name##_mechanism();
#include "palimpsest/attention/mechanisms.def"
#undef PALIMPSEST_MECHANISM

std::string use_name(Use use) { return use == Use::kEncoder ? "encoder" : use == Use::kCross ? "cross" : "causal"; }

const std::vector<MechanismKind>& mechanism_kinds() {
  static const std::vector<MechanismKind> kinds = {
#define PALIMPSEST_MECHANISM(name) name##_mechanism(),
#include "palimpsest/attention/mechanisms.def"
#undef PALIMPSEST_MECHANISM
  };
  return kinds;
}

std::shared_ptr<Mechanism> make_mechanism(const std::string& text, const MechanismPlace& place) {
  MechanismArguments arguments(text);
  std::vector<std::string> names;
  for (const MechanismKind& kind : mechanism_kinds()) {
    names.push_back(kind.name);
    if (kind.name != arguments.name()) continue;
    auto made = kind.make(arguments, place);
    arguments.finish(kind.form);
    if (const std::string why = made->refusal(); !why.empty()) {
      arguments.fail(fmt::format("{} cannot be used as {} attention: {}", kind.name, use_name(place.use), why),
                     "choose another mechanism there");
    }
    return made;
  }
  const std::string nearest = nearest_name(arguments.name(), names);
  arguments.fail(
      fmt::format("unknown attention \"{}\"", printable(arguments.name())),
      nearest.empty() ? fmt::format("there are {}", fmt::join(names, ", ")) : fmt::format("did you mean {}?", nearest));
}

at::Tensor token_positions(const at::Tensor& key_mask, int64_t batch, int64_t length, const at::Device& device) {
  if (key_mask.defined()) return key_mask.to(at::kLong).cumsum(1).sub(1).clamp_min(0);
  return at::arange(length, at::TensorOptions(at::kLong).device(device)).unsqueeze(0).expand({batch, length});
}

Parts Mechanism::parts(const AttentionInput& input) const {
  if (!input.key_mask.defined()) return own_parts(input);
  // Nobody reads a padded query's result, but what is not a number there would reach the keys' gradients.
  AttentionInput clean = input;
  const at::Tensor padded = input.key_mask.logical_not();
  clean.query = input.query.masked_fill(padded.view({padded.size(0), 1, padded.size(1), 1}), 0);
  return own_parts(clean);
}

Parts Mechanism::step(const AttentionInput& /*next*/, State& /*state*/, const std::string& /*name*/) const {
  throw internal_error("this mechanism has no steps");
}

Source Mechanism::source(const AttentionInput& /*input*/) const {
  throw internal_error("this mechanism reads no source");
}

}  // namespace palimpsest::attention
