// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/generate/stop.h"

#include <deque>
#include <map>

#include "palimpsest/core/error.h"

namespace palimpsest::generate {

struct StopStrings::Table {
  struct Node {
    std::map<char, int32_t> next;
    int32_t shorter = 0;  // the longest proper end of this node's text that begins some string
    int32_t depth = 0;    // bytes of this node's text
    int32_t match = -1;   // the longest string that this node's text ends with
  };
  std::vector<Node> nodes{1};
  std::vector<std::string> strings;

  int32_t child(int32_t state, char byte) const {
    const auto& next = nodes[static_cast<size_t>(state)].next;
    const auto found = next.find(byte);
    return found == next.end() ? -1 : found->second;
  }
  int32_t step(int32_t state, char byte) const {
    for (;;) {
      if (const int32_t next = child(state, byte); next >= 0) return next;
      if (state == 0) return 0;
      state = nodes[static_cast<size_t>(state)].shorter;
    }
  }
  void add(const std::string& text, int32_t number) {
    int32_t state = 0;
    for (const char byte : text) {
      int32_t next = child(state, byte);
      if (next < 0) {
        next = static_cast<int32_t>(nodes.size());
        nodes[static_cast<size_t>(state)].next[byte] = next;
        const int32_t depth = nodes[static_cast<size_t>(state)].depth + 1;
        nodes.emplace_back().depth = depth;
      }
      state = next;
    }
    nodes[static_cast<size_t>(state)].match = number;
  }
  // Breadth first, so that shorter texts are done when longer ones look at them.
  void link() {
    std::deque<int32_t> queue = {0};
    while (!queue.empty()) {
      const int32_t state = queue.front();
      queue.pop_front();
      for (const auto& [byte, next] : nodes[static_cast<size_t>(state)].next) {
        Node& node = nodes[static_cast<size_t>(next)];
        node.shorter = state == 0 ? 0 : step(nodes[static_cast<size_t>(state)].shorter, byte);
        if (node.match < 0) node.match = nodes[static_cast<size_t>(node.shorter)].match;
        queue.push_back(next);
      }
    }
  }
};

StopStrings::StopStrings(const std::vector<std::string>& strings) {
  if (strings.empty()) return;
  auto table = std::make_shared<Table>();
  table->strings = strings;
  for (size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].empty()) throw usage_error("an empty stop string would end everything at once", "", "leave it out");
    table->add(strings[i], static_cast<int32_t>(i));
  }
  table->link();
  table_ = std::move(table);
}

std::string StopStrings::push(std::string_view piece) {
  if (stopped_) return "";
  if (!table_) return std::string(piece);
  std::string out = std::move(held_);
  held_.clear();
  for (const char byte : piece) {
    out += byte;
    state_ = table_->step(state_, byte);
    const int32_t match = table_->nodes[static_cast<size_t>(state_)].match;
    if (match < 0) continue;
    stopped_ = true;
    out.resize(out.size() - table_->strings[static_cast<size_t>(match)].size());
    return out;
  }
  const auto deep = static_cast<size_t>(table_->nodes[static_cast<size_t>(state_)].depth);
  held_ = out.substr(out.size() - deep);
  out.resize(out.size() - deep);
  return out;
}

std::string StopStrings::finish() {
  std::string rest = std::move(held_);
  held_.clear();
  state_ = stopped_ ? state_ : 0;
  return rest;
}

std::string_view StopStrings::matched() const {
  if (!stopped_) return "";
  return table_->strings[static_cast<size_t>(table_->nodes[static_cast<size_t>(state_)].match)];
}

std::string StoppingDecoder::push(int64_t id) {
  if (!decoder_) return "";
  std::string piece = stops_.push(decoder_->push(static_cast<int32_t>(id)));
  text_ += piece;
  return piece;
}

std::string StoppingDecoder::finish() {
  if (!decoder_) return "";
  std::string piece = stops_.push(decoder_->finish());
  piece += stops_.finish();
  text_ += piece;
  return piece;
}

}  // namespace palimpsest::generate
