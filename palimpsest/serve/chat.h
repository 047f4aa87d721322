// SPDX-License-Identifier: Apache-2.0
// A conversation with a model that carries a memory: at each exchange the model reads the end of the history once,
// beside its memory, and answers (ALGORITHMS 3.4, dialogue). Only the memory and that end are kept.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/generate/search.h"
#include "palimpsest/serve/session.h"

namespace palimpsest::serve {

/// Who speaks, in data::turn_text: the model is B.
inline constexpr const char* kOther = "A";
inline constexpr const char* kSelf = "B";

struct ChatOptions {
  int64_t window = 0;  ///< tokens of the history that are read at a time, with bos and eos; 0: as trained
  std::string task;    ///< empty: "respond" where the model has it, else its first
  generate::GenerationOptions generation;
};

struct Reply {
  std::string text;
  generate::Finish finish = generate::Finish::kEos;
  int64_t tokens = 0;  ///< written
  double read_seconds = 0, write_seconds = 0;
  double gate = 0;  ///< mean of the memory's gate; 0 without one
};

/// Thread-safe but for its session: a model may serve many.
class Chat {
 public:
  /// A usage error where the model is no encoder-decoder, or was not trained for the task; an input error without a
  /// tokenizer. `folder` must outlive this.
  Chat(const checkpoint::ModelFolder& folder, ChatOptions options);

  /// The reply to `text`, and the session one exchange further. `on_text` receives the reply as it becomes certain;
  /// false stops it there: what was written so far is then the reply. Nothing of the session changes where this throws.
  Reply answer(Session& session, const std::string& text,
               const std::function<bool(const std::string& piece)>& on_text = {}) const;

  /// What the memory alone gives back as text, with nothing of the context: the decoder reads the slots and nothing
  /// else. `task`: "current" (what was read last), "recall", …; empty: the first of these that the model has.
  std::string recall(const Session& session, const std::string& task, int64_t max_new_tokens) const;

  /// A new session of this model.
  Session begin(int64_t keep = 8) const { return Session(fingerprint_, keep); }
  const std::string& fingerprint() const { return fingerprint_; }
  int64_t window() const { return window_; }

 private:
  const checkpoint::ModelFolder& folder_;
  ChatOptions options_;
  std::shared_ptr<models::BartModel> model_;
  std::string fingerprint_;
  int64_t window_ = 0, start_id_ = 0;
};

}  // namespace palimpsest::serve
