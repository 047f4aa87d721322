// SPDX-License-Identifier: Apache-2.0
// A conversation with a model that carries a memory: at each exchange the model reads the end of the history once,
// beside its memory, and answers (ALGORITHMS 3.4, dialogue). Only the memory and that end are kept.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  generate::GenerationOptions generation;  ///< without a limit of tokens: 64, or what the position table holds
};

struct Reply {
  std::string text;
  generate::Finish finish = generate::Finish::kEos;
  int64_t tokens = 0;  ///< written
  double read_seconds = 0, write_seconds = 0;
  double gate = 0;  ///< mean of the memory's gate; 0 without one
};

struct RecallOptions {
  std::string task;            ///< "current" (what was read last), "recall" (the exchange before), "recall:2", …;
                               ///< empty: the first of recall_tasks()
  int64_t max_new_tokens = 0;  ///< 0: a window
  /// The decoder sees the slots and nothing else; with this also what was read last, as recall is trained and
  /// train::evaluate_recall measures it. That row is read again, from the memory before it.
  bool beside_row = false;
};

/// What a memory gave back.
struct Recalled {
  std::string task;
  int64_t back = -1;  ///< the exchange it asks for: 0 what was read last, N what was read N exchanges before; -1 none
  std::string text;
  std::vector<int64_t> ids;  ///< with eos where it was written
};

/// What was said, and what the model answered; without an answer it writes one (see replay).
struct Exchange {
  std::string said;
  std::optional<std::string> reply = {};
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

  /// What the memory gives back. A usage error where the session holds none.
  Recalled recall(const Session& session, const RecallOptions& options) const;
  /// Those of the model's tasks that ask a memory for what was read, the latest first.
  std::vector<std::string> recall_tasks() const;

  /// The moments of a conversation that went so, the last one last: what each exchange made the model read, and the
  /// context after it. Where an answer is not given it is written as answer() writes it, from the memory that stood
  /// there; where all are, nothing is computed and the moments hold no memory.
  std::vector<Moment> replay(const std::vector<Exchange>& exchanges) const;

  /// A new session of this model.
  Session begin(int64_t keep = 8) const { return Session(fingerprint_, keep); }
  const std::string& fingerprint() const { return fingerprint_; }
  int64_t window() const { return window_; }
  std::string text_of(const std::vector<int32_t>& ids) const { return folder_.need_tokenizer().decode(ids); }

 private:
  /// Tokens of a row that are the history's: the frame of those who were trained with one takes two.
  size_t room() const { return static_cast<size_t>(window_ - (framed_ ? 2 : 0)); }
  std::vector<int32_t> encode(const std::string& role, const std::string& text) const;
  /// Reads `moment.read` with the memory that stood before it; `gate` (may be null) receives the gate's mean.
  models::EncoderOutput read_row(const Moment& moment, memory::Memory before, double* gate) const;
  /// Lets the moment read what was said; its tokens.
  size_t hear(Moment& moment, const std::string& text) const;

  const checkpoint::ModelFolder& folder_;
  ChatOptions options_;
  std::shared_ptr<models::BartModel> model_;
  std::string fingerprint_;
  int64_t window_ = 0, start_id_ = 0;
  bool framed_ = true;
};

/// Exchanges out of a text that holds a conversation of `turns` turns: lines "A: …" and "B: …"; what a terminal showed
/// ("> …", then the answer); or plain lines, one a turn, or only what was said to the model. Lines that begin with one
/// slash are commands of `chat` and left out. An input error, which names `source`, where it has other turns.
std::vector<Exchange> parse_conversation(const std::string& text, int64_t turns, const std::string& source);

}  // namespace palimpsest::serve
