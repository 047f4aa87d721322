// SPDX-License-Identifier: Apache-2.0
// Beam search as in transformers 5.24: 2K candidates a step, of which only the best K may end a hypothesis.
#include <algorithm>
#include <cmath>
#include <limits>

#include "palimpsest/core/random.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/generate/search_parts.h"
#include "palimpsest/generate/select.h"

namespace palimpsest::generate {

namespace {

struct Beam {
  std::vector<int64_t> ids = {};  // start and new tokens
  double sum = 0;                 // of log-probabilities
  StoppingDecoder text = {};
  bool dead = false;  // fills a row for which there was no candidate
};

struct Candidate {
  double sum;    // of log-probabilities
  int64_t beam;  // of its item
  int64_t token;
  double rank;  // what it is chosen by: its sum, or a draw
};

bool better(const Candidate& a, const Candidate& b) {
  if (a.rank != b.rank) return a.rank > b.rank;
  return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
}

struct Item {
  int64_t number = 0;  // in the batch
  std::vector<Beam> beams = {};
  std::vector<Hypothesis> finished = {};  // best first, at most num_beams
  bool live = true;
};

class BeamSearch {
 public:
  explicit BeamSearch(Search& search)
      : search_(search),
        width_(search.options.num_beams),
        kept_(width_ * std::max<int64_t>(2, 1 + static_cast<int64_t>(search.options.eos_token_id.size()))) {}

  void run() {
    for (int64_t item = 0; item < search_.decoder.items(); ++item) {
      items_.push_back({.number = item});
      items_.back().beams.push_back(
          {.ids = search_.result.start[static_cast<size_t>(item)], .text = search_.new_text()});
    }
    // All beams of an item begin alike: one row each until they part.
    at::Tensor logits = search_.start();  // [items, V]
    for (int64_t step = 0;; ++step) {
      search_.result.steps = step + 1;
      advance(logits, step);
      if (!search_.call_back({})) {
        for (auto& item : items_) cancel(item, step + 1);
        break;
      }
      if (std::none_of(items_.begin(), items_.end(), [](const Item& item) { return item.live; })) break;
      if (!reorder_.empty()) search_.decoder.reorder(reorder_);
      std::vector<int64_t> tokens;
      for (const auto& item : items_)
        if (item.live)
          for (const auto& beam : item.beams) tokens.push_back(beam.ids.back());
      logits = search_.step(tokens);
    }
    for (auto& item : items_) {
      auto& out = search_.result.items[static_cast<size_t>(item.number)];
      const auto wanted = static_cast<size_t>(search_.options.num_return_sequences);
      if (item.finished.size() > wanted) item.finished.resize(wanted);
      out = std::move(item.finished);
    }
  }

 private:
  // Reads one row of logits per beam of each live item and makes the next beams; sets reorder_ ("" where rows stay).
  void advance(const at::Tensor& logits, int64_t step) {
    std::vector<std::vector<Candidate>> candidates = logits.scalar_type() == at::kDouble
                                                         ? all_candidates<double>(logits, step)
                                                         : all_candidates<float>(logits, step);
    std::vector<int64_t> order;
    int64_t first_row = 0;
    size_t number = 0;
    for (auto& item : items_) {
      if (!item.live) continue;
      const auto rows = static_cast<int64_t>(item.beams.size());
      const std::vector<int64_t> parents = next_beams(item, candidates[number++], step);
      for (const int64_t parent : parents) order.push_back(first_row + parent);
      first_row += rows;
    }
    bool same = static_cast<int64_t>(order.size()) == first_row;
    for (size_t r = 0; same && r < order.size(); ++r) same = order[r] == static_cast<int64_t>(r);
    reorder_ = same ? std::vector<int64_t>() : std::move(order);
  }

  // For each live item its best candidates, best sum first.
  template <class T>
  std::vector<std::vector<Candidate>> all_candidates(const at::Tensor& logits, int64_t step) const {
    std::vector<const Beam*> beams;
    std::vector<int64_t> items;
    for (const auto& item : items_) {
      if (!item.live) continue;
      for (const auto& beam : item.beams) {
        beams.push_back(&beam);
        items.push_back(item.number);
      }
    }
    std::vector<double> sums = search_.log_sums(logits, step, items);
    at::Tensor scores = logits;
    if (search_.rules.acts_at(search_.lengths.prompt + step)) {
      // Rules work on log-probabilities here, and nothing is normalised after them.
      const at::Tensor shift = at::tensor(sums, at::kDouble).to(logits.scalar_type()).unsqueeze(1);  // [R, 1]
      scores = logits - shift;
      std::fill(sums.begin(), sums.end(), 0.0);
      std::vector<const std::vector<int64_t>*> ids;
      for (const Beam* beam : beams) ids.push_back(&beam->ids);
      search_.apply_rules(scores, ids, items);
    }
    const auto vocabulary = static_cast<size_t>(logits.size(1));
    const T* data = scores.data_ptr<T>();
    std::vector<std::vector<Candidate>> per_row(beams.size());
    const int64_t per_item = static_cast<int64_t>(beams.size()) / live_items();
    parallel_for(static_cast<int64_t>(beams.size()), 1, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const auto row = static_cast<size_t>(r);
        if (beams[row]->dead || sums[row] == -std::numeric_limits<double>::infinity()) continue;
        const std::span<const T> row_scores(data + row * vocabulary, vocabulary);
        const double offset = beams[row]->sum - sums[row];
        per_row[row] = search_.options.samples() ? draw(row_scores, offset, items[row], r % per_item, step)
                                                 : best(row_scores, offset, r % per_item);
      }
    });
    std::vector<std::vector<Candidate>> lists;
    for (size_t row = 0; row < per_row.size(); row += static_cast<size_t>(per_item)) {
      auto& list = lists.emplace_back();
      for (size_t beam = 0; beam < static_cast<size_t>(per_item); ++beam)
        list.insert(list.end(), per_row[row + beam].begin(), per_row[row + beam].end());
      keep_best(list);
      for (auto& candidate : list) candidate.rank = candidate.sum;
      std::sort(list.begin(), list.end(), better);
    }
    return lists;
  }

  template <class T>
  std::vector<Candidate> best(std::span<const T> scores, double offset, int64_t beam) const {
    std::vector<Candidate> list;
    for (const auto& choice : best_choices(scores, kept_)) {
      const double sum = offset + static_cast<double>(choice.score);
      list.push_back({.sum = sum, .beam = beam, .token = choice.token, .rank = sum});
    }
    return list;
  }

  // Drawing n of all candidates of an item without putting back is taking the n largest of sum + Gumbel noise.
  template <class T>
  std::vector<Candidate> draw(std::span<const T> scores, double offset, int64_t item, int64_t beam,
                              int64_t step) const {
    const uint64_t key = random_key(static_cast<uint64_t>(search_.options.seed), search_.number(item), beam, step);
    std::vector<Candidate> list;
    for (size_t token = 0; token < scores.size(); ++token) {
      if (scores[token] == -std::numeric_limits<T>::infinity()) continue;
      const double sum = offset + static_cast<double>(scores[token]);
      const double u = 1 - Random(key, token).uniform();  // in (0, 1]
      const double noise = -std::log(std::max(-std::log(u), std::numeric_limits<double>::min()));
      list.push_back({.sum = sum, .beam = beam, .token = static_cast<int64_t>(token), .rank = sum + noise});
    }
    keep_best(list);
    return list;
  }

  void keep_best(std::vector<Candidate>& list) const {
    const auto wanted = static_cast<size_t>(kept_);
    if (list.size() <= wanted) return;
    std::nth_element(list.begin(), list.begin() + static_cast<ptrdiff_t>(wanted) - 1, list.end(), better);
    list.resize(wanted);
  }

  // Ends hypotheses, makes the beams of the next step and decides whether the item goes on. Returns the parent of each
  // new beam, nothing where the item has ended.
  std::vector<int64_t> next_beams(Item& item, const std::vector<Candidate>& candidates, int64_t step) {
    const int64_t length = step + 1;  // new tokens, with this one
    std::vector<Beam> beams;
    std::vector<int64_t> parents;
    std::vector<Hypothesis> ended;
    for (size_t rank = 0; rank < candidates.size(); ++rank) {
      const Candidate& candidate = candidates[rank];
      const bool may_end = rank < static_cast<size_t>(width_);
      const bool full = parents.size() == static_cast<size_t>(width_);
      if (full && !may_end) break;
      const Beam& parent = item.beams[static_cast<size_t>(candidate.beam)];
      StoppingDecoder text = parent.text;
      text.push(candidate.token);
      const bool eos = search_.ends(candidate.token);
      if (eos || text.stopped() || length == search_.lengths.max_new) {
        if (!may_end) continue;
        text.finish();
        ended.push_back({.ids = new_ids(item, parent.ids),
                         .score = candidate.sum / std::pow(length, search_.options.length_penalty),
                         .finish = eos              ? Finish::kEos
                                   : text.stopped() ? Finish::kStop
                                                    : Finish::kLength,
                         .text = text.text()});
        ended.back().ids.push_back(candidate.token);
      } else if (!full) {
        beams.push_back({.ids = parent.ids, .sum = candidate.sum, .text = std::move(text)});
        beams.back().ids.push_back(candidate.token);
        parents.push_back(candidate.beam);
      }
    }
    if (candidates.empty()) {  // no token is allowed in any beam
      for (auto& beam : item.beams)
        if (!beam.dead) ended.push_back(as_it_is(item, beam, step, Finish::kStop));
    }
    add_finished(item, std::move(ended));
    item.live = !beams.empty() && goes_on(item, beams[0].sum, length);
    item.beams = std::move(beams);
    if (!item.live) return {};
    while (parents.size() < static_cast<size_t>(width_)) {
      item.beams.push_back({.ids = item.beams[0].ids, .dead = true});
      parents.push_back(parents[0]);
    }
    return parents;
  }

  void add_finished(Item& item, std::vector<Hypothesis> ended) const {
    std::move(ended.begin(), ended.end(), std::back_inserter(item.finished));
    std::stable_sort(item.finished.begin(), item.finished.end(),
                     [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
    if (item.finished.size() > static_cast<size_t>(width_)) item.finished.resize(static_cast<size_t>(width_));
  }

  // Whether a running beam could still be better than the worst of the finished.
  bool goes_on(const Item& item, double best_sum, int64_t length) const {
    if (item.finished.size() < static_cast<size_t>(width_)) return true;
    const auto& options = search_.options;
    if (options.early_stopping == "true") return false;
    const bool to_the_end = options.early_stopping == "never" && options.length_penalty > 0;
    const auto reach = static_cast<double>(to_the_end ? search_.lengths.max_new : length);
    return best_sum / std::pow(reach, options.length_penalty) > item.finished.back().score;
  }

  // Beams that are still running stand behind what is finished.
  void cancel(Item& item, int64_t length) const {
    if (!item.live) return;
    for (auto& beam : item.beams)
      if (!beam.dead) item.finished.push_back(as_it_is(item, beam, length, Finish::kCancelled));
  }

  Hypothesis as_it_is(const Item& item, Beam& beam, int64_t length, Finish finish) const {
    beam.text.finish();
    return {.ids = new_ids(item, beam.ids),
            .score = beam.sum / std::pow(std::max<int64_t>(length, 1), search_.options.length_penalty),
            .finish = finish,
            .text = beam.text.text()};
  }

  std::vector<int64_t> new_ids(const Item& item, const std::vector<int64_t>& ids) const {
    const auto start = search_.result.start[static_cast<size_t>(item.number)].size();
    return {ids.begin() + static_cast<ptrdiff_t>(start), ids.end()};
  }

  int64_t live_items() const {
    return std::count_if(items_.begin(), items_.end(), [](const Item& item) { return item.live; });
  }

  Search& search_;
  int64_t width_, kept_;  // beams, and candidates that are looked at
  std::vector<Item> items_;
  std::vector<int64_t> reorder_;
};

}  // namespace

void search_beams(Search& search) { BeamSearch(search).run(); }

}  // namespace palimpsest::generate
