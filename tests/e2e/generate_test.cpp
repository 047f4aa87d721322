// SPDX-License-Identifier: Apache-2.0
// `palimpsest generate` from outside: the goldens of the reference, files of lines, stopping and going on.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "palimpsest/core/files.h"
#include "palimpsest/core/json.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

std::string model(const std::string& name) { return test::fixture("folders/" + name); }

Json generated(const std::string& flags) {
  const auto result = test::run_command(test::program() + " generate --json --quiet " + flags);
  EXPECT_EQ(result.exit_code, 0) << result.err << "\n" << flags;
  return result.exit_code == 0 ? Json::parse(result.out) : Json();
}

/// The flags of a golden's options.
std::string flags_of(const Json& options) {
  std::string flags;
  for (const auto& [name, value] : options.items()) {
    std::string flag = name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    flags += value.is_boolean() && name == "do_sample" ? "" : " --" + flag + " '" + text + "'";
  }
  return flags;
}

TEST(Generate, GivesTheReferencesGoldensThroughItsFlags) {  // FR-85
  SKIP_WITHOUT_SHARED("fixtures/generation_goldens_a.json");
  const Json goldens = read_json(test::shared("fixtures/generation_goldens_a.json"));
  int cases = 0;
  for (const auto& [family, entry] : goldens.at("models").items()) {
    for (const auto& golden : entry.at("cases")) {
      if (cases++ % 4 != 0) continue;  // each starts the program; tests/generate has them all
      const Json json =
          generated("--model " + test::shared("fixtures/" + entry.at("directory").get<std::string>()) +
                    " --input-ids '" + entry.at("input_ids").dump() + "'" + flags_of(golden.at("options")));
      EXPECT_EQ(json["sequences"], golden["sequences"]) << golden["name"];
      ASSERT_EQ(json["scores"].size(), golden["scores"].size());
      for (size_t i = 0; i < json["scores"].size(); ++i)
        EXPECT_NEAR(json["scores"][i].get<double>(), golden["scores_f64"][i].get<double>(), 1e-4) << golden["name"];
    }
  }
  EXPECT_EQ(cases, 39);
}

class GenerateLines : public testing::Test {
 protected:
  GenerateLines() {
    std::string text;
    for (int i = 0; i < 11; ++i) text += fmt::format("[{}, {}, {}]\n", 3 + i, 5 + 2 * i % 20, 4 + i);
    write_file_atomically(folder_.path("ids.txt"), text);
  }
  std::string flags(const std::string& more) const {
    return " generate --quiet --model " + model("gpt2_plain") + " --lines " + folder_.path("ids.txt") +
           " --max-new-tokens 5 " + more;
  }
  test::TemporaryFolder folder_;
};

TEST_F(GenerateLines, GivesTheSameAtAnyBatchSize) {  // FR-84
  for (const std::string how : {"", "--num-beams 3", "--do-sample --seed 4"}) {
    const auto one = test::run_command(test::program() + flags("--batch 1 " + how));
    ASSERT_EQ(one.exit_code, 0) << one.err;
    EXPECT_EQ(std::count(one.out.begin(), one.out.end(), '\n'), 11);
    for (const char* batch : {"--batch 4 ", "--batch 64 "})
      EXPECT_EQ(test::run_command(test::program() + flags(batch + how)).out, one.out) << how;
  }
}

TEST_F(GenerateLines, GoesOnWhereItStopped) {
  const std::string whole = folder_.path("whole.jsonl"), cut = folder_.path("cut.jsonl");
  const std::string how = "--json --do-sample --batch 3 --output ";
  ASSERT_EQ(test::run_command(test::program() + flags(how + whole)).exit_code, 0);
  const std::string text = read_file(whole);
  // Killed in the middle of the fifth line.
  size_t end = 0;
  for (int line = 0; line < 4; ++line) end = text.find('\n', end) + 1;
  ASSERT_EQ(test::run_command(test::program() + flags(how + cut)).exit_code, 0);
  {
    std::ofstream out(cut, std::ios::trunc);
    out << text.substr(0, end + 9);
  }
  ASSERT_EQ(test::run_command(test::program() + flags(how + cut)).exit_code, 0);
  EXPECT_EQ(read_file(cut), text);
  const auto other = test::run_command(test::program() + flags("--json --do-sample --seed 9 --output " + cut));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("other settings"), std::string::npos) << other.err;
  EXPECT_EQ(read_file(cut), text);
}

TEST_F(GenerateLines, NamesTheLineThatIsWrong) {
  write_file_atomically(folder_.path("ids.txt"), "[3, 4]\n[5, 77]\n");
  const auto result = test::run_command(test::program() + flags(""));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("id 77 is outside the vocabulary of 30"), std::string::npos) << result.err;
}

TEST(Generate, RefusesWhatCannotBeMet) {
  const std::string start = test::program() + " generate --quiet --model ";
  const std::pair<std::string, const char*> cases[] = {
      {model("gpt2_plain") + " --input-ids '[[3,4]]' --max-new-tokens 40", "position"},
      {model("bart_plain") + " --input-ids '[[3,4]]' --num-beams 0", "num"},
      {model("bart_plain") + " --input-ids '[[3,4]]' --task recall", "not trained for the task"},
      {model("bart_plain") + " --text hello", "no tokenizer"},
      {model("bart_plain") + " --input-ids '[[3,4]]' --num-beam 3", "--num-beams"},
      {model("bart_plain") + " --input-ids '[[3,4]]' --output x", "--lines"},
      {model("bart_plain") + " --input-ids '[[3,4]]' --stop x", "tokenizer"},
  };
  for (const auto& [flags, part] : cases) {
    const auto result = test::run_command(start + flags);
    EXPECT_EQ(result.exit_code, 2) << flags << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << flags << "\n" << result.err;
  }
}

TEST(Generate, EightBitWeightsGiveNearlyTheSameScores) {
  for (const char* name : {"bart_plain", "gpt2_plain"}) {
    const std::string flags = "--model " + model(name) + " --input-ids '[[3,4,9,11]]' --max-new-tokens 4";
    const Json exact = generated(flags), small = generated(flags + " --dtype int8");
    ASSERT_EQ(exact["sequences"], small["sequences"]);
    EXPECT_NEAR(exact["scores"][0].get<double>(), small["scores"][0].get<double>(), 0.1);
    EXPECT_NE(exact["scores"], small["scores"]);
  }
}

}  // namespace
}  // namespace palimpsest
