// SPDX-License-Identifier: Apache-2.0
// One list of fields gives JSON, TOML, flags, help and checks: each way in and out, and what each refuses.
#include "palimpsest/core/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "palimpsest/core/files.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct InnerOptions {
  double learning_rate = 1e-3;
  bool amsgrad = false;
  static void fields(auto& o, auto&& field) {
    field("learning_rate", o.learning_rate, "size of a step");
    field("amsgrad", o.amsgrad, "keep the largest variance");
  }
};

struct TestOptions {
  std::string out = "runs/latest";
  int64_t steps = 1000;
  bool shuffle = true;
  InnerOptions inner;
  std::vector<std::string> files;
  std::vector<int64_t> sizes = {1, 2};
  Weights tasks = {{"recall", 1.0}};
  static void fields(auto& o, auto&& field) {
    field("out", o.out, "folder of the run");
    field("steps", o.steps, "how many steps");
    field("shuffle", o.shuffle, "in random order");
    field("inner", o.inner, "");
    field("files", o.files, "what is read");
    field("sizes", o.sizes, "sizes of layers");
    field("tasks", o.tasks, "the mix");
  }
};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
}

TestOptions from_json(const std::string& text) {
  TestOptions options;
  options_from_json(options, parse_json(text, "x"), "recipe.json");
  return options;
}
std::string refusal(const std::string& text) {
  return error_of([&] { from_json(text); });
}

TestOptions from_toml(const std::string& text) {
  const test::TemporaryFolder folder;
  write_file_atomically(folder.path("recipe.toml"), text);
  TestOptions options;
  options_from_toml(options, folder.path("recipe.toml"));
  return options;
}

TestOptions from_flags(std::vector<std::string> arguments) {
  TestOptions options;
  CLI::App app;
  options_to_flags(options, app);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return options;
}

TEST(Options, GoToJsonFlatAndInOrder) {
  EXPECT_EQ(options_to_json(TestOptions()).dump(),
            R"({"out":"runs/latest","steps":1000,"shuffle":true,"learning_rate":0.001,"amsgrad":false,)"
            R"("files":[],"sizes":[1,2],"tasks":{"recall":1.0}})");
}

TEST(Options, ComeFromJsonAndKeepWhatIsNotNamed) {
  const TestOptions options =
      from_json(R"({"steps":5,"learning-rate":1,"amsgrad":true,"files":"a.txt","sizes":7,"tasks":"next"})");
  EXPECT_EQ(options.steps, 5);
  EXPECT_EQ(options.inner.learning_rate, 1.0);
  EXPECT_TRUE(options.inner.amsgrad);
  EXPECT_EQ(options.files, std::vector<std::string>{"a.txt"}) << "one text is a list of one";
  EXPECT_EQ(options.sizes, std::vector<int64_t>{7});
  EXPECT_EQ(options.tasks, (Weights{{"next", 1.0}}));
  EXPECT_EQ(options.out, "runs/latest");
  EXPECT_EQ(from_json(R"({"steps":1e6})").steps, 1000000) << "a whole number however written";
}

TEST(Options, RefuseUnknownKeysAndNameTheNearest) {
  EXPECT_EQ(refusal(R"({"stesp":5})"),
            "error: unknown option \"stesp\"\n  at:  recipe.json\n  fix: did you mean \"steps\"?");
  EXPECT_THAT(refusal(R"({"learning_rat":5})"), HasSubstr("did you mean \"learning_rate\"?"));
  EXPECT_THAT(refusal(R"({"temperature":5})"), HasSubstr("see --help for the options"));
  EXPECT_THAT(refusal("[]"), HasSubstr("expected a table of options"));
}

TEST(Options, RefuseWrongTypesAndNameTheKey) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_THAT(refusal(text), AllOf(HasSubstr("error: " + message), HasSubstr("at:  recipe.json"))) << text;
  };
  expect(R"({"steps":"5"})", "steps: expected a whole number, got \"5\"");
  expect(R"({"steps":5.5})", "steps: expected a whole number, got 5.5");
  expect(R"({"steps":true})", "steps: expected a whole number, got true");
  expect(R"({"steps":18446744073709551615})", "steps: expected a whole number, got 18446744073709551615");
  expect(R"({"steps":1e300})", "steps: expected a whole number");
  expect(R"({"shuffle":1})", "shuffle: expected true or false, got 1");
  expect(R"({"out":1})", "out: expected text, got 1");
  expect(R"({"learning_rate":"fast"})", "learning_rate: expected a number, got \"fast\"");
  expect(R"({"files":[1]})", "files: expected text, got 1");
  expect(R"({"files":{}})", "files: expected a list of texts, got {}");
  expect(R"({"sizes":["1"]})", "sizes: expected a whole number, got \"1\"");
  expect(R"({"tasks":["recall"]})", "tasks: expected names with weights, got [\"recall\"]");
  expect(R"({"tasks":{"recall":"much"}})", "tasks: expected a number, got \"much\"");
  expect(R"({"out":null})", "out: expected text, got null");
}

TEST(Options, LeaveAListAsItWasWhereOneItemIsWrong) {
  TestOptions options;
  EXPECT_THROW(options_from_json(options, parse_json(R"({"sizes":[5,"x"]})", "x"), "x"), Error);
  EXPECT_EQ(options.sizes, (std::vector<int64_t>{1, 2}));
}

TEST(Options, ComeFromToml) {
  const TestOptions options = from_toml(R"(
    out = "a # b"          # a comment
    steps = 1_000
    learning_rate = 3e-4
    files = ["x.txt", "y.txt"]
    tasks = {recall = 0.5, next = 0.5}
  )");
  EXPECT_EQ(options.out, "a # b");
  EXPECT_EQ(options.steps, 1000);
  EXPECT_EQ(options.inner.learning_rate, 3e-4);
  EXPECT_EQ(options.files, (std::vector<std::string>{"x.txt", "y.txt"}));
  EXPECT_EQ(options.tasks, (Weights{{"next", 0.5}, {"recall", 0.5}}));
}

TEST(Options, OfARecipeStandOnThoseOfItsBase) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("more"));
  write_file_atomically(folder.path("ground.toml"), "steps = 1\nout = \"ground\"\nlearning_rate = 1e-3\n");
  write_file_atomically(folder.path("more/middle.toml"), "base = \"../ground.toml\"\nsteps = 2\nout = \"middle\"\n");
  write_file_atomically(folder.path("top.toml"), "base = \"more/middle.toml\"\nsteps = 3\n");
  TestOptions options;
  options_from_toml(options, folder.path("top.toml"));
  EXPECT_EQ(options.steps, 3);
  EXPECT_EQ(options.out, "middle");
  EXPECT_EQ(options.inner.learning_rate, 1e-3);

  write_file_atomically(folder.path("ground.toml"), "base = \"top.toml\"\n");
  EXPECT_THAT(error_of([&] { read_toml(folder.path("top.toml")); }),
              AllOf(HasSubstr("each other's base"), HasSubstr("top.toml")));
  write_file_atomically(folder.path("ground.toml"), "base = 3\n");
  EXPECT_THAT(error_of([&] { read_toml(folder.path("top.toml")); }),
              AllOf(HasSubstr("base: expected text"), HasSubstr("ground.toml")));
  write_file_atomically(folder.path("ground.toml"), "base = \"absent.toml\"\n");
  EXPECT_THAT(error_of([&] { read_toml(folder.path("top.toml")); }), HasSubstr("absent.toml"));
}

TEST(Options, SayWhereTomlIsBroken) {
  EXPECT_THAT(error_of([] { from_toml("steps = 1\nout = \n"); }),
              AllOf(HasSubstr("not valid TOML"), HasSubstr("recipe.toml, line 2")));
  EXPECT_THAT(error_of([] { from_toml("steps = 1\nsteps = 2\n"); }), HasSubstr("not valid TOML"));
  EXPECT_THAT(error_of([] { from_toml("stepz = 1\n"); }),
              AllOf(HasSubstr("did you mean \"steps\"?"), HasSubstr("recipe.toml")));
  EXPECT_THAT(error_of([] { from_toml("steps = 1979-05-27\n"); }), HasSubstr("steps: expected a whole number"));
}

TEST(Options, AreReadBackFromTheTomlTheyWrite) {
  TestOptions options;
  options.out = "quote \" back\\slash, é, line\nbreak";
  options.steps = -3;
  options.shuffle = false;
  options.inner.learning_rate = 1e-5;
  options.files = {"a", ""};
  options.sizes = {};
  options.tasks = {{"recall", 0.1}, {"next-1", 2}};
  EXPECT_EQ(options_to_json(from_toml(options_to_toml(options))), options_to_json(options));
  EXPECT_THAT(options_to_toml(options), HasSubstr("steps = -3  # how many steps\n"));
}

TEST(Options, ComeFromFlags) {
  const TestOptions options =
      from_flags({"--out", "x", "--learning-rate", "0.5", "--files", "a,b", "--sizes=3,4", "--tasks",
                  "recall=0.25,next", "--amsgrad", "--shuffle=false", "--steps", "1", "--steps", "2"});
  EXPECT_EQ(options.out, "x");
  EXPECT_EQ(options.inner.learning_rate, 0.5);
  EXPECT_EQ(options.files, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(options.sizes, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(options.tasks, (Weights{{"next", 1.0}, {"recall", 0.25}}));
  EXPECT_TRUE(options.inner.amsgrad);
  EXPECT_FALSE(options.shuffle);
  EXPECT_EQ(options.steps, 2) << "the last one wins";
  EXPECT_EQ(from_flags({"--learning_rate", "2"}).inner.learning_rate, 2.0) << "underscores too";
  EXPECT_EQ(options_to_json(from_flags({})), options_to_json(TestOptions()));
  EXPECT_EQ(from_flags({"--steps", "-7"}).steps, -7);
}

TEST(Options, LeaveTheWordBehindABooleanFlagAlone) {
  TestOptions options;
  CLI::App app;
  options_to_flags(options, app);
  std::vector<std::string> words;
  app.add_option("WORDS", words);
  app.parse(std::vector<std::string>{"--shuffle=no", "file", "--amsgrad"});  // from the last to the first
  EXPECT_EQ(words, std::vector<std::string>{"file"});
  EXPECT_TRUE(options.inner.amsgrad);
  EXPECT_FALSE(options.shuffle);
}

TEST(Options, TakeTextsFromFlagsAsTheyAre) {
  EXPECT_EQ(from_flags({"--out", "123"}).out, "123");
  EXPECT_EQ(from_flags({"--out", "true"}).out, "true");
  EXPECT_EQ(from_flags({"--out", "window:bucket=64,rounds=4"}).out, "window:bucket=64,rounds=4");
  EXPECT_EQ(from_flags({"--out", "[[1,2],[3]]"}).out, "[[1,2],[3]]");
  EXPECT_EQ(from_flags({"--out", ""}).out, "");
}

TEST(Options, RefuseWrongFlagsAndNameThem) {
  const auto refused = [](const std::vector<std::string>& arguments) {
    return error_of([&] { from_flags(arguments); });
  };
  EXPECT_THAT(refused({"--steps", "many"}),
              AllOf(HasSubstr("steps: expected a whole number, got \"many\""), HasSubstr("at:  --steps")));
  EXPECT_THAT(refused({"--learning-rate", "1x"}),
              AllOf(HasSubstr("expected a number, got \"1x\""), HasSubstr("at:  --learning-rate")));
  EXPECT_THAT(refused({"--shuffle=maybe"}), HasSubstr("expected true or false, got \"maybe\""));
  EXPECT_THAT(refused({"--sizes", "1,,2"}), HasSubstr("expected a whole number, got \"\""));
  EXPECT_THAT(refused({"--tasks", "recall=x"}), HasSubstr("expected a number, got \"x\""));
  EXPECT_THROW(from_flags({"--stepz", "1"}), CLI::ParseError);
}

TEST(Options, ShowTypeHelpAndDefaultOfEveryFlag) {
  TestOptions options;
  CLI::App app;
  options_to_flags(options, app);
  const std::string help = app.help();
  EXPECT_THAT(help, AllOf(HasSubstr("--learning-rate"), HasSubstr("FLOAT"), HasSubstr("size of a step  [0.001]")));
  EXPECT_THAT(help, AllOf(HasSubstr("how many steps  [1000]"), HasSubstr("folder of the run  [runs/latest]")));
}

TEST(CheckChoice, NamesTheChoices) {
  check_choice("carry", "keep", {"keep", "reset"});
  EXPECT_EQ(error_of([] { check_choice("carry", "kept", {"keep", "reset"}); }),
            "error: carry is \"kept\"\n  fix: choose one of: keep, reset");
}

}  // namespace
}  // namespace palimpsest
