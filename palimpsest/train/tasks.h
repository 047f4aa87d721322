// SPDX-License-Identifier: Apache-2.0
// Tasks over segments in lanes: what the encoder reads, what the decoder must write (ALGORITHMS 3.4), as tensors.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/core/options.h"
#include "palimpsest/data/lanes.h"
#include "palimpsest/data/noise.h"

namespace palimpsest::train {

/// Ids that targets and noise need.
struct SpecialIds {
  int64_t bos = 0, pad = 1, eos = 2;
  int64_t mask = -1;                   ///< -1 where the tokenizer has none: denoising and masking are then usage errors
  std::vector<int32_t> ordinary = {};  ///< ids that are no special tokens: what noise draws from
  /// Of these, sorted, what ends a sentence: ".", "!" or "?", also several and with closing quotes or brackets behind.
  std::vector<int32_t> sentence_ends = {};
  bool continues = false;  ///< what is read runs on into what is written (a decoder alone): no eos between the two
  static SpecialIds of(const models::Model& model, const text::Tokenizer* tokenizer);
};

/// "recall" (the segment before), "recall:2" (two before), "next" (the following segment), "denoise" (this one, clean),
/// "respond" (the turn of a dialogue that follows what was read), "seq2seq" (the target lines of the source lines
/// read), "lm" (every token out of those before it, in a decoder alone).
struct TaskName {
  std::string kind;
  int64_t distance = 0;  ///< of recall
  /// A usage error that lists the tasks for anything else.
  static TaskName parse(const std::string& text);
};

/// Adds a decoder start token per task to the tokenizer where there is more than one thing to ask for (DESIGN section
/// 4): <recall>, <recall:2>, <next>, <denoise>, and <current> for the auxiliary target. A single task keeps
/// `family_start`.
std::pair<std::shared_ptr<const text::Tokenizer>, std::vector<checkpoint::Task>> assign_start_tokens(
    std::shared_ptr<const text::Tokenizer> tokenizer, const Weights& tasks, bool auxiliary, int64_t family_start);

/// What of the decoder's work one batch asks for. Rows are lanes.
struct Targets {
  at::Tensor labels;       ///< [B, T] int64, nn::kIgnore where nothing is asked
  at::Tensor decoder_ids;  ///< [B, T] int64: start token, then the labels before (some masked in training)
  int64_t count = 0;       ///< labels that are not ignored
};

/// One step of all lanes.
struct SegmentBatch {
  at::Tensor ids;    ///< [B, L] int64
  at::Tensor mask;   ///< [B, L] bool; undefined where every lane is full
  at::Tensor reset;  ///< [B] bool
  Targets main, auxiliary;
  std::vector<data::LaneItem> items;
  int64_t tokens = 0;  ///< encoder tokens that are not padding; of lm those of the decoder
};

struct TaskOptions {
  Weights tasks = {{"recall", 1.0}};
  double decoder_mask_rate = 0;
  double auxiliary_weight = 0;
  double noise_share = 0;
  data::DenoiseOptions denoise = {};
  static void fields(auto& o, auto&& field) {
    field("tasks", o.tasks,
          "what the decoder learns to write, with weights: recall, recall:N, next, denoise; respond reads dialogues, "
          "seq2seq aligned lines; lm, alone, makes a gpt2 a language model");
    field("decoder_mask_rate", o.decoder_mask_rate,
          "share of the decoder's input tokens replaced by <mask> in training, so that it must read the memory");
    field("auxiliary_weight", o.auxiliary_weight,
          "weight of a second loss: the current segment, given back from the new memory alone");
    field("noise_share", o.noise_share,
          "share of training segments in which tokens are replaced by random ones, each at a rate of its own, so that "
          "the memory learns to carry tokens and not habits of the text");
    field("denoise", o.denoise, "");
  }
};

/// Makes batches of lane items. Everything random follows from (seed, epoch, document, segment): independent of lanes,
/// batch size and order.
class BatchMaker {
 public:
  /// `tasks` holds the start tokens; a task of `options` without an entry there is a usage error.
  BatchMaker(std::shared_ptr<const data::Corpus> corpus, std::vector<data::Span> spans,
             std::shared_ptr<const data::StepPlan> plan, TaskOptions options, std::vector<checkpoint::Task> tasks,
             SpecialIds ids, uint64_t seed);

  /// Training: draws each lane's task by weight, masks decoder inputs, mixes in noise, adds auxiliary targets.
  SegmentBatch training(std::vector<data::LaneItem> items) const;
  /// The first phase: auxiliary targets alone, all decoder inputs masked, and every memory reset. (A memory carried
  /// while nothing asks for what it holds teaches the slots to erase.)
  SegmentBatch auxiliary_only(std::vector<data::LaneItem> items) const;
  /// Evaluation: every lane is asked for `task`, nothing is masked. Denoising corrupts as in training.
  SegmentBatch evaluation(std::vector<data::LaneItem> items, const checkpoint::Task& task) const;

  /// What `task` asks of an item: its tokens (without eos), or nullopt where it has none (the first segment of a
  /// document has nothing to recall).
  std::optional<std::vector<int32_t>> reference(const data::LaneItem& item, const checkpoint::Task& task) const;
  /// Adds what denoising would make of an item.
  void count_noise(const data::LaneItem& item, data::NoiseCounts& counts) const;

 private:
  struct Asked {
    std::vector<int32_t> tokens;
    bool eos = true;
    int64_t start = 0;
    int64_t skip = 0;  ///< first tokens that are read and not asked for
  };
  enum class Noise { kNone, kTraining };
  /// Tokens of a segment of the item's span: as they are, or as training reads (and asks for) them.
  std::vector<int32_t> segment_tokens(const data::LaneItem& item, int64_t segment, Noise noise) const;
  Asked every_token(const data::LaneItem& item, Noise noise) const;
  std::optional<Asked> ask(const data::LaneItem& item, const checkpoint::Task& task, Noise noise) const;
  std::vector<int32_t> encoder_tokens(const data::LaneItem& item, const checkpoint::Task* task, Noise noise) const;
  Targets make_targets(const std::vector<std::optional<Asked>>& asked, const std::vector<data::LaneItem>& items,
                       double mask_rate) const;
  SegmentBatch encoder_side(std::vector<data::LaneItem> items, const std::vector<const checkpoint::Task*>& tasks,
                            Noise noise) const;
  std::vector<int32_t> corrupted(std::vector<int32_t> tokens, const data::LaneItem& item) const;
  uint64_t key(const data::LaneItem& item, int64_t segment, int purpose) const;

  std::shared_ptr<const data::Corpus> corpus_;
  std::vector<data::Span> spans_;
  std::shared_ptr<const data::StepPlan> plan_;
  TaskOptions options_;
  std::vector<checkpoint::Task> tasks_;
  std::vector<double> weights_;  // of tasks_, summing to 1; 0 for the auxiliary one
  SpecialIds ids_;
  data::DenoiseIds denoise_ids_;
  uint64_t seed_;
};

}  // namespace palimpsest::train
