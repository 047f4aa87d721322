// SPDX-License-Identifier: Apache-2.0
// The smallest complete program: reads a text segment by segment, carries a memory of fixed size, and asks it at the
// end for the segment before the last.
//
//     build/release/examples/read_and_recall models/recall-small "In the beginning …"
#include <cstdio>
#include <string>

#include "palimpsest/palimpsest.h"

int main(int argc, char** argv) {
  using namespace palimpsest;
  if (argc != 3) {
    std::fprintf(stderr, "usage: read_and_recall MODEL TEXT\n");
    return 2;
  }
  try {
    const at::NoGradGuard no_grad;
    const auto folder = checkpoint::load_model(argv[1], {.dtype = at::kFloat});
    const models::BartModel& model = *folder.bart();
    const text::Tokenizer& tokenizer = folder.need_tokenizer();
    const auto ids = tokenizer.encode_ids(argv[2]);
    const auto segment = static_cast<size_t>(folder.training.segment);

    models::EncoderOutput read;
    for (size_t first = 0; first < ids.size(); first += segment) {
      const std::vector<int64_t> row(ids.begin() + static_cast<long>(first),
                                     ids.begin() + static_cast<long>(std::min(ids.size(), first + segment)));
      read = model.encode({.ids = at::tensor(row, at::kLong).unsqueeze(0), .memory = read.memory});
    }
    std::printf("read %zu tokens; the memory has %lld bytes\n", ids.size(),
                static_cast<long long>(read.memory.bytes()));

    const auto& recall = folder.training.task("recall");
    const auto given = generate::greedy(model, read,
                                        {.start_id = recall.start_id,
                                         .max_new_tokens = folder.training.segment,
                                         .eos_id = model.config().eos_token_id});
    const auto& tokens = given.sequences.front();
    std::printf("the segment before the last: %s\n",
                tokenizer.decode(std::vector<int32_t>(tokens.begin(), tokens.end()), true).c_str());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
