// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/train/groups.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "palimpsest/core/error.h"

namespace palimpsest::train {

namespace {

std::vector<LossGroup> grouped(const std::vector<StepLoss>& steps,
                               const std::function<std::pair<int64_t, int64_t>(const StepLoss&)>& range_of) {
  std::map<std::pair<int64_t, int64_t>, std::map<int64_t, LossSum>> by_range;
  for (const StepLoss& step : steps) {
    LossSum& sum = by_range[range_of(step)][step.span];
    sum.targets += step.sum.targets, sum.nll += step.sum.nll;
  }
  std::vector<LossGroup> groups;
  for (const auto& [range, spans] : by_range) {
    LossGroup group{.first = range.first, .last = range.second};
    for (const auto& [span, sum] : spans) {
      group.sum.targets += sum.targets, group.sum.nll += sum.nll;
      group.spans.push_back(span);
      group.documents.push_back({sum.nll, static_cast<double>(sum.targets)});
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

Json groups_json(const std::vector<LossGroup>& groups, const std::vector<LossGroup>* base) {
  Json list = Json::array();
  for (size_t i = 0; i < groups.size(); ++i) {
    list.push_back(group_json(groups[i]));
    if (base == nullptr) continue;
    if (i >= base->size() || (*base)[i].spans != groups[i].spans)
      throw internal_error("two readings of the same documents have other steps", "eval --compare");
    list.back()["difference"] = difference_json((*base)[i].documents, groups[i].documents);
  }
  return list;
}

void add_history(Json& json, const LossReport& report, const LossReport* base, bool dialogues) {
  const auto add = [&](const char* key, std::vector<LossGroup> (*group)(const std::vector<StepLoss>&)) {
    const auto groups = group(report.steps);
    const auto of_base = base == nullptr ? std::vector<LossGroup>() : group(base->steps);
    if (key != std::string("by_session") || groups.size() > 1)
      json[key] = groups_json(groups, base == nullptr ? nullptr : &of_base);
  };
  json["place"] = dialogues ? "turn" : "segment";
  add("by_place", groups_by_place);
  if (dialogues) add("by_session", groups_by_session);
}

}  // namespace

std::vector<LossGroup> groups_by_place(const std::vector<StepLoss>& steps) {
  return grouped(steps, [](const StepLoss& step) {
    if (step.place < 1) return std::pair<int64_t, int64_t>(0, 0);
    const auto first = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(step.place)));
    return std::pair<int64_t, int64_t>(first, 2 * first - 1);
  });
}

std::vector<LossGroup> groups_by_session(const std::vector<StepLoss>& steps) {
  return grouped(steps, [](const StepLoss& step) { return std::pair(step.session, step.session); });
}

Json group_json(const LossGroup& group) {
  Json json = {{"first", group.first},          {"last", group.last},
               {"targets", group.sum.targets},  {"nll", group.sum.nll},
               {"ppl", group.sum.perplexity()}, {"documents", group.documents.size()}};
  if (group.documents.size() > 1) {
    const Interval interval = bootstrap_mean(group.documents);
    json["interval"] = {{"level", 0.95},
                        {"nll_per_target", {interval.low, interval.high}},
                        {"ppl", {std::exp(interval.low), std::exp(interval.high)}}};
  }
  return json;
}

Json difference_json(const std::vector<DocumentScore>& base, const std::vector<DocumentScore>& other) {
  for (size_t i = 0; i < std::min(base.size(), other.size()); ++i) {
    if (base[i].weight != other[i].weight)
      throw internal_error("two readings of the same documents have other targets", "eval --compare");
  }
  const Interval interval = bootstrap_difference(other, base);
  Json json = {{"nll_per_target", interval.value}};
  if (base.size() > 1) json["interval"] = {{"level", 0.95}, {"nll_per_target", {interval.low, interval.high}}};
  return json;
}

Json history_json(const LossReport& report, bool dialogues) {
  Json json;
  add_history(json, report, nullptr, dialogues);
  return json;
}

Json comparison_json(const LossReport& base, const LossReport& other, bool dialogues) {
  Json json = {{"difference", difference_json(base.documents, other.documents)}};
  add_history(json, other, &base, dialogues);
  return json;
}

}  // namespace palimpsest::train
