// SPDX-License-Identifier: Apache-2.0
// Talk goes to stderr: log lines (spdlog) and a progress bar that shows itself only on a terminal.
#pragma once

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace palimpsest {

/// Sends spdlog's default logger to stderr as plain "message" lines ("warning: message" from that level on).
/// `verbosity`: -1 warnings only, 0 information, 1 debugging.
void start_logging(int verbosity);

/// A line on stderr that is rewritten in place: label, share done, rate, time left and a note. On anything
/// but a terminal it prints a plain line at every tenth of the work instead, at most one in five seconds.
class Progress {
 public:
  /// `total` steps of `unit`; 0 where unknown. `first` steps were done before (a resumed run).
  Progress(std::string label, int64_t total, std::string unit, int64_t first = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` steps are finished now; `note` (a loss, say) stands at the end of the line.
  void update(int64_t done, const std::string& note = "");
  /// Clears the line, so that something else can be printed; the next update draws it again.
  void clear();
  /// Hides all bars of this process (`--no-progress-bar`, `--quiet`).
  static void hide_all();

 private:
  std::string label_, unit_;
  int64_t total_, first_, done_ = 0, last_tenth_ = -1;
  bool terminal_, drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_draw_;
};

/// "1.2 MiB", "640 KiB", "12 B".
std::string format_bytes(int64_t bytes);
/// "1h02m", "3m05s", "4.2s".
std::string format_seconds(double seconds);
/// 1234567 -> "1,234,567".
std::string format_count(int64_t count);

}  // namespace palimpsest
