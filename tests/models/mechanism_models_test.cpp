// SPDX-License-Identifier: Apache-2.0
// Every mechanism with every memory in every place of every family: forward, backward, padding, steps, save and load;
// or its refusal. docs/attention.md shows what came out, and is compared with it here.
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/core/error.h"
#include "palimpsest/models/gpt2.h"
#include "palimpsest/nn/loss.h"
#include "tests/models/small_bart.h"
#include "tests/support/paths.h"

namespace palimpsest::models {
namespace {

using test::expect_close;

constexpr int64_t kVocabulary = 40, kModelWidth = 16, kSource = 30, kTargets = 24;

/// A place where a mechanism may stand.
struct Place {
  std::string title, key;  ///< of the table and of the `palimpsest` object
  bool gpt2 = false;
};
const std::vector<Place> kPlaces = {{"BART, encoder", "attention"},
                                    {"BART, cross", "cross_attention"},
                                    {"BART, decoder", "decoder_attention"},
                                    {"GPT-2", "attention", true}};
const std::vector<std::string> kMemories = {"none",        "membart:3",          "membart:3,shared", "membart:3,l2",
                                            "memformer:3", "memformer:3,rezero", "memformer:3,gate"};

std::shared_ptr<Model> make(const Place& place, const std::string& mechanism, const std::string& memory) {
  Json config;
  if (place.gpt2) {
    Gpt2Config sizes;
    sizes.vocab_size = kVocabulary;
    sizes.n_positions = 64;
    sizes.n_embd = kModelWidth;
    sizes.n_layer = sizes.n_head = 2;
    sizes.resid_pdrop = sizes.embd_pdrop = sizes.attn_pdrop = 0;
    config = sizes.to_json();
  } else {
    BartConfig sizes = small();
    sizes.vocab_size = kVocabulary;
    sizes.d_model = kModelWidth;
    sizes.max_position_embeddings = 64;
    sizes.dropout = 0;
    sizes.memory = {};
    config = sizes.to_json();
  }
  config["palimpsest"]["format"] = 1;
  config["palimpsest"]["memory"] = memory;
  config["palimpsest"][place.key] = mechanism;
  const auto model = make_model(config, "test", at::kDouble);
  model->initialize({.std = 0.3, .slot_std = 1, .seed = 5});
  model->eval();
  return model;
}

at::Tensor ids(uint64_t seed, int64_t rows, int64_t length) {
  return some_ids(seed, rows, length).remainder(kVocabulary);
}

/// Hidden rows of the target after one segment whose memory came from another.
at::Tensor run(const Model& model, const at::Tensor& before, const at::Tensor& source, const at::Tensor& mask,
               const at::Tensor& target) {
  EncodeInput input{.ids = source, .mask = mask};
  if (model.memory_options().enabled()) input.memory = model.encode({.ids = before}).memory;
  return model.decode(target, {}, model.encode(input));
}

/// All checks of one cell.
void check(const std::shared_ptr<Model>& model, const std::string& what, bool streams) {
  const at::Tensor before = ids(1, 2, kSource), source = ids(2, 2, kSource), target = ids(3, 2, kTargets);
  at::Tensor mask = at::ones({2, kSource}, at::kBool);
  mask[1].slice(0, kSource - 11).fill_(false);

  const at::Tensor hidden = run(*model, before, source, mask, target);
  ASSERT_EQ(hidden.sizes(), at::IntArrayRef({2, kTargets, kModelWidth})) << what;
  nn::target_loss(model->logits(hidden), ids(4, 2, kTargets)).nll.backward();
  int graded = 0;
  for (const auto& entry : model->named_parameters()) {
    if (!entry.value().grad().defined()) continue;
    ++graded;
    EXPECT_TRUE(at::isfinite(entry.value().grad()).all().item<bool>()) << what << ", " << entry.key();
  }
  EXPECT_GT(graded, 10) << what;

  const at::NoGradGuard no_grad;
  // The padded row alone, without its padding.
  const at::Tensor alone =
      run(*model, before.narrow(0, 1, 1), source.narrow(0, 1, 1).slice(1, 0, kSource - 11), {}, target.narrow(0, 1, 1));
  expect_close(hidden.narrow(0, 1, 1).detach(), alone, 1e-9, what + ", padding");

  const test::TemporaryFolder folder;
  checkpoint::save_model(folder.path(), *model, {}, nullptr);
  const auto loaded = checkpoint::load_model(folder.path());
  // Numbers in a file's map are not aligned as allocated ones are, which may change the last bit of a product.
  expect_close(run(*loaded.model, before, source, mask, target), hidden, 1e-12, what + ", saved and loaded");

  if (!streams) return;
  // Written token by token, as all at once.
  if (const auto* bart = dynamic_cast<const BartModel*>(model.get())) {
    EncodeInput input{.ids = source, .mask = mask};
    if (bart->memory) input.memory = bart->encode({.ids = before}).memory;
    const EncoderOutput encoded = bart->encode(input);
    DecoderState state;
    std::vector<at::Tensor> parts;
    for (const int64_t count : {int64_t{1}, int64_t{7}, int64_t{1}, kTargets - 9})
      parts.push_back(bart->decode(target.narrow(1, state.columns, count), {}, encoded, &state));
    expect_close(at::cat(parts, 1), hidden, 1e-9, what + ", in steps");
  } else {
    const auto& gpt2 = dynamic_cast<const Gpt2Model&>(*model);
    const EncoderOutput encoded = gpt2.encode({.ids = source, .mask = mask});
    const at::Tensor all = at::cat({encoded.prompt, target}, 1),
                     all_mask = at::cat({encoded.prompt_mask, at::ones({2, kTargets}, at::kBool)}, 1);
    CausalState state;
    std::vector<at::Tensor> parts;
    for (const int64_t count : {int64_t{5}, int64_t{1}, int64_t{30}, kSource + kTargets - 36}) {
      const int64_t first = state.columns;
      parts.push_back(gpt2.forward(all.narrow(1, first, count), all_mask.narrow(1, 0, first + count), &state));
    }
    expect_close(at::cat(parts, 1).narrow(1, kSource, kTargets), hidden, 1e-9, what + ", in steps");
  }
}

struct Cell {
  int tested = 0;
  std::string refused;
};

std::string first_clause(const std::string& text) {
  // What is said behind "as … attention: ".
  const size_t at = text.find("attention: ");
  std::string tail = at == std::string::npos ? text : text.substr(at + 11);
  for (const char* end : {" (", "\n"}) tail = tail.substr(0, tail.find(end));
  return tail;
}

TEST(MechanismsInModels, EveryCellIsTestedOrRefusedAndTheDocumentSaysSo) {
  std::ostringstream table;
  table << "| |";
  for (const Place& place : kPlaces) table << ' ' << place.title << " |";
  table << "\n| --- |";
  for (size_t i = 0; i < kPlaces.size(); ++i) table << " --- |";
  table << '\n';
  std::vector<std::string> reasons;
  int tested = 0, refused = 0;
  for (const auto& kind : attention::mechanism_kinds()) {
    for (const std::string& text : kind.examples) {
      table << "| `" << text << "` |";
      for (const Place& place : kPlaces) {
        Cell cell;
        for (const std::string& memory : kMemories) {
          // GPT-2 has no encoder that a memory could stand in.
          if (place.gpt2 && memory != "none") continue;
          const std::string what = fmt::format("{} in {}, memory {}", text, place.title, memory);
          std::shared_ptr<Model> model;
          try {
            model = make(place, text, memory);
          } catch (const Error& error) {
            cell.refused = first_clause(error.problem());
            ++refused;
            continue;
          }
          const auto* bart = dynamic_cast<const BartModel*>(model.get());
          const auto& written =
              bart != nullptr ? *bart->decoder_attention : *dynamic_cast<const Gpt2Model&>(*model).attention;
          check(model, what, written.no_stream().empty());
          ++cell.tested;
          ++tested;
        }
        ASSERT_TRUE(cell.tested == 0 || cell.refused.empty()) << text << " depends on the memory";
        if (cell.refused.empty()) {
          table << ' ' << cell.tested << " |";
          continue;
        }
        const auto known = std::find(reasons.begin(), reasons.end(), cell.refused);
        table << " no: " << (known - reasons.begin()) + 1 << " |";
        if (known == reasons.end()) reasons.push_back(cell.refused);
      }
      table << '\n';
    }
  }
  std::ostringstream block;
  block << "<!-- from tests/models/mechanism_models_test.cpp -->\n\n"
        << table.str() << '\n'
        << fmt::format("{} cells are tested (a number is how many memories, of {}), {} refused:\n\n", tested,
                       kMemories.size(), refused);
  for (size_t i = 0; i < reasons.size(); ++i) block << i + 1 << ". " << reasons[i] << '\n';
  block << "\n<!-- end -->";

  const std::string path = test::source_folder() + "/docs/attention.md";
  std::ifstream in(path);
  std::stringstream content;
  content << in.rdbuf();
  std::string document = content.str();
  const size_t begin = document.find("<!-- from tests/models/mechanism_models_test.cpp -->"),
               end = document.find("<!-- end -->", begin);
  ASSERT_NE(end, std::string::npos) << path << " has no place for the table";
  const std::string written = document.substr(begin, end + 12 - begin);
  if (const char* update = std::getenv("PALIMPSEST_UPDATE_DOCS"); update != nullptr && *update == '1') {
    std::ofstream(path) << document.replace(begin, end + 12 - begin, block.str());
    return;
  }
  EXPECT_EQ(written, block.str()) << "run this test once with PALIMPSEST_UPDATE_DOCS=1";
}

TEST(MechanismsInModels, LayersShareTheirControlAndItsGradientIsTheSum) {
  // A19: the tied control's gradient is the sum over layers of what untied ones get.
  const Place place{"GPT-2", "attention", true};
  const auto tied = make(place, "abc:4", "none"), untied = make(place, "abc:4,untied", "none");
  const auto of_tied = tied->named_parameters(), of_untied = untied->named_parameters();
  const std::string shared = "attention.shared_abc_4_control.weight";
  {
    const at::NoGradGuard no_grad;
    for (const auto& entry : of_untied) {
      const bool control = entry.key().ends_with(".control.weight");
      entry.value().copy_(control ? of_tied[shared] : of_tied[entry.key()]);
    }
  }
  for (const auto& model : {tied, untied})
    nn::target_loss(model->logits(model->decode(ids(3, 2, 20), {}, model->encode({.ids = ids(2, 2, 5)}))),
                    ids(4, 2, 20))
        .nll.backward();
  expect_close(
      of_tied[shared].grad(),
      of_untied["attention.layers_0.control.weight"].grad() + of_untied["attention.layers_1.control.weight"].grad(),
      1e-10);
}

TEST(MechanismsInModels, MayDifferFromLayerToLayer) {
  const auto model = make({"", "attention", true}, "0=window:5,1=abc:4", "none");
  check(model, "mixed", true);
  EXPECT_THROW(make({"", "attention", true}, "0=window:5", "none"), Error);
  EXPECT_THROW(make({"", "decoder_attention", true}, "window:5", "none"), Error);
}

TEST(MechanismsInModels, ABoundedModelGoesOnPastItsPositions) {
  for (const char* attention : {"window:6", "abc:4", "0=compressive:window=5,slots=3,rate=2,1=random:4"}) {
    for (const char* positions : {"segment:16", "none"}) {
      auto config = Gpt2Config();
      config.vocab_size = kVocabulary;
      config.n_positions = 16;
      config.n_embd = kModelWidth;
      config.n_layer = config.n_head = 2;
      config.attention = attention;
      config.positions = Positions::parse(positions);
      Gpt2Model model(config, at::kDouble);
      model.initialize({.std = 0.3, .seed = 5});
      model.eval();
      const at::NoGradGuard no_grad;
      const at::Tensor text = ids(7, 1, 1500);
      const at::Tensor whole = model.forward(text, {});
      CausalState state;
      int64_t early = 0;
      std::vector<at::Tensor> parts;
      for (const int64_t count : {10, 600, 1, 889}) {  // more than a slice at once, too
        parts.push_back(model.forward(text.narrow(1, state.columns, count), {}, &state));
        if (early == 0) early = state.bytes();
      }
      expect_close(at::cat(parts, 1), whole, 1e-9, attention);
      EXPECT_EQ(state.bytes(), early) << attention;
    }
  }
  Gpt2Config config;
  config.vocab_size = kVocabulary;
  config.n_positions = 16;
  config.n_embd = kModelWidth;
  config.n_layer = config.n_head = 2;
  config.attention = "window:6";
  try {
    Gpt2Model(config, at::kDouble).forward(ids(7, 1, 17), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.fix().find("--positions"), std::string::npos);
  }
}

TEST(MechanismsInModels, HashedAttentionIsNotReadTokenByToken) {
  const auto model = make({"", "attention", true}, "lsh:bucket=4,rounds=2", "none");
  CausalState state;
  EXPECT_THROW(dynamic_cast<const Gpt2Model&>(*model).forward(ids(1, 1, 5), {}, &state), Error);
}

}  // namespace
}  // namespace palimpsest::models
