// SPDX-License-Identifier: Apache-2.0
// encode_batch of one tokenizer on the lines of one file: ids, tokens and offsets. benchmarks/against_tokenizers.py runs this
// against Hugging Face tokenizers; by itself:
//
//     benchmark_tokenizers --tokenizer=PATH --lines=FILE [Google Benchmark's flags]
#include <benchmark/benchmark.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/text/tokenizer.h"

namespace {

using palimpsest::text::TextInput;
using palimpsest::text::Tokenizer;

/// Takes "--name=VALUE" out of the arguments.
std::string take_flag(std::vector<char*>& arguments, const std::string& name) {
  const std::string start = "--" + name + "=";
  for (auto it = arguments.begin(); it != arguments.end(); ++it) {
    if (!std::string_view(*it).starts_with(start)) continue;
    std::string value = std::string(*it).substr(start.size());
    arguments.erase(it);
    return value;
  }
  return "";
}

void run(const std::string& path, const std::string& file) {
  const auto tokenizer = Tokenizer::load(path);
  const auto bytes = std::make_shared<const std::string>(palimpsest::read_file(file));
  std::vector<TextInput> lines;
  for (std::string_view rest = *bytes; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    lines.push_back({line});
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  benchmark::RegisterBenchmark("encode_batch",
                               [=](benchmark::State& state) {
                                 int64_t tokens = 0;
                                 for (auto unused : state) {
                                   const auto encodings = tokenizer->encode_batch(lines);
                                   tokens = 0;
                                   for (const auto& encoding : encodings)
                                     tokens += static_cast<int64_t>(encoding.ids.size());
                                 }
                                 state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes->size()));
                                 state.counters["tokens"] = static_cast<double>(tokens);
                                 state.counters["lines"] = static_cast<double>(lines.size());
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  const std::string tokenizer = take_flag(arguments, "tokenizer"), lines = take_flag(arguments, "lines");
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (tokenizer.empty() || lines.empty()) {
    std::puts("nothing to do: give --tokenizer=PATH and --lines=FILE, or run benchmarks/against_tokenizers.py");
    return 0;
  }
  try {
    run(tokenizer, lines);
  } catch (const palimpsest::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
