// SPDX-License-Identifier: Apache-2.0
// Random tiny folders of transformers (tools/fixtures/model_folders.py): logits, every hidden state and every gradient
// in float64 and float32, straight and after the folder was written again by us.
#include <filesystem>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/train/run_model.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"

namespace palimpsest {
namespace {

using train::TensorMap;

TensorMap read(const std::string& path) {
  const auto file = checkpoint::Safetensors::open(path);
  TensorMap tensors;
  for (const auto& info : file.tensors()) tensors[info.name] = file.tensor(info.name);
  return tensors;
}

class Folders : public testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return test::fixture(std::string("folders/") + GetParam()); }
  void compare(const std::string& model_folder, at::ScalarType dtype, double tolerance) const {
    const auto loaded = checkpoint::load_model(model_folder, {.dtype = dtype});
    const TensorMap golden = read(folder() + "/golden.safetensors");
    std::vector<std::string> also;
    for (const auto& [name, tensor] : golden) {
      if (name != "logits" && name != "hidden" && name != "step_losses") also.push_back(name);
    }
    EXPECT_GT(also.size(), 20U);
    const TensorMap got = train::run_model(*loaded.model, read(folder() + "/inputs.safetensors"), also);
    for (const auto& [name, tensor] : golden)
      test::expect_close(got.at(name).to(at::kDouble), tensor, tolerance, std::string(GetParam()) + ", " + name);
  }
};

TEST_P(Folders, EqualTheReferenceInEveryOutputAndGradient) {
  compare(folder(), at::kDouble, 1e-10);
  compare(folder(), at::kFloat, 3e-5);
}

TEST_P(Folders, SurviveBeingWrittenAgain) {
  const test::TemporaryFolder copy;
  const auto loaded = checkpoint::load_model(folder());
  checkpoint::save_model(copy.path(), *loaded.model, loaded.training, nullptr, {.base_config = loaded.config});
  compare(copy.path(), at::kDouble, 1e-10);
}

INSTANTIATE_TEST_SUITE_P(All, Folders,
                         testing::Values("bart_plain", "bart_scaled_relu", "bart_untied", "gpt2_plain",
                                         "gpt2_scaled_untied"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace palimpsest
