// SPDX-License-Identifier: Apache-2.0
// The one error type of the project: what happened, where, and how to mend it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace palimpsest {

/// Whose fault an error is; decides the exit code of the program and the status of a reply.
enum class Fault {
  kUsage,    ///< wrong flag, option or call: exit code 2
  kInput,    ///< a file or text that is broken or does not fit: exit code 2
  kInternal  ///< anything else: exit code 1
};

/// `what()` is the whole message, in the layout that terminal, log and HTTP share:
///
///     error: WHAT
///       at:  WHERE        (left out where empty)
///       fix: HOW TO MEND  (left out where empty)
class Error : public std::runtime_error {
 public:
  Error(Fault fault, std::string problem, std::string place, std::string fix);

  Fault fault() const { return fault_; }
  const std::string& problem() const { return problem_; }
  const std::string& place() const { return place_; }
  const std::string& fix() const { return fix_; }
  /// 2 for usage and input, 1 for the rest (DESIGN section 4).
  int exit_code() const { return fault_ == Fault::kInternal ? 1 : 2; }

  /// The same error, seen from further out: `outer` is put before the place.
  Error within(const std::string& outer) const;

 private:
  Fault fault_;
  std::string problem_, place_, fix_;
};

/// A wrong flag, option or call.
inline Error usage_error(std::string problem, std::string place = "", std::string fix = "") {
  return {Fault::kUsage, std::move(problem), std::move(place), std::move(fix)};
}
/// A file or text that is broken or does not fit.
inline Error input_error(std::string problem, std::string place = "", std::string fix = "") {
  return {Fault::kInput, std::move(problem), std::move(place), std::move(fix)};
}
/// Something that should not have happened, or that the machine refused (a full disk).
inline Error internal_error(std::string problem, std::string place = "", std::string fix = "") {
  return {Fault::kInternal, std::move(problem), std::move(place), std::move(fix)};
}

/// The place of the first byte that is not UTF-8 (overlong forms and surrogates included), if any.
std::optional<size_t> invalid_utf8(std::string_view text);
/// Text of a foreign file as a message can hold it: control characters escaped, broken UTF-8 replaced, no more than
/// about `longest` bytes.
std::string printable(std::string_view text, size_t longest = 200);

/// The name in `known` nearest to `name` by edit distance, or "" where none is near.
template <class Names>
std::string nearest_name(const std::string& name, const Names& known);
/// Edit distance (insert, delete, substitute, swap of neighbours).
size_t edit_distance(const std::string& a, const std::string& b);

template <class Names>
std::string nearest_name(const std::string& name, const Names& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const auto& candidate : known) {
    const size_t longer = std::max(name.size(), candidate.size()), shorter = std::min(name.size(), candidate.size());
    if (longer - shorter >= best_distance) continue;  // names of foreign files can be very long
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return best;
}

}  // namespace palimpsest
