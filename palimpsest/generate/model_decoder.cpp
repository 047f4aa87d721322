// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/generate/model_decoder.h"

#include "palimpsest/core/error.h"

namespace palimpsest::generate {

using attention::keeps_order;

namespace {

/// Logits as search reads them: on the CPU, float32 at least.
at::Tensor readable(const at::Tensor& logits) {
  return logits.to(at::kCPU, logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).contiguous();
}

at::Tensor select_rows(const at::Tensor& tensor, const std::vector<int64_t>& rows) {
  if (!tensor.defined()) return tensor;
  return tensor.index_select(0, at::tensor(rows, at::kLong).to(tensor.device()));
}

/// What a row may grow to: the end of the position table, or of what a mechanism was made for.
std::optional<int64_t> longest_of(int64_t table, const models::Positions& positions,
                                  const attention::MechanismStack& stack) {
  std::optional<int64_t> least;
  if (!positions.endless()) least = table;
  if (const int64_t own = stack.longest(); own > 0) least = std::min(least.value_or(own), own);
  return least;
}

class BartDecoder : public Decoder {
 public:
  BartDecoder(const models::BartModel& model, models::EncoderOutput encoded, const at::Tensor& start_ids)
      : model_(model), encoded_(std::move(encoded)), start_(start_ids.to(at::kCPU)), rows_(start_ids.size(0)) {
    if (start_.size(0) != encoded_.context.size(0)) {
      throw internal_error(
          fmt::format("{} decoder beginnings for {} sources", start_.size(0), encoded_.context.size(0)));
    }
    for (int64_t item = 0; item < items(); ++item) item_of_.push_back(item);
  }

  int64_t items() const override { return start_.size(0); }
  int64_t vocab_size() const override { return model_.vocab_size(); }
  std::optional<int64_t> longest() const override {
    return longest_of(model_.config().max_position_embeddings, model_.config().positions, *model_.decoder_attention);
  }
  at::Tensor start_ids() const override { return start_; }
  at::Tensor left_padding() const override { return at::zeros({items()}, at::kLong); }

  at::Tensor start() override { return read(start_); }
  at::Tensor step(const at::Tensor& ids) override { return read(ids.view({-1, 1})); }

  void reorder(const std::vector<int64_t>& rows) override {
    if (keeps_order(rows, rows_)) return;
    // Sources that are still asked, in their order: rows of one source lie together.
    std::vector<int64_t> item_of, sources;
    for (const int64_t row : rows) {
      const int64_t item = item_of_[static_cast<size_t>(row)];
      if (sources.empty() || sources.back() != item) sources.push_back(item);
      item_of.push_back(static_cast<int64_t>(sources.size()) - 1);
    }
    state_.rows = state_.rows.select(rows);
    if (!keeps_order(sources, encoded_.context.size(0))) {
      state_.source = state_.source.select(sources);
      encoded_.context = select_rows(encoded_.context, sources);
      encoded_.context_mask = select_rows(encoded_.context_mask, sources);
    }
    item_of_ = std::move(item_of);
    rows_ = static_cast<int64_t>(rows.size());
  }

  int64_t state_bytes() const override { return state_.bytes(); }

 private:
  at::Tensor read(const at::Tensor& ids) {
    const at::NoGradGuard no_grad;
    const at::Tensor hidden = model_.decode(ids.to(encoded_.context.device()), {}, encoded_, &state_);
    return readable(model_.logits(hidden.select(1, -1)));
  }

  const models::BartModel& model_;
  models::EncoderOutput encoded_;
  at::Tensor start_;
  models::DecoderState state_;
  int64_t rows_;
  std::vector<int64_t> item_of_;  ///< row -> source, numbered among those that are left
};

class Gpt2Decoder : public Decoder {
 public:
  Gpt2Decoder(const models::Gpt2Model& model, const at::Tensor& ids, const at::Tensor& mask)
      : model_(model), start_(ids.to(at::kCPU)), rows_(ids.size(0)) {
    padding_ = at::zeros({items()}, at::kLong);
    if (!mask.defined()) return;
    const at::Tensor real = mask.to(at::kCPU);
    padding_ = real.size(1) - real.sum(1);
    for (int64_t row = 0; row < items(); ++row) {
      const int64_t padded = padding_[row].item<int64_t>();
      if (padded == real.size(1)) throw usage_error(fmt::format("row {} of the prompts holds padding alone", row));
      if (real[row].narrow(0, 0, padded).any().item<bool>()) {
        throw usage_error(fmt::format("row {} of the prompts has padding between or behind its tokens", row), "",
                          "prompts are padded on the left");
      }
    }
    if (padding_.any().item<bool>()) mask_ = real;
  }

  int64_t items() const override { return start_.size(0); }
  int64_t vocab_size() const override { return model_.vocab_size(); }
  std::optional<int64_t> longest() const override {
    return longest_of(model_.config().n_positions, model_.config().positions, *model_.attention);
  }
  at::Tensor start_ids() const override { return start_; }
  at::Tensor left_padding() const override { return padding_; }

  at::Tensor start() override { return read(start_); }

  at::Tensor step(const at::Tensor& ids) override {
    if (mask_.defined()) mask_ = at::cat({mask_, mask_.new_ones({mask_.size(0), 1})}, 1);
    return read(ids.view({-1, 1}));
  }

  void reorder(const std::vector<int64_t>& rows) override {
    if (keeps_order(rows, rows_)) return;
    state_.rows = state_.rows.select(rows);
    mask_ = select_rows(mask_, rows);
    rows_ = static_cast<int64_t>(rows.size());
  }

  int64_t state_bytes() const override { return state_.bytes(); }

 private:
  at::Tensor read(const at::Tensor& ids) {
    const at::NoGradGuard no_grad;
    const auto device = model_.wte->weight.device();
    const at::Tensor hidden =
        model_.forward(ids.to(device), mask_.defined() ? mask_.to(device) : at::Tensor(), &state_);
    return readable(model_.logits(hidden.select(1, -1)));
  }

  const models::Gpt2Model& model_;
  at::Tensor start_, padding_, mask_;
  models::CausalState state_;
  int64_t rows_;
};

}  // namespace

std::unique_ptr<Decoder> make_decoder(const models::BartModel& model, models::EncoderOutput encoded,
                                      const at::Tensor& start_ids) {
  return std::make_unique<BartDecoder>(model, std::move(encoded), start_ids);
}

std::unique_ptr<Decoder> make_decoder(const models::Gpt2Model& model, const at::Tensor& ids, const at::Tensor& mask) {
  return std::make_unique<Gpt2Decoder>(model, ids, mask);
}

std::unique_ptr<Decoder> make_decoder(const models::Model& model, models::EncoderOutput encoded,
                                      const at::Tensor& start_ids) {
  if (const auto* bart = dynamic_cast<const models::BartModel*>(&model))
    return make_decoder(*bart, std::move(encoded), start_ids);
  const at::Tensor start = start_ids.to(encoded.prompt.device());
  at::Tensor mask = encoded.prompt_mask;
  if (mask.defined()) mask = at::cat({mask, at::ones_like(start, at::kBool)}, 1);
  return make_decoder(dynamic_cast<const models::Gpt2Model&>(model), at::cat({encoded.prompt, start}, 1), mask);
}

}  // namespace palimpsest::generate
