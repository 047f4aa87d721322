// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/lanes.h"

#include <algorithm>
#include <numeric>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"

namespace palimpsest::data {

Lanes::Lanes(std::shared_ptr<const Corpus> corpus, std::vector<Span> spans, std::shared_ptr<const StepPlan> plan,
             LaneOptions options)
    : corpus_(std::move(corpus)), spans_(std::move(spans)), plan_(std::move(plan)), options_(options) {
  if (options_.lanes < 1) throw usage_error(fmt::format("{} lanes", options_.lanes), "", "at least one is needed");
  std::erase_if(spans_, [](const Span& span) { return span.size() <= 0; });
  if (spans_.empty())
    throw usage_error("no documents to read", "", "check data, the share held out and the shortest length kept");
  for (const Span& span : spans_) {
    if (span.begin < 0 || span.end > static_cast<int64_t>(corpus_->tokens(span.document).size())) {
      throw internal_error(fmt::format("tokens {} to {} of {}", span.begin, span.end, corpus_->name(span.document)));
    }
    items_per_epoch_ += count(span);
  }
  places_.resize(static_cast<size_t>(options_.lanes));
  start_epoch(0);
}

int64_t Lanes::count(const Span& span) const {
  const int64_t all = plan_->count(span);
  return options_.max_steps > 0 ? std::min(all, options_.max_steps) : all;
}

void Lanes::start_epoch(int64_t epoch) {
  epoch_ = epoch;
  queue_ = 0;
  const auto count = static_cast<int64_t>(spans_.size());
  if (options_.shuffle) {
    order_ = permutation(count, random_key(options_.seed, epoch));
  } else {
    order_.resize(spans_.size());
    std::iota(order_.begin(), order_.end(), int64_t{0});
  }
}

/// Gives an empty place the next document of the queue; false where there is none.
bool Lanes::refill(Place& place) {
  if (place.span >= 0) return true;
  if (queue_ == static_cast<int64_t>(order_.size())) {
    if (!options_.repeat) return false;
    start_epoch(epoch_ + 1);
  }
  place = {.span = order_[static_cast<size_t>(queue_++)], .segment = 0, .epoch = epoch_};
  return true;
}

LaneItem Lanes::take(Place& place) {
  const Span& span = spans_[static_cast<size_t>(place.span)];
  const Span part = plan_->step(span, place.segment).read;
  LaneItem item{
      .idle = false,
      .reset = place.segment == 0,
      .document = span.document,
      .segment = place.segment,
      .tokens =
          corpus_->tokens(span.document).subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.size())),
      .last = place.segment + 1 == count(span),
      .span = place.span,
      .begin = part.begin,
      .epoch = place.epoch};
  ++place.segment;
  if (item.last) place = {};
  ++given_;
  return item;
}

std::vector<LaneItem> Lanes::next() {
  std::vector<LaneItem> items(places_.size());
  bool any = false;
  for (size_t lane = 0; lane < places_.size(); ++lane) {
    if (!refill(places_[lane])) continue;
    items[lane] = take(places_[lane]);
    any = true;
  }
  if (!any) items.clear();
  return items;
}

double Lanes::progress() const { return static_cast<double>(given_) / static_cast<double>(items_per_epoch_); }

std::string Lanes::fingerprint() const {
  const auto [first, second] = plan_->key();
  uint64_t key = random_key(options_.seed, options_.lanes, first, second, options_.shuffle, options_.repeat);
  if (options_.max_steps > 0) key = random_key(key, options_.max_steps);
  for (const Span& span : spans_) key = random_key(key, span.document, span.begin, span.end);
  return fmt::format("{:016x}-{}", key, corpus_->fingerprint());
}

Json Lanes::state() const {
  Json lanes = Json::array();
  for (const Place& place : places_) lanes.push_back({place.span, place.segment, place.epoch});
  return {{"fingerprint", fingerprint()}, {"epoch", epoch_}, {"queue", queue_}, {"given", given_}, {"lanes", lanes}};
}

void Lanes::restore(const Json& state) {
  const std::string source = "state of the lanes";
  if (json_string(state, "fingerprint", source) != fingerprint()) {
    throw input_error(
        "the state is of other data or other options", source,
        "resume with the same data, tokenizer, split, lanes, segment, overlap, shuffle and seed, or start anew");
  }
  const int64_t epoch = json_int(state, "epoch", source), queue = json_int(state, "queue", source),
                given = json_int(state, "given", source);
  std::vector<Place> places;
  try {
    for (const Json& lane : state.at("lanes"))
      places.push_back({lane.at(0).get<int64_t>(), lane.at(1).get<int64_t>(), lane.at(2).get<int64_t>()});
  } catch (const Json::exception&) {
    throw input_error("\"lanes\" is not a list of places", source);
  }
  const auto count = static_cast<int64_t>(spans_.size());
  const auto is_good = [&](const Place& place) {
    return place.span >= -1 && place.span < count && place.segment >= 0 &&
           (place.span < 0 || place.segment < this->count(spans_[static_cast<size_t>(place.span)]));
  };
  if (epoch < 0 || queue < 0 || queue > count || given < 0 || places.size() != places_.size() ||
      !std::all_of(places.begin(), places.end(), is_good)) {
    throw input_error("a number is out of range", source, "the file is damaged: use an older checkpoint");
  }
  start_epoch(epoch);
  queue_ = queue;
  given_ = given;
  places_ = std::move(places);
}

}  // namespace palimpsest::data
