// SPDX-License-Identifier: Apache-2.0
#include "apps/plot_eval.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "apps/command.h"
#include "apps/gnuplot.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/log.h"

namespace fs = std::filesystem;

namespace palimpsest::app {

namespace {

/// A value with its interval, where the axis has groups: `group` counts them.
struct Point {
  size_t group = 0;
  double value = 0, low = 0, high = 0;
};

struct Curve {
  std::string label;
  std::vector<Point> points;
};

/// What one picture needs beside its curves.
struct Axes {
  std::string title, x, y;
  std::vector<std::string> groups;  ///< labels of the horizontal axis
  std::string more;                 ///< further gnuplot settings
};

/// One result of eval and the file it lies in.
struct Result {
  std::string file;
  Json json;
};

/// A file holds one object, or one a line.
std::vector<Result> results_of(const std::vector<std::string>& files) {
  std::vector<Result> results;
  for (const std::string& file : files) {
    const std::string text = read_file(file);
    std::vector<Json> found;
    if (Json whole = Json::parse(text, nullptr, false); !whole.is_discarded()) {
      found.push_back(std::move(whole));
    } else {
      std::stringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        if (!line.empty()) found.push_back(Json::parse(line, nullptr, false));
      }
    }
    for (Json& json : found) {
      if (!json.is_object() || !json.contains("by_place") || !json.contains("carry") || !json.contains("task"))
        throw input_error("is not what eval --json prints", file, "palimpsest eval … --json > " + file);
      results.push_back({fs::path(file).filename().string(), std::move(json)});
    }
    if (found.empty()) throw input_error("the file is empty", file, "palimpsest eval … --json > " + file);
  }
  return results;
}

/// The curves side by side, so that their intervals do not hide each other.
void draw_curves(const fs::path& folder, const std::string& name, const std::vector<Curve>& curves, const Axes& axes) {
  std::string data, plots, tics;
  for (size_t i = 0; i < curves.size(); ++i) {
    const double aside = std::min(0.07, 0.5 / static_cast<double>(curves.size())) *
                         (static_cast<double>(i) - 0.5 * static_cast<double>(curves.size() - 1));
    data += fmt::format("$curve{} << END\n", i);
    for (const Point& point : curves[i].points) {
      data += fmt::format("{:.4f} {} {} {}\n", static_cast<double>(point.group) + aside, point.value, point.low,
                          point.high);
    }
    data += "END\n";
    plots += fmt::format(
        "{}$curve{} using 1:2:3:4 with yerrorlines linewidth 2 pointtype 7 pointsize 0.8 title {} "
        "noenhanced",
        plots.empty() ? "" : ", ", i, quoted(curves[i].label));
  }
  for (size_t i = 0; i < axes.groups.size(); ++i)
    tics += fmt::format("{}\"{}\" {}", tics.empty() ? "" : ", ", axes.groups[i], i);
  draw(folder, name,
       data + fmt::format(
                  "set encoding utf8\nset title {}\nset xlabel {}\nset ylabel {}\nset xrange [-0.5:{}]\n"
                  "set xtics ({})\n{}set grid\nset key outside below\nset border 3\nset tics nomirror\n{}plot {}\n",
                  quoted(axes.title), quoted(axes.x), quoted(axes.y), static_cast<double>(axes.groups.size()) - 0.5,
                  tics, tics.find("\\n") == std::string::npos ? "" : "set xlabel offset 0,-0.8\n", axes.more, plots));
}

using Range = std::pair<int64_t, int64_t>;

Range range_of(const Json& group) { return {group.at("first").get<int64_t>(), group.at("last").get<int64_t>()}; }

/// The groups of all results on one axis, labelled with their range and, where all agree, their targets.
class GroupAxis {
 public:
  void add(const Json& group) { targets_[range_of(group)].insert(group.at("targets").get<int64_t>()); }
  bool empty() const { return targets_.empty(); }
  size_t place(const Json& group) const {
    return static_cast<size_t>(std::distance(targets_.begin(), targets_.find(range_of(group))));
  }
  std::vector<std::string> labels() const {
    std::vector<std::string> labels;
    for (const auto& [range, targets] : targets_) {
      std::string label =
          range.first == range.second ? std::to_string(range.first) : fmt::format("{}–{}", range.first, range.second);
      if (targets.size() == 1) label += "\\n" + format_count(*targets.begin());
      labels.push_back(std::move(label));
    }
    return labels;
  }
  bool counted() const {
    return std::all_of(targets_.begin(), targets_.end(), [](const auto& one) { return one.second.size() == 1; });
  }

 private:
  std::map<Range, std::set<int64_t>> targets_;
};

Point point_of(size_t place, const Json& holder, const char* value, const char* interval) {
  Point point{place, holder.at(value).get<double>(), holder.at(value).get<double>(), holder.at(value).get<double>()};
  if (holder.contains("interval")) {
    point.low = holder["interval"].at(interval)[0].get<double>();
    point.high = holder["interval"].at(interval)[1].get<double>();
  }
  return point;
}

std::string label_of(const Result& result, const std::string& carry) { return carry + " (" + result.file + ")"; }

/// Perplexity, and what comparisons hold, of one task by the groups that `key` lists.
void plot_groups(const std::vector<Result>& results, const std::string& key, const std::string& what,
                 const std::string& name, const fs::path& folder) {
  GroupAxis axis;
  for (const Result& result : results) {
    if (!result.json.contains(key)) continue;
    for (const Json& group : result.json.at(key)) axis.add(group);
  }
  if (axis.empty()) return;
  std::vector<Curve> levels, gaps;
  double least = 0, most = 0;
  const auto add_level = [&](const Json& holder, std::string label) {
    Curve curve{std::move(label), {}};
    for (const Json& group : holder.at(key)) {
      curve.points.push_back(point_of(axis.place(group), group, "ppl", "ppl"));
      const double value = curve.points.back().value;
      least = least == 0 ? value : std::min(least, value), most = std::max(most, value);
    }
    levels.push_back(std::move(curve));
  };
  for (const Result& result : results) {
    if (!result.json.contains(key)) continue;
    const std::string carry = result.json.at("carry").get<std::string>();
    add_level(result.json, label_of(result, carry));
    for (const Json& other : result.json.value("compare", Json::array())) {
      const std::string named = other.at("carry").get<std::string>();
      add_level(other, label_of(result, named));
      Curve gap{label_of(result, named + " above " + carry), {}};
      for (const Json& group : other.at(key))
        gap.points.push_back(point_of(axis.place(group), group.at("difference"), "nll_per_target", "nll_per_target"));
      gaps.push_back(std::move(gap));
    }
  }
  Axes axes{.title = results.front().json.at("task").get<std::string>() + ": perplexity by " + what,
            .x = what + (axis.counted() ? "; below it, targets" : ""),
            .y = "perplexity per token (95 % intervals)",
            .groups = axis.labels(),
            .more = most > 20 * least ? "set logscale y\n" : ""};
  draw_curves(folder, "perplexity_by_" + name, levels, axes);
  if (gaps.empty()) return;
  axes.title = results.front().json.at("task").get<std::string>() + ": what the memory is worth, by " + what;
  axes.y = "loss per token more (95 % intervals)";
  axes.more = "set xzeroaxis linewidth 1 linecolor 'black'\n";
  draw_curves(folder, "gap_by_" + name, gaps, axes);
}

/// The share given back by distance: the tasks current (0), recall (1), recall:2, … of each model.
void plot_recall(const std::vector<Result>& results, const fs::path& folder) {
  std::map<std::string, std::map<int64_t, Json>> curves;
  std::set<int64_t> distances;
  const auto add = [&](const Result& result, const Json& holder) {
    if (!holder.contains("recall") || !result.json.contains("distance")) return;
    const auto distance = result.json.at("distance").get<int64_t>();
    std::string label = fs::path(result.json.at("model").get<std::string>()).lexically_normal().string() + ", " +
                        holder.at("carry").get<std::string>();
    // The same model on other texts is another curve.
    if (curves[label].count(distance) != 0) label += " (" + result.file + ")";
    curves[label][distance] = holder.at("recall");
    distances.insert(distance);
  };
  for (const Result& result : results) {
    add(result, result.json);
    for (const Json& other : result.json.value("compare", Json::array())) add(result, other);
  }
  if (distances.empty()) return;
  Axes axes{.title = "what the memory gives back, by distance",
            .x = "segments back",
            .y = "% of tokens at their exact place",
            .groups = {},
            .more = "set yrange [0:100]\n"};
  for (const int64_t distance : distances)
    axes.groups.push_back(distance == 0 ? "0 (current)" : std::to_string(distance));
  std::vector<Curve> drawn;
  for (const auto& [label, by_distance] : curves) {
    Curve curve{label, {}};
    for (const auto& [distance, recall] : by_distance) {
      const auto place = static_cast<size_t>(std::distance(distances.begin(), distances.find(distance)));
      Point point = point_of(place, recall, "share", "share");
      for (double* value : {&point.value, &point.low, &point.high}) *value *= 100;
      curve.points.push_back(point);
    }
    drawn.push_back(std::move(curve));
  }
  draw_curves(folder, "given_back", drawn, axes);
}

}  // namespace

void plot_evals(const std::vector<std::string>& files, const fs::path& folder) {
  const std::vector<Result> results = results_of(files);
  std::map<std::string, std::vector<Result>> by_task;  // losses of different targets do not belong side by side
  for (const Result& result : results) by_task[result.json.at("task").get<std::string>()].push_back(result);
  for (const auto& [task, group] : by_task) {
    std::string ending = by_task.size() > 1 ? "_" + task : "";
    std::replace(ending.begin(), ending.end(), ':', '-');
    const bool turns = std::all_of(group.begin(), group.end(),
                                   [](const Result& result) { return result.json.value("place", "") == "turn"; });
    plot_groups(group, "by_place", turns ? "turn" : "segment", "place" + ending, folder);
    plot_groups(group, "by_session", "session", "session" + ending, folder);
  }
  plot_recall(results, folder);
}

}  // namespace palimpsest::app
