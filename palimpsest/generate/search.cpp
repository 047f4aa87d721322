// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/generate/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/generate/search_parts.h"

namespace palimpsest::generate {

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::kEos:
      return "eos";
    case Finish::kLength:
      return "length";
    case Finish::kStop:
      return "stop";
    case Finish::kCancelled:
      return "cancelled";
  }
  return "";
}

std::vector<std::vector<int64_t>> Generations::padded(int64_t pad) const {
  std::vector<std::vector<int64_t>> rows;
  size_t longest = 0;
  for (size_t item = 0; item < items.size(); ++item) {
    for (const auto& hypothesis : items[item]) {
      auto& row = rows.emplace_back(start[item]);
      row.insert(row.end(), hypothesis.ids.begin(), hypothesis.ids.end());
      longest = std::max(longest, row.size());
    }
  }
  for (auto& row : rows) row.resize(longest, pad);
  return rows;
}

namespace {
std::vector<std::vector<int64_t>> as_lists(const at::Tensor& ids) {
  const at::Tensor flat = ids.to(at::kCPU, at::kLong).contiguous();  // [items, T]
  std::vector<std::vector<int64_t>> lists;
  for (int64_t i = 0; i < flat.size(0); ++i) {
    const int64_t* row = flat.data_ptr<int64_t>() + i * flat.size(1);
    lists.emplace_back(row, row + flat.size(1));
  }
  return lists;
}
}  // namespace

Search::Search(Decoder& the_decoder, const GenerationOptions& the_options, const Request& the_request)
    : decoder(the_decoder), options(the_options), request(the_request) {
  options.validate(decoder.vocab_size());
  result.start = as_lists(decoder.start_ids());
  const auto items = static_cast<size_t>(decoder.items());
  if (result.start.size() != items)
    throw internal_error(fmt::format("the decoder has {} items, but {} starts", items, result.start.size()));
  const auto check_count = [&](size_t count, const char* what) {
    if (count != 0 && count != items)
      throw usage_error(fmt::format("{} {} were given for {} items", count, what, items), "", "give one for each");
  };
  check_count(request.numbers.size(), "numbers");
  check_count(request.encoder_ids.size(), "lists of encoder ids");
  if (!options.stop_strings.empty() && !request.tokenizer) {
    throw usage_error("stop strings need a tokenizer, and this model has none", "",
                      "leave stop_strings out, or give the model a tokenizer");
  }
  lengths = options.lengths(items == 0 ? 0 : static_cast<int64_t>(result.start[0].size()), decoder.longest());
  std::vector<int64_t> padding;
  if (options.repetition_penalty != 1) {
    const at::Tensor left = decoder.left_padding().to(at::kCPU, at::kLong).contiguous();
    padding.assign(left.data_ptr<int64_t>(), left.data_ptr<int64_t>() + left.numel());
  }
  rules = make_rules(options, {lengths, std::move(padding), request.encoder_ids});
  stops_ = StopStrings(options.stop_strings);
  result.items.resize(items);
}

int64_t Search::number(int64_t item) const {
  return request.numbers.empty() ? item : request.numbers[static_cast<size_t>(item)];
}

bool Search::ends(int64_t token) const {
  return std::find(options.eos_token_id.begin(), options.eos_token_id.end(), token) != options.eos_token_id.end();
}

StoppingDecoder Search::new_text() const {
  return request.tokenizer ? StoppingDecoder(request.tokenizer, stops_, request.skip_special) : StoppingDecoder();
}

at::Tensor Search::checked(at::Tensor logits, int64_t rows) {
  if (logits.dim() != 2 || logits.size(0) != rows || logits.size(1) != decoder.vocab_size()) {
    throw internal_error(fmt::format("the decoder gave logits of another shape than [{}, {}]: {} numbers", rows,
                                     decoder.vocab_size(), logits.numel()));
  }
  result.state_bytes = std::max(result.state_bytes, decoder.state_bytes());
  const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return logits.to(at::kCPU, type).contiguous();  // the same tensor where it is such already
}

at::Tensor Search::start() { return checked(decoder.start(), decoder.items()); }

at::Tensor Search::step(const std::vector<int64_t>& tokens) {
  return checked(decoder.step(at::tensor(tokens, at::kLong)), static_cast<int64_t>(tokens.size()));
}

std::vector<double> Search::log_sums(const at::Tensor& logits, int64_t step, const std::vector<int64_t>& items) const {
  const at::Tensor sums = at::logsumexp(logits, {-1}).to(at::kDouble).contiguous();  // [R]
  const double* data = sums.data_ptr<double>();
  for (int64_t r = 0; r < sums.size(0); ++r) {
    if (!std::isnan(data[r]) && data[r] < std::numeric_limits<double>::infinity()) continue;
    throw internal_error(fmt::format("the model gave logits that are not numbers for row {} at step {}", r, step),
                         fmt::format("item {}", number(items[static_cast<size_t>(r)])),
                         "check the model's weights (palimpsest inspect), and float32 in place of a shorter type");
  }
  return {data, data + sums.size(0)};
}

void Search::apply_rules(at::Tensor& scores, const std::vector<const std::vector<int64_t>*>& ids,
                         const std::vector<int64_t>& items) const {
  ScoredRows rows{.scores = scores, .ids = {}, .items = items};
  for (const auto* row : ids) rows.ids.emplace_back(*row);
  rules.apply(rows);
}

namespace {

// One sequence of greedy decoding or sampling.
struct Row {
  int64_t item = 0, sequence = 0;
  std::vector<int64_t> ids = {};  // start and new tokens
  StoppingDecoder text = {};
  double score = 0;
  Finish finish = Finish::kLength;
  bool live = true;
};

// Draws from softmax(scores) by where `u` in [0, 1) falls in the running sum; -1 where nothing is possible.
template <class T>
int64_t draw(std::span<const T> scores, double u) {
  const T most = *std::max_element(scores.begin(), scores.end());
  if (most == -std::numeric_limits<T>::infinity()) return -1;
  std::vector<std::pair<double, int64_t>> sums;  // up to and with each token that is possible
  double sum = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] == -std::numeric_limits<T>::infinity()) continue;
    const double weight = static_cast<double>(std::exp(scores[i] - most));
    if (weight == 0) continue;
    sum += weight;
    sums.emplace_back(sum, static_cast<int64_t>(i));
  }
  const auto place = std::upper_bound(sums.begin(), sums.end(), u * sum,
                                      [](double value, const auto& entry) { return value < entry.first; });
  return place == sums.end() ? sums.back().second : place->second;
}

class TokenSearch {
 public:
  explicit TokenSearch(Search& search) : search_(search) {}

  void run() {
    const int64_t copies = search_.options.num_return_sequences;
    at::Tensor logits = search_.start();  // [items, V]
    std::vector<int64_t> order;
    for (int64_t item = 0; item < search_.decoder.items(); ++item) {
      for (int64_t copy = 0; copy < copies; ++copy) {
        order.push_back(item);
        all_.push_back({.item = item,
                        .sequence = copy,
                        .ids = search_.result.start[static_cast<size_t>(item)],
                        .text = search_.new_text()});
      }
    }
    if (copies > 1) {
      search_.decoder.reorder(order);
      logits = logits.repeat_interleave(copies, 0);
    }
    for (size_t r = 0; r < all_.size(); ++r) running_.push_back(r);
    for (int64_t step = 0;; ++step) {
      search_.result.steps = step + 1;
      if (!take_step(logits, step) || !drop_finished()) break;
      std::vector<int64_t> tokens;
      for (const size_t r : running_) tokens.push_back(all_[r].ids.back());
      logits = search_.step(tokens);
    }
    for (auto& row : all_) {
      const auto& start = search_.result.start[static_cast<size_t>(row.item)];
      search_.result.items[static_cast<size_t>(row.item)].push_back(
          {.ids = {row.ids.begin() + static_cast<ptrdiff_t>(start.size()), row.ids.end()},
           .score = row.score,
           .finish = row.finish,
           .text = row.text.text()});
    }
  }

 private:
  // A token for each live row; false where the callback wants an end.
  bool take_step(const at::Tensor& logits, int64_t step) {
    std::vector<int64_t> items;
    for (const size_t r : running_) items.push_back(all_[r].item);
    const std::vector<double> sums = search_.log_sums(logits, step, items);
    at::Tensor scores = logits;
    if (search_.rules.acts_at(search_.lengths.prompt + step)) {
      scores = logits.clone();  // the score of what is chosen is that before the rules
      std::vector<const std::vector<int64_t>*> ids;
      for (const size_t r : running_) ids.push_back(&all_[r].ids);
      search_.apply_rules(scores, ids, items);
    }
    const std::vector<int64_t> chosen =
        logits.scalar_type() == at::kDouble ? choose<double>(scores, step) : choose<float>(scores, step);
    std::vector<NewToken> tokens;
    for (size_t r = 0; r < running_.size(); ++r) {
      Row& row = all_[running_[r]];
      if (!row.live) continue;
      if (chosen[r] < 0) {
        row.live = false;
        row.finish = Finish::kStop;
        tokens.push_back(
            {.item = row.item, .sequence = row.sequence, .id = -1, .text = row.text.finish(), .finished = true});
        continue;
      }
      const auto at = static_cast<int64_t>(r) * logits.size(1) + chosen[r];
      row.score += (logits.scalar_type() == at::kDouble ? logits.data_ptr<double>()[at]
                                                        : static_cast<double>(logits.data_ptr<float>()[at])) -
                   sums[r];
      tokens.push_back(add(row, chosen[r], step));
    }
    if (search_.call_back(tokens)) return true;
    for (auto& row : all_) {
      if (!row.live) continue;
      row.finish = Finish::kCancelled;
      row.text.finish();
    }
    return false;
  }

  NewToken add(Row& row, int64_t token, int64_t step) const {
    row.ids.push_back(token);
    NewToken news{.item = row.item, .sequence = row.sequence, .id = token, .text = row.text.push(token)};
    if (search_.ends(token)) {
      row.finish = Finish::kEos, row.live = false;
    } else if (row.text.stopped()) {
      row.finish = Finish::kStop, row.live = false;
    } else if (step + 1 == search_.lengths.max_new) {
      row.finish = Finish::kLength, row.live = false;
    }
    news.finished = !row.live;
    if (news.finished) news.text += row.text.finish();
    return news;
  }

  template <class T>
  std::vector<int64_t> choose(const at::Tensor& scores, int64_t step) const {
    std::vector<int64_t> chosen(running_.size(), -1);
    const auto width = static_cast<size_t>(scores.size(1));
    const T* data = scores.data_ptr<T>();
    parallel_for(static_cast<int64_t>(running_.size()), 1, [&](int64_t first, int64_t last) {
      for (auto r = static_cast<size_t>(first); r < static_cast<size_t>(last); ++r) {
        const Row& row = all_[running_[r]];
        if (!row.live) continue;
        const std::span<const T> row_scores(data + r * width, width);
        if (search_.options.samples()) {
          Random random(
              random_key(static_cast<uint64_t>(search_.options.seed), search_.number(row.item), row.sequence, step));
          chosen[r] = draw<T>(row_scores, random.uniform());
        } else {
          const auto best = std::max_element(row_scores.begin(), row_scores.end());
          if (*best > -std::numeric_limits<T>::infinity()) chosen[r] = best - row_scores.begin();
        }
      }
    });
    return chosen;
  }

  // Leaves rows that go on; false where there are none. The decoder wants as many rows of each item as of the others:
  // where sequences of some items have ended and those of others have not, ended ones stay as fillers.
  bool drop_finished() {
    std::vector<std::vector<size_t>> live(search_.result.items.size());  // places in running_, per item
    size_t most = 0;
    for (size_t r = 0; r < running_.size(); ++r) {
      const Row& row = all_[running_[r]];
      if (!row.live) continue;
      auto& places = live[static_cast<size_t>(row.item)];
      places.push_back(r);
      most = std::max(most, places.size());
    }
    if (most == 0) return false;
    for (size_t r = 0; r < running_.size(); ++r) {
      const Row& row = all_[running_[r]];
      auto& places = live[static_cast<size_t>(row.item)];
      if (!row.live && !places.empty() && places.size() < most) places.push_back(r);
    }
    std::vector<int64_t> order;
    std::vector<size_t> next;
    for (auto& places : live) {
      std::sort(places.begin(), places.end());
      for (const size_t place : places) {
        order.push_back(static_cast<int64_t>(place));
        next.push_back(running_[place]);
      }
    }
    if (next.size() != running_.size()) search_.decoder.reorder(order);
    running_ = std::move(next);
    return true;
  }

  Search& search_;
  std::vector<Row> all_;
  std::vector<size_t> running_;  // the decoder's rows: places in all_
};

}  // namespace

void search_tokens(Search& search) { TokenSearch(search).run(); }

Generations generate(Decoder& decoder, const GenerationOptions& options, const Request& request) {
  const at::NoGradGuard no_grad;
  Search search(decoder, options, request);
  if (decoder.items() == 0) return std::move(search.result);
  if (search.lengths.max_new == 0) {
    for (auto& item : search.result.items) item.resize(static_cast<size_t>(options.num_return_sequences), Hypothesis());
    return std::move(search.result);
  }
  if (options.num_beams > 1) {
    search_beams(search);
  } else {
    search_tokens(search);
  }
  return std::move(search.result);
}

}  // namespace palimpsest::generate
