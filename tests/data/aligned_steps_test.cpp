// SPDX-License-Identifier: Apache-2.0
// Aligned text as steps: units in order, documents and their sides, what is cut.
#include "palimpsest/data/aligned_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "tests/support/paths.h"

namespace palimpsest::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const TokenizeFunction kBytes{[](std::string_view text) { return std::vector<int32_t>(text.begin(), text.end()); },
                              "bytes"};

std::string text_of(const StepCorpus& steps, const Span& span) {
  const auto tokens = steps.corpus->tokens(span.document);
  return {tokens.begin() + span.begin, tokens.begin() + span.end};
}

/// "source=target" of each step, by document.
std::vector<std::vector<std::string>> texts_of(const StepCorpus& steps) {
  std::vector<std::vector<std::string>> texts;
  for (const auto& document : steps.steps) {
    texts.emplace_back();
    for (const Step& step : document)
      texts.back().push_back(text_of(steps, step.read) + "=" + text_of(steps, step.write));
  }
  return texts;
}

class AlignedSteps : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    write_file_atomically(folder_.path(name), text);
    return folder_.path(name);
  }
  AlignedDocumentReader reader(const std::string& side = "all", const std::string& document = "file",
                               int64_t lines_per_unit = 1, int64_t keep_apart = 0) const {
    CorpusOptions corpus;
    corpus.data = {folder_.path("s")};
    corpus.document = document;
    DialogueOptions sides;
    sides.side = side;
    sides.keep_apart = keep_apart;
    return {corpus, {.source = "", .target = folder_.path("t"), .lines_per_unit = lines_per_unit}, sides};
  }
  StepCorpus read(AlignedDocumentReader from, const AlignedStepOptions& options = {.window = 100}) const {
    return prepare_aligned(from, kBytes, options);
  }
  test::TemporaryFolder folder_;
};

TEST_F(AlignedSteps, UnitsOfADocumentFollowEachOther) {
  write("s", "a b\nc\nd\n\ne\n");
  write("t", "AB\nC\nD\n\nE\n");
  const StepCorpus steps = read(reader());
  EXPECT_THAT(texts_of(steps), ElementsAre(ElementsAre("a b=AB", "c=C", "d=D"), ElementsAre("e=E")));
  EXPECT_THAT(steps.names, ElementsAre(folder_.path("s") + ":1", folder_.path("s") + ":5"));
  EXPECT_EQ(steps.steps[0][2].place, 2);
  EXPECT_THAT(texts_of(read(reader("all", "file", 2))),
              ElementsAre(ElementsAre("a b c=AB C", "d=D"), ElementsAre("e=E")));
  EXPECT_THAT(texts_of(read(reader("all", "line", 2))),
              ElementsAre(ElementsAre("a b c=AB C"), ElementsAre("d=D"), ElementsAre("e=E")))
      << "each unit is a document";
}

TEST_F(AlignedSteps, CountsWhatDoesNotFit) {
  write("s", "abcdef\nab\nabcdefghi\n");
  write("t", "ABC\nABCDEFG\nABCD\n");
  const StepCorpus steps = read(reader(), {.window = 7, .longest_write = 4});
  EXPECT_THAT(texts_of(steps), ElementsAre(ElementsAre("abcde=ABC", "ab=ABCD", "abcde=ABCD")));
  EXPECT_EQ(steps.cut_reads, 2);
  EXPECT_EQ(steps.cut_writes, 1);
  EXPECT_EQ(steps.cut_tokens, 1 + 4 + 3);
  EXPECT_THAT(steps.said_of_cuts(), AllOf(HasSubstr("2 sources"), HasSubstr("1 targets"), HasSubstr("8 tokens")));
  EXPECT_EQ(read(reader()).said_of_cuts(), "");
  EXPECT_THROW(read(reader(), {.window = 2}), Error);
}

TEST_F(AlignedSteps, EachDocumentIsOnOneSideForEver) {
  std::string sources, targets;
  for (int i = 0; i < 400; ++i) {
    sources += fmt::format("line {}\n\n", i);
    targets += fmt::format("Zeile {}\n\n", i);
  }
  write("s", sources);
  write("t", targets);
  std::set<std::string> seen;
  std::vector<size_t> sizes;
  for (const char* side : {"train", "valid", "test"}) {
    const auto texts = texts_of(read(reader(side)));
    sizes.push_back(texts.size());
    for (const auto& document : texts) {
      EXPECT_TRUE(seen.insert(document[0]).second) << "on two sides: " << document[0];
      const std::string source = document[0].substr(0, document[0].find('='));
      EXPECT_STREQ(side_name(split_of(split_key_of(source))), side);
    }
  }
  EXPECT_EQ(seen.size(), 400u);
  EXPECT_NEAR(static_cast<double>(sizes[0]), 320, 30);
  EXPECT_NEAR(static_cast<double>(sizes[1]), 40, 20);
  EXPECT_EQ(read(reader("all")).corpus->documents(), 400);
  EXPECT_THAT(texts_of(read(reader("train", "line"))), testing::SizeIs(sizes[0])) << "the same keys";
}

TEST_F(AlignedSteps, TrainDoesNotSayWhatIsHeldOut) {
  std::string sources, targets;
  for (int i = 0; i < 200; ++i) {
    sources += fmt::format("source {}\n", i);
    targets += i % 2 == 0 ? "one and the same long line of nine words\n" : fmt::format("target {}\n", i);
  }
  write("s", sources);
  write("t", targets);
  auto from = reader("train", "line", 1, 9);
  const StepCorpus train = read(std::move(from));
  for (const auto& document : texts_of(train)) EXPECT_THAT(document[0], HasSubstr("=target"));
  EXPECT_GT(train.left_out, 50);
  EXPECT_EQ(read(reader("train", "line", 1, 10)).left_out, 0) << "nine words are not ten";
}

TEST_F(AlignedSteps, ReadsRecordsOfSourceAndTarget) {
  CorpusOptions corpus;
  corpus.data = {write("d.jsonl", R"({"source": "a", "target": "A", "split": "test"})"
                                  "\n"
                                  R"({"source": "b", "target": "B", "split": "train"})"
                                  "\n"
                                  R"({"source": "c", "target": " ", "split": "test"})"
                                  "\n")};
  DialogueOptions sides;
  sides.keep_apart = 0;
  StepCorpus steps = read(AlignedDocumentReader(corpus, {}, sides));
  EXPECT_THAT(texts_of(steps), ElementsAre(ElementsAre("a=A"), ElementsAre("b=B")));
  EXPECT_EQ(steps.left_out, 1) << "without a target";
  sides.side = "test";
  EXPECT_THAT(texts_of(read(AlignedDocumentReader(corpus, {}, sides))), ElementsAre(ElementsAre("a=A")));
}

TEST_F(AlignedSteps, SaysWhatIsWrong) {
  write("s", "a\nb\n");
  write("t", "A\nB\n");
  const auto error = [&](const std::function<void(CorpusOptions&, AlignedOptions&, DialogueOptions&)>& spoil) {
    CorpusOptions corpus;
    corpus.data = {folder_.path("s")};
    AlignedOptions aligned{.source = "", .target = folder_.path("t")};
    DialogueOptions sides;
    spoil(corpus, aligned, sides);
    try {
      AlignedDocumentReader from(corpus, aligned, sides);
      prepare_aligned(from, kBytes, {});
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error([](auto&, auto& aligned, auto&) { aligned.target = ""; }), HasSubstr("--target"));
  EXPECT_THAT(error([](auto& corpus, auto&, auto&) { corpus.data.push_back("x"); }), HasSubstr("2 sources for one"));
  EXPECT_THAT(error([](auto& corpus, auto&, auto&) { corpus.document = "blank"; }), HasSubstr("document"));
  EXPECT_THAT(error([](auto&, auto&, auto& sides) { sides.side = "left"; }), HasSubstr("side"));
  const std::string side = side_name(split_of(split_key_of("a\nb\n")));
  EXPECT_THAT(error([&](auto&, auto&, auto& sides) { sides.side = side == "test" ? "valid" : "test"; }),
              AllOf(HasSubstr("none of 1 documents is on the side"), HasSubstr("document = \"line\"")));
}

TEST_F(AlignedSteps, ReadTheSharedFiles) {
  SKIP_WITHOUT_SHARED("data/mt");
  CorpusOptions corpus;
  corpus.document = "line";
  corpus.data = {test::shared("data/mt/multi30k/train.en.gz")};
  DialogueOptions sides;
  int64_t documents = 0;
  for (const char* side : {"train", "valid", "test"}) {
    sides.side = side;
    AlignedDocumentReader from(corpus, {.source = "", .target = test::shared("data/mt/multi30k/train.de.gz")}, sides);
    for (AlignedDocument document; from.next(document);) ++documents;
    documents += from.counts().leaking;
    EXPECT_NEAR(static_cast<double>(from.counts().by_side[0]), 0.8 * 29000, 200);
  }
  EXPECT_EQ(documents, 29000);
  corpus.document = "file";
  corpus.data = {test::shared("data/mt/genesis_en-fr_doc/genesis.en")};
  sides.side = "all";
  AlignedDocumentReader chapters(corpus,
                                 {.source = "",
                                  .target = test::shared("data/mt/genesis_en-fr_doc/genesis.fr"),
                                  .ref = test::shared("data/mt/genesis_en-fr_doc/genesis.ref"),
                                  .lines_per_unit = 4},
                                 sides);
  const StepCorpus steps = read(std::move(chapters), {.window = 2000});
  EXPECT_EQ(steps.corpus->documents(), 50);
  EXPECT_GT(steps.steps[0].size(), 5u);
}

}  // namespace
}  // namespace palimpsest::data
