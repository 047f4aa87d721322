// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/core/error.h"

#include <algorithm>
#include <vector>

namespace palimpsest {

namespace {
std::string layout(const std::string& problem, const std::string& place, const std::string& fix) {
  std::string text = "error: " + problem;
  if (!place.empty()) text += "\n  at:  " + place;
  if (!fix.empty()) text += "\n  fix: " + fix;
  return text;
}
}  // namespace

Error::Error(Fault fault, std::string problem, std::string place, std::string fix)
    : std::runtime_error(layout(problem, place, fix)),
      fault_(fault),
      problem_(std::move(problem)),
      place_(std::move(place)),
      fix_(std::move(fix)) {}

Error Error::within(const std::string& outer) const {
  return {fault_, problem_, place_.empty() ? outer : outer + ", " + place_, fix_};
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace palimpsest
