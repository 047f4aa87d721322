// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/generate/prompts.h"

#include <algorithm>

#include "palimpsest/core/error.h"
#include "palimpsest/generate/model_decoder.h"

namespace palimpsest::generate {

PaddedRows pad_rows(const std::vector<IdRow>& rows, std::optional<int64_t> pad, Side side) {
  size_t longest = 0;
  for (const IdRow& row : rows) longest = std::max(longest, row.size());
  const auto width = static_cast<int64_t>(longest);
  PaddedRows padded;
  padded.ids = at::full({static_cast<int64_t>(rows.size()), width}, pad.value_or(0), at::kLong);
  padded.mask = at::zeros({static_cast<int64_t>(rows.size()), width}, at::kBool);
  bool any = false;
  for (size_t i = 0; i < rows.size(); ++i) {
    const IdRow& row = rows[i];
    const bool left = side == Side::kLeft;
    const auto is_real = [&](int64_t id) { return !pad || id != *pad; };
    // Padding that the caller wrote: at the outer end alone, a pad between tokens is a token.
    auto begin = row.begin(), end = row.end();
    if (left) {
      begin = std::find_if(row.begin(), row.end(), is_real);
    } else {
      end = std::find_if(row.rbegin(), row.rend(), is_real).base();
    }
    const int64_t count = end - begin, first = left ? width - count : 0;
    std::copy(begin, end, padded.ids.mutable_data_ptr<int64_t>() + static_cast<int64_t>(i) * width + first);
    padded.mask[static_cast<int64_t>(i)].narrow(0, first, count).fill_(true);
    any = any || count < width;
  }
  if (!any) padded.mask = at::Tensor();
  return padded;
}

std::unique_ptr<Decoder> make_decoder(const models::Model& model, const std::vector<IdRow>& rows,
                                      const PromptOptions& options) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const int64_t id : rows[i]) {
      if (id < 0 || id >= model.vocab_size())
        throw usage_error(fmt::format("id {} is outside the vocabulary of {}", id, model.vocab_size()),
                          fmt::format("row {}", i));
    }
    if (rows[i].empty()) throw usage_error("is empty", fmt::format("row {}", i), "give at least one id");
  }
  const auto device = model.parameters().front().device();
  const auto to_device = [&](const at::Tensor& t) { return t.defined() ? t.to(device) : t; };
  if (const auto* bart = dynamic_cast<const models::BartModel*>(&model)) {
    const PaddedRows padded = pad_rows(rows, options.pad_id, Side::kRight);
    auto encoded = bart->encode({.ids = to_device(padded.ids), .mask = to_device(padded.mask)});
    const at::Tensor start = at::full({static_cast<int64_t>(rows.size()), 1}, options.decoder_start_id, at::kLong);
    return make_decoder(*bart, std::move(encoded), start);
  }
  if (const auto* gpt2 = dynamic_cast<const models::Gpt2Model*>(&model)) {
    const PaddedRows padded = pad_rows(rows, options.pad_id, Side::kLeft);
    return make_decoder(*gpt2, padded.ids, padded.mask);
  }
  throw usage_error(fmt::format("a {} model does not generate", model.family()));
}

}  // namespace palimpsest::generate
