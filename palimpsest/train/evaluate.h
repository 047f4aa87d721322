// SPDX-License-Identifier: Apache-2.0
// Measuring a model over whole documents: perplexity and free-running recall, with the memory kept, reset, another
// document's, or off. Results do not depend on the batch size or the order of documents.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "palimpsest/generate/options.h"
#include "palimpsest/train/metrics.h"
#include "palimpsest/train/tasks.h"

namespace palimpsest::train {

/// What happens to the carried memory while evaluating.
///   keep   as in use: carried from segment to segment of a document
///   reset  forgotten before every segment
///   other  before every segment replaced by what another document (the next in the list) left at its end
///   off    neither tokens nor decoder see it
enum class Carry { kKeep, kReset, kOther, kOff };
Carry parse_carry(const std::string& text);
std::string carry_name(Carry carry);

struct WalkOptions {
  Carry carry = Carry::kKeep;
  int64_t batch = 16;
  int64_t max_segments = 0;         ///< of each document, from its start; 0: all
  std::function<bool()> stop = {};  ///< asked between steps; true ends the walk
};

/// Documents, and what a batch maker needs to cut them.
struct EvalData {
  std::shared_ptr<const data::Corpus> corpus;
  std::vector<data::Span> spans;
  std::shared_ptr<const data::StepPlan> plan;
};

/// Reads all documents side by side, calling `each` once per step with the batch and what the encoder made of it.
/// `make` turns lane items into a batch.
void walk(const models::Model& model, const EvalData& data, const WalkOptions& options,
          const std::function<SegmentBatch(std::vector<data::LaneItem>)>& make,
          const std::function<void(const SegmentBatch&, const models::EncoderOutput&)>& each);

/// Sums of one slice.
struct LossSum {
  int64_t targets = 0;
  double nll = 0;
  double perplexity() const;
};

/// The loss of one step of one document.
struct StepLoss {
  int64_t span = 0;     ///< index into EvalData::spans
  int64_t place = 0;    ///< the turn's number in a dialogue, else the segment's, from 0
  int64_t session = 1;  ///< of a dialogue
  LossSum sum;
};

struct LossReport {
  LossSum total;
  int64_t segments = 0;                   ///< with a target
  int64_t words = 0, bytes = 0;           ///< of the targets' text (white-space separated words)
  std::map<int64_t, LossSum> by_segment;  ///< by the segment's place in its document, from 0
  std::vector<DocumentScore> documents;   ///< nll and targets of each that has any
  std::vector<StepLoss> steps;            ///< each with a target, by document and place (train/groups.h)
  /// With a 95 % bootstrap interval over documents where there are at least two (metrics.h).
  Json to_json() const;
};
/// Teacher-forced loss of `task`, of "current" from the memory alone, as it is trained. The tokenizer (may be null)
/// gives words and bytes.
LossReport evaluate_loss(const models::Model& model, const EvalData& data, const BatchMaker& maker,
                         const checkpoint::Task& task, const text::Tokenizer* tokenizer, const WalkOptions& options);

struct RecallReport {
  int64_t tokens = 0, recovered = 0;  ///< reference tokens, and those given back at the exact position
  int64_t segments = 0, exact = 0;    ///< segments, and those given back whole
  struct Example {
    std::string document, current, reference, given;
    int64_t segment = 0;
    double share = 0;
  };
  std::vector<Example> examples;
  std::vector<DocumentScore> documents;  ///< tokens given back, and tokens, of each that has any
  double share() const { return tokens > 0 ? static_cast<double>(recovered) / static_cast<double>(tokens) : 0; }
  Json to_json() const;
};
/// Free-running greedy decoding of `task` from (current segment, memory), compared with the reference position by
/// position. `max_examples` are kept, from the first segments on.
RecallReport evaluate_recall(const models::Model& model, const EvalData& data, const BatchMaker& maker,
                             const checkpoint::Task& task, const SpecialIds& ids, const text::Tokenizer* tokenizer,
                             const WalkOptions& options, int64_t max_examples = 0);

struct ReplyReport {
  int64_t count = 0;
  std::vector<DocumentScore> f1;                          ///< by document: sum and number of replies
  std::map<int64_t, std::pair<double, int64_t>> by_step;  ///< F1: sum and number, by the step's place, from 0
  std::vector<std::string> replies, references;
  int64_t tokens = 0;  ///< generated, end tokens included
  struct Example {
    std::string reference, reply;
  };
  std::vector<Example> examples;  ///< the first few
  Json to_json() const;
};
/// Replies or target lines written from (what is read, memory), compared with the real ones by word F1 and corpus BLEU
/// (metrics.h): the first `most` in the order of documents and turns, whatever the batch.
ReplyReport evaluate_replies(const models::Model& model, const EvalData& data, const BatchMaker& maker,
                             const checkpoint::Task& task, const text::Tokenizer& tokenizer,
                             generate::GenerationOptions generation, const WalkOptions& options, int64_t most);

/// The rows `keep` [B'] (int64) of what the decoder attends to.
models::EncoderOutput select_rows(const models::EncoderOutput& encoded, const at::Tensor& keep);

}  // namespace palimpsest::train
