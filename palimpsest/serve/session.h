// SPDX-License-Identifier: Apache-2.0
// A conversation's whole state: the memory and the last context, not a transcript (DESIGN section 4). It is a value,
// kept in one file that is written under a temporary name and then renamed.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "palimpsest/models/bart.h"

namespace palimpsest::serve {

/// Where a conversation stands after a turn.
struct Moment {
  memory::Memory memory;         ///< [1, M, E]; undefined without a memory
  std::vector<int32_t> context;  ///< last token ids of the history, as many as the model reads at a time at most
  std::vector<int32_t> read;     ///< what the memory read last, without the row's frame; the reply to it is no part
  int64_t turns = 0;             ///< finished turns so far, of both sides
  int64_t tokens = 0;            ///< token ids that were read or written so far
};

/// The present moment and the last ones before it.
class Session {
 public:
  /// `fingerprint` of the model; `keep`: moments to go back to (the file holds keep + 1 memories and contexts at most).
  explicit Session(std::string fingerprint, int64_t keep = 8) : fingerprint_(std::move(fingerprint)), keep_(keep) {}

  const Moment& now() const { return now_; }
  /// Makes `moment` the present one; the one before can be gone back to.
  void advance(Moment moment);
  /// Goes back n moments; a usage error, with nothing changed, where fewer are kept.
  void rewind(int64_t n);
  /// How many moments can be gone back.
  int64_t past() const { return static_cast<int64_t>(past_.size()); }
  /// The moment so many exchanges before the present one (0: that one); null where it is not kept.
  const Moment* before(int64_t exchanges) const;
  /// Forgets everything.
  void reset() { now_ = {}, past_.clear(); }

  const std::string& fingerprint() const { return fingerprint_; }
  int64_t keep() const { return keep_; }
  /// Bytes of memories and contexts.
  int64_t bytes() const;

  /// The metadata key that tells such a file from others.
  static constexpr const char* kKey = "palimpsest_session";
  /// Writes the file atomically: a reader sees the old one or the new one, whole.
  void save(const std::string& path) const;
  /// Removes the temporaries of this file that killed processes left beside it.
  static void clear_temporaries(const std::string& path);
  /// An input error that says why where the file is broken, of another format, or of another model than that of
  /// `fingerprint`; empty: of any model.
  static Session load(const std::string& path, const std::string& fingerprint = "");

 private:
  std::string fingerprint_;
  int64_t keep_;
  Moment now_;
  std::deque<Moment> past_;  ///< the latest last
};

/// What tells one model from another: family, sizes, memory, and a sample of every weight. 16 hex digits.
std::string model_fingerprint(const models::Model& model);

}  // namespace palimpsest::serve
