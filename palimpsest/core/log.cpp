// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace palimpsest {

namespace {
bool bars_hidden = false;
}

void start_logging(int verbosity) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("palimpsest", sink);
  logger->set_pattern("%v");
  logger->set_level(verbosity < 0 ? spdlog::level::warn : verbosity > 0 ? spdlog::level::debug : spdlog::level::info);
  spdlog::set_default_logger(logger);
}

Progress::Progress(std::string label, int64_t total, std::string unit, int64_t first)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      first_(first),
      done_(first),
      terminal_(::isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      last_draw_(start_) {}

Progress::~Progress() { clear(); }

void Progress::hide_all() { bars_hidden = true; }

void Progress::clear() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

void Progress::update(int64_t done, const std::string& note) {
  done_ = done;
  if (bars_hidden) return;
  const auto now = std::chrono::steady_clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double rate = elapsed > 0 ? static_cast<double>(done - first_) / elapsed : 0;
  std::string line = label_ + " ";
  if (total_ > 0) {
    const double left = rate > 0 ? static_cast<double>(total_ - done) / rate : 0;
    line += fmt::format("{:3.0f} % {}/{} {}, {:.3g} {}/s, {} left",
                        100.0 * static_cast<double>(done) / static_cast<double>(total_), done, total_, unit_, rate,
                        unit_, format_seconds(left));
  } else {
    line += fmt::format("{} {}, {:.3g} {}/s", done, unit_, rate, unit_);
  }
  if (!note.empty()) line += "  " + note;
  if (terminal_) {
    const bool last = total_ > 0 && done >= total_;
    if (!last && drawn_ && now - last_draw_ < std::chrono::milliseconds(100)) return;
    winsize size{};
    const size_t width = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 10 ? size.ws_col - 1 : 100;
    std::fprintf(stderr, "\r\x1b[K%s", line.substr(0, width).c_str());
    std::fflush(stderr);
    drawn_ = true;
    last_draw_ = now;
  } else if (total_ > 0 && done * 10 / total_ != last_tenth_ && now - last_draw_ > std::chrono::seconds(5)) {
    last_tenth_ = done * 10 / total_;
    last_draw_ = now;
    spdlog::info(line);
  }
}

std::string format_bytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", value,
                                 value < 10    ? 2
                                 : value < 100 ? 1
                                               : 0,
                                 units[unit]);
}

std::string format_seconds(double seconds) {
  const int64_t whole = static_cast<int64_t>(seconds + 0.5);
  if (seconds >= 3600) return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
  if (seconds >= 60) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{:.1f}s", seconds);
}

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count < 0 ? -count : count);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return count < 0 ? "-" + digits : digits;
}

}  // namespace palimpsest
