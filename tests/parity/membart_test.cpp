// SPDX-License-Identifier: Apache-2.0
// Parity with the MemBART authors' own classes (numbers in tests/fixtures): four steps, three lanes, resets in the
// middle, both step weightings, all gradients, through the code that `palimpsest run` uses.
#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/error.h"
#include "palimpsest/train/run_model.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"

namespace palimpsest {
namespace {

using checkpoint::Safetensors;
using test::expect_close;
using test::fixture;

constexpr int64_t kSteps = 4, kLanes = 3;

std::shared_ptr<models::BartModel> official_model(at::ScalarType dtype) {
  return checkpoint::load_model(fixture("membart_official_a"), {.dtype = dtype}).bart();
}

train::TensorMap run_inputs(at::ScalarType dtype) {
  const auto file = Safetensors::open(fixture("membart_run_a_inputs.safetensors"));
  train::TensorMap inputs;
  for (const auto& info : file.tensors()) {
    inputs[info.name] = file.tensor(info.name);
    if (inputs[info.name].is_floating_point()) inputs[info.name] = inputs[info.name].to(dtype);
  }
  return inputs;
}

struct Precision {
  at::ScalarType dtype;
  const char* reference;   // file of the step values
  double value, gradient;  // tolerances of the fixtures' README
};

class MembartParity : public ::testing::TestWithParam<Precision> {};

INSTANTIATE_TEST_SUITE_P(Float64, MembartParity,
                         ::testing::Values(Precision{at::kDouble, "membart_tiny_a_f64.safetensors", 1e-11, 1e-10}));
INSTANTIATE_TEST_SUITE_P(Float64AgainstFloat32, MembartParity,
                         ::testing::Values(Precision{at::kDouble, "membart_tiny_a.safetensors", 2e-6, 2e-6}));
INSTANTIATE_TEST_SUITE_P(Float32, MembartParity,
                         ::testing::Values(Precision{at::kFloat, "membart_tiny_a.safetensors", 3e-5, 3e-5}));

const std::vector<std::string> kAlso = {"gate",    "hidden_states.0", "hidden_states.1", "hidden_states.2", "slots.0",
                                        "slots.1", "slots.2",         "grad.*",          "grad.memory"};

TEST_P(MembartParity, EveryStepEqualsTheAuthorsClasses) {
  const auto [dtype, reference_name, tolerance, unused] = GetParam();
  const auto reference = Safetensors::open(fixture(reference_name));
  auto model = official_model(dtype);
  const auto outputs = train::run_model(*model, run_inputs(dtype), kAlso);
  const auto inputs = run_inputs(dtype);
  for (int64_t t = 0; t < kSteps; ++t) {
    const std::string step = fmt::format("s{}/", t + 1);
    const auto expected = [&](const std::string& name) { return reference.tensor(step + name); };
    const at::Tensor mask = inputs.at("attention_mask")[t].ne(0).unsqueeze(-1),
                     target_mask = inputs.at("decoder_attention_mask")[t].ne(0).unsqueeze(-1);
    // The references are padded to the step's own longest row, the run to the longest of all.
    const auto rows = [&](const std::string& name, const at::Tensor& real, const std::string& ours) {
      const at::Tensor want = expected(name);
      const int64_t length = want.size(1);
      const at::Tensor keep = real.slice(1, 0, length);
      expect_close(outputs.at(ours)[t].slice(1, 0, length) * keep, want * keep, tolerance, step + name);
    };
    rows("hidden", mask, "hidden");
    rows("logits", target_mask, "logits");
    expect_close(outputs.at("memory")[t], expected("mem_out"), tolerance, step + "mem_out");
    expect_close(outputs.at("slots.0")[t], expected("mem_norm"), tolerance, step + "mem_norm");
    expect_close(outputs.at("gate")[t], expected("gate"), tolerance, step + "gate");
    expect_close(outputs.at("step_losses")[t].view({1}), expected("loss"), tolerance, step + "loss");
    if (t == 1) {
      rows("embed", mask, "hidden_states.0");
      rows("layer0_tok", mask, "hidden_states.1");
      rows("layer1_tok", mask, "hidden_states.2");
      expect_close(outputs.at("slots.1")[t], expected("layer0_slot"), tolerance, step + "layer0_slot");
      expect_close(outputs.at("slots.2")[t], expected("layer1_slot"), tolerance, step + "layer1_slot");
    }
  }
  expect_close(outputs.at("step_losses").sum().view({1}), reference.tensor("total_loss"), tolerance * 4, "total_loss");
}

TEST_P(MembartParity, EveryGradientEqualsTheAuthorsClasses) {
  const auto [dtype, reference_name, unused, tolerance] = GetParam();
  // The file of all gradients is float32; the float64 file holds some of them in full.
  const bool full = std::string(reference_name).find("_f64") != std::string::npos;
  const auto reference = Safetensors::open(fixture(full ? reference_name : "membart_tiny_a_grads.safetensors"));
  auto model = official_model(dtype);
  const auto outputs = train::run_model(*model, run_inputs(dtype), kAlso);
  int compared = 0;
  for (const auto& info : reference.tensors()) {
    if (info.name.rfind("g/", 0) != 0) continue;
    const std::string name = info.name.substr(2);
    expect_close(outputs.at(name == "M0" ? "grad.memory" : "grad.model." + name), reference.tensor(info.name),
                 tolerance, info.name);
    ++compared;
  }
  EXPECT_GE(compared, full ? 9 : 100);
}

TEST_P(MembartParity, TheAuthorsStepWeightsGiveTheirMemoryGradient) {
  const auto [dtype, reference_name, unused, tolerance] = GetParam();
  const bool full = std::string(reference_name).find("_f64") != std::string::npos;
  const auto reference = Safetensors::open(fixture(full ? reference_name : "membart_tiny_a_grads.safetensors"));
  auto model = official_model(dtype);
  auto inputs = run_inputs(dtype);
  inputs["step_weights"] = at::pow(2.0, at::arange(1, kSteps + 1, at::kDouble)) / 30.0;
  const auto outputs = train::run_model(*model, inputs, {"grad.memory"});
  expect_close(outputs.at("grad.memory"), reference.tensor("g_pow2/M0"), tolerance, "g_pow2/M0");
}

TEST(MembartParity, LanesResetAtTheFirstStepHaveNoMemoryGradient) {
  auto model = official_model(at::kDouble);
  const auto outputs = train::run_model(*model, run_inputs(at::kDouble), {"grad.memory"});
  const at::Tensor reset = run_inputs(at::kDouble).at("reset")[0];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const double largest = outputs.at("grad.memory")[lane].abs().max().item<double>();
    if (reset[lane].item<int64_t>() != 0) {
      EXPECT_EQ(largest, 0.0);
    } else {
      EXPECT_GT(largest, 1e-3);
    }
  }
}

TEST(MembartParity, TheProgramGivesTheAuthorsOutputs) {
  const test::TemporaryFolder folder;
  for (const char* dtype : {"float32", "float64"}) {
    const auto result = test::run_program(
        fmt::format("run --model {} --inputs {} --outputs {} --also gate --dtype {}", fixture("membart_official_a"),
                    fixture("membart_run_a_inputs.safetensors"), folder.path("out.safetensors"), dtype));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto ours = Safetensors::open(folder.path("out.safetensors"));
    const auto theirs = Safetensors::open(fixture("membart_run_a_outputs.safetensors"));
    const double tolerance = std::string(dtype) == "float32" ? 3e-5 : 2e-6;
    const auto inputs = run_inputs(at::kFloat);
    for (const auto& info : theirs.tensors()) {
      at::Tensor keep = at::ones({1});
      if (info.name == "hidden") keep = inputs.at("attention_mask").unsqueeze(-1);
      if (info.name == "logits") keep = inputs.at("decoder_attention_mask").unsqueeze(-1);
      expect_close(ours.tensor(info.name) * keep, theirs.tensor(info.name) * keep, tolerance,
                   std::string(dtype) + " " + info.name);
    }
  }
}

TEST(Sizes, BaseAndLargeHaveThePapersParameters) {
  const auto count = [](models::BartConfig config, int64_t slots, bool shared) {
    config.memory = {.kind = "membart", .slots = slots, .shared = shared};
    const models::BartModel model(config, at::TensorOptions().device(at::kMeta));
    return nn::parameter_count(model);
  };
  // ALGORITHMS 3.2: 139,420,416 + 43,169,281 and 406,291,456 + 152,338,433 (the paper says 183M and 558M).
  EXPECT_EQ(count(models::BartConfig::base(), 64, false), 182589697);
  EXPECT_EQ(count(models::BartConfig::large(), 128, false), 406291456 + 152338433);
  EXPECT_EQ(count(models::BartConfig::base(), 64, false) - count(models::BartConfig::base(), 64, true),
            42527232);  // M15
  EXPECT_EQ(count(models::BartConfig::base(), 0, false), 139420416);
}

}  // namespace
}  // namespace palimpsest
