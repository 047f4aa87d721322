// SPDX-License-Identifier: Apache-2.0
// Training through the memory: truncated back-propagation over `time_horizon` segments of stateful lanes
// (ALGORITHMS 3.5), checkpoints that hold everything, metrics as JSON lines.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "palimpsest/data/aligned_steps.h"
#include "palimpsest/data/corpus.h"
#include "palimpsest/data/dialogue_steps.h"
#include "palimpsest/models/attention_texts.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/optimizer.h"
#include "palimpsest/train/parallel.h"

namespace palimpsest::train {

/// Sizes of a model made from scratch.
struct ModelOptions {
  std::string model;  // a folder to start from
  std::string family = "bart";
  std::string memory, memory_init = "random";
  models::AttentionTexts texts;
  int64_t d_model = 128, heads = 4, ffn_dim = 256, encoder_layers = 2, decoder_layers = 2;
  int64_t max_position_embeddings = 0;
  double dropout = 0;
  std::string decoder_sees_memory = "auto";
  std::string init = "structured";
  double embedding_scale = 1;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "model folder to go on from; empty: from scratch with the sizes below");
    field("family", o.family, "of a model from scratch: bart | gpt2 (as many layers as decoder_layers, no memory)");
    field("memory", o.memory,
          "none | membart:M[,shared][,l2] | memformer:M[,rezero][,gate][,l2]; empty: the model folder's, or membart:16 "
          "from scratch");
    field("memory_init", o.memory_init,
          "how a memory starts that the model folder lacks: random | copy (of the layer's own weights)");
    models::AttentionTexts::fields(o.texts, field);
    field("d_model", o.d_model, "width");
    field("heads", o.heads, "attention heads");
    field("ffn_dim", o.ffn_dim, "inner width of the feed-forward");
    field("encoder_layers", o.encoder_layers, "encoder layers");
    field("decoder_layers", o.decoder_layers, "decoder layers");
    field("max_position_embeddings", o.max_position_embeddings, "rows of the position tables; 0: twice the segment");
    field("dropout", o.dropout, "dropout in training");
    field("decoder_sees_memory", o.decoder_sees_memory,
          "whether the decoder attends to [memory; tokens], else to the tokens alone: auto (yes, but for memformer) | "
          "yes "
          "| no");
    field("init", o.init, "normal (N(0, 0.02)) | scaled (N(0, 1/fan-in)) | structured (see docs/training.md)");
    field("embedding_scale", o.embedding_scale,
          "of structured embeddings: 1 is best to give back what was read, 0.1 to foretell what comes");
  }
};

struct TrainOptions {
  data::CorpusOptions corpus;
  data::SplitOptions split;
  int64_t min_document_tokens = 0;
  std::string tokenizer;
  text::TrainTokenizerOptions new_tokenizer;
  ModelOptions model;
  data::DialogueOptions dialogue;
  data::AlignedOptions aligned;
  bool authors_window = false;
  std::string answers = "B";
  data::SegmentOptions segments{.segment = 32, .overlap = 0};
  TaskOptions tasks;
  int64_t lanes = 16, accumulation = 1, time_horizon = 2, time_overlap = 0;
  bool memory_replay = false;
  std::string carry = "keep";
  int64_t max_steps = 2000, auxiliary_steps = 0;
  std::string step_weights = "uniform";
  double label_smoothing_factor = 0;
  bool freeze_embeddings = false;
  int64_t loss_table_mib = 64;
  OptimizerOptions optimizer;
  std::string device = "cpu", dtype = "float32";
  bool bf16 = false;
  int64_t seed = 0;
  std::string output_dir = "runs/latest";
  int64_t logging_steps = 20, eval_steps = 200, eval_segments = 4, eval_documents = 32, save_steps = 500,
          save_total_limit = 2;
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = "loss";
  int64_t early_stopping_patience = 0;
  double early_stopping_threshold = 0, stop_at_metric = 0;
  double peer_timeout = 60;
  std::string cache_dir, export_dir, export_dtype = "float32";
  bool resume = true;
  static void fields(auto& o, auto&& field) {
    field("corpus", o.corpus, "");
    field("split", o.split, "");
    field("min_document_tokens", o.min_document_tokens,
          "of texts: documents with fewer tokens are left out, of training and evaluation; 0: none");
    field("tokenizer", o.tokenizer,
          "tokenizer.json or folder; empty: the model's, or one trained on the training documents");
    field("new_tokenizer", o.new_tokenizer, "");
    field("model_options", o.model, "");
    field("dialogue", o.dialogue, "");
    field("aligned", o.aligned, "");
    field("authors_window", o.authors_window,
          "of dialogues: the slice of the history that MemBART's authors take, two tokens longer than the window");
    field("answers", o.answers, "of dialogues: whose turns are learnt: B | A | both");
    field("segments", o.segments, "");
    field("task_options", o.tasks, "");
    field("lanes", o.lanes,
          "documents read side by side in one micro-batch; processes share them out, each taking as many");
    field("accumulation", o.accumulation,
          "micro-batches of one optimiser step; lanes * accumulation documents are read side by side");
    field("time_horizon", o.time_horizon, "segments that gradients flow back through (1 to 8 are usual)");
    field("time_overlap", o.time_overlap, "of those, the segments that the next optimiser step reads again");
    field("memory_replay", o.memory_replay,
          "keep the activations of one segment of the horizon at a time and compute the others again: the same "
          "gradients, "
          "less memory, more time");
    field("carry", o.carry,
          "what happens to the memory between segments: keep | reset (forgotten before each: the control that never "
          "remembers)");
    field("max_steps", o.max_steps, "optimiser steps");
    field(
        "auxiliary_steps", o.auxiliary_steps,
        "first steps that train the auxiliary target alone, at horizon 1: reading and writing come before remembering");
    field("step_weights", o.step_weights,
          "weight of each step of a horizon: uniform | pow2 (the authors') | token (all targets alike)");
    field("label_smoothing_factor", o.label_smoothing_factor,
          "share of each training target that is spread over the whole vocabulary; evaluation knows none");
    field("freeze_embeddings", o.freeze_embeddings,
          "leave word and position embeddings as they are (and with tied words the output table)");
    field("loss_table_mib", o.loss_table_mib,
          "a larger table of logits [tokens, vocabulary] is never built: the loss takes it in parts of this many MiB");
    field("optimizer", o.optimizer, "");
    field("device", o.device, "cpu | cuda");
    field("dtype", o.dtype, "of weights and optimiser: float32 | float64 (to check gradients)");
    field("bf16", o.bf16,
          "matrix products in bfloat16, weights in float32; slower on a CPU without AMX or AVX512-bf16 (see "
          "docs/training.md)");
    field("seed", o.seed, "of everything random");
    field("output_dir", o.output_dir, "folder of the run");
    field("logging_steps", o.logging_steps, "optimiser steps between two lines of metrics.jsonl");
    field("eval_steps", o.eval_steps, "optimiser steps between two evaluations on held-out documents; 0: never");
    field("eval_documents", o.eval_documents, "held-out documents that such an evaluation reads");
    field("eval_segments", o.eval_segments, "first segments of each of them");
    field("save_steps", o.save_steps, "optimiser steps between two checkpoints; 0: at the end only");
    field("save_total_limit", o.save_total_limit, "newest checkpoints that are kept, beside the best one; 0: all");
    field("load_best_model_at_end", o.load_best_model_at_end,
          "keep the checkpoint with the best evaluation (checkpoint-best points to it) and end, and export, with it");
    field("metric_for_best_model", o.metric_for_best_model,
          "what is compared: loss | recovered (over all tasks), or of one task: recall.loss, recall:2.recovered");
    field("early_stopping_patience", o.early_stopping_patience,
          "stop after that many evaluations without a better one; 0: never");
    field("early_stopping_threshold", o.early_stopping_threshold, "what counts as better must be so by more than this");
    field("stop_at_metric", o.stop_at_metric,
          "stop once metric_for_best_model is that good: how long does it take? 0: never");
    field("peer_timeout", o.peer_timeout,
          "of several processes: seconds without a sign of life after which one counts as dead");
    field("cache_dir", o.cache_dir, "where token ids are cached; empty: OUTPUT_DIR/cache");
    field("export_dir", o.export_dir,
          "where a model folder without training state is written at the end; empty: nowhere");
    field("export_dtype", o.export_dtype, "of its weights: float32 | bfloat16 | float16");
    field("resume", o.resume, "go on from the newest checkpoint in output_dir");
  }
};

/// What the caller can see and steer.
struct TrainHooks {
  std::function<bool()> interrupted = [] { return false; };
  /// After each optimiser step: its number (from 1) and the line that goes to metrics.jsonl (null between loggings).
  std::function<void(int64_t step, const Json& metrics)> on_step = {};
  /// After each evaluation.
  std::function<void(int64_t step, const Json& metrics)> on_evaluation = {};
};

class Trainer {
 public:
  /// Prepares everything: text, vocabulary, token ids, model, optimiser; resumes where output_dir holds a checkpoint.
  /// With several processes all make the same calls; the first one writes all files and calls on_step and
  /// on_evaluation, and what one is interrupted by interrupts all.
  explicit Trainer(TrainOptions options, TrainHooks hooks = {},
                   std::shared_ptr<Communicator> communicator = single_process());
  ~Trainer();

  /// Trains up to max_steps, until interrupted (which saves first), or until the evaluations no longer improve. Returns
  /// the summary.
  Json run();
  /// One optimiser step; returns the mean loss of its targets.
  double step();
  /// Writes checkpoint-STEP and drops the oldest beyond save_total_limit, but never the best; returns its path.
  std::string save();

  int64_t steps_done() const { return step_; }
  const TrainOptions& options() const { return options_; }
  const models::Model& model() const { return *model_; }
  models::Model& model() { return *model_; }
  const checkpoint::Training& training() const { return training_; }
  std::shared_ptr<const text::Tokenizer> tokenizer() const { return tokenizer_; }
  const data::Corpus& corpus() const { return *corpus_; }
  const data::Split& split() const { return split_; }
  const SpecialIds& special_ids() const { return ids_; }
  /// Held-out documents, ready for evaluation.
  EvalData held_out() const;
  BatchMaker eval_maker(const EvalData& data) const;
  /// A few items as the model will see them, and the sizes of everything: `--dry-run`.
  std::string describe(int64_t items) const;
  /// The last step's metrics.
  const Json& metrics() const { return metrics_; }
  /// The checkpoint with the best evaluation, or "" where none is kept.
  std::string best_checkpoint() const;

 private:
  void prepare_tokenizer_and_corpus();
  void train_tokenizer();
  void prepare_texts();
  void drop_short_documents();
  void prepare_given_steps();
  /// Whether the data are aligned lines (the task seq2seq), or these or dialogues (respond), and not texts.
  bool reads_aligned() const;
  bool has_given_steps() const;
  data::AlignedDocumentReader aligned_side(const std::string& side) const;
  void prepare_model();
  std::shared_ptr<models::Model> new_bart() const;
  std::shared_ptr<models::Model> new_gpt2() const;
  int64_t positions() const;       ///< of a model from scratch
  int64_t longest_target() const;  ///< tokens that the model's positions leave to be written after a full window
  std::string describe_noise() const;
  void export_model() const;
  Json split_names() const;  ///< what split.json holds
  void resume_from(const std::string& checkpoint);
  void load_weights(const std::string& checkpoint);
  Json evaluate();
  /// Whether the best evaluation is looked for, and what to do with one more.
  bool seeks_best() const;
  bool note_evaluation(const Json& evaluation);
  void point_to_best() const;
  bool patience_is_over() const;
  bool metric_is_reached() const;
  /// This process's part of rows that belong to lanes, [lanes * accumulation, ..] -> [own, ..], and all of them from
  /// everybody's.
  at::Tensor own_rows(const at::Tensor& rows) const;
  at::Tensor all_rows(const at::Tensor& rows) const;
  int64_t own_lanes() const { return options_.lanes / communicator_->size(); }  ///< of one micro-batch
  void check_weights_agree();
  void write_metrics(const Json& line);
  bool auxiliary_only() const { return step_ < options_.auxiliary_steps; }

  TrainOptions options_;
  TrainHooks hooks_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::shared_ptr<const data::Corpus> corpus_;
  data::Split split_;
  std::shared_ptr<const data::StepPlan> plan_;
  EvalData held_out_;
  std::shared_ptr<models::Model> model_;
  checkpoint::Training training_;
  SpecialIds ids_;
  std::optional<BatchMaker> maker_;
  std::optional<data::Lanes> lanes_;
  std::optional<AdamW> optimizer_;
  std::shared_ptr<Communicator> communicator_;
  std::unique_ptr<GradientSum> gradients_;  ///< of several processes
  memory::Memory memory_;                   ///< [own lanes * accumulation, M, E], values only
  int64_t step_ = 0, tokens_seen_ = 0, saved_step_ = -1;
  /// The best evaluation so far: its step (0: none), its value, and the evaluations since.
  struct Best {
    int64_t step = 0;
    double value = 0;
    int64_t since = 0;
  } best_;
  Json metrics_;
};

/// The newest complete checkpoint of a run folder, or "".
std::string newest_checkpoint(const std::string& run_folder);

}  // namespace palimpsest::train
