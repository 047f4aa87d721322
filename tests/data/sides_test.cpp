// SPDX-License-Identifier: Apache-2.0
// Sides of the split for ever, keys, shared utterances; aligned files.
#include "palimpsest/data/sides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "palimpsest/core/error.h"
#include "palimpsest/data/aligned.h"
#include "tests/support/paths.h"

namespace palimpsest::data {
namespace {

using test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Sides, AreEightyTenTen) {
  std::array<int64_t, 3> counts = {};
  for (int i = 0; i < 20000; ++i) ++counts[static_cast<size_t>(split_of("key " + std::to_string(i)))];
  EXPECT_NEAR(static_cast<double>(counts[0]), 16000, 250);
  EXPECT_NEAR(static_cast<double>(counts[1]), 2000, 200);
  EXPECT_NEAR(static_cast<double>(counts[2]), 2000, 200);
}

// Never change these: who trained on yesterday's train must not be tested on it tomorrow.
TEST(Sides, StayAsTheyAreForEver) {
  std::string sides, other;  // the third letters of train, valid and test; computed by another program
  for (int i = 0; i < 40; ++i) {
    sides += side_name(split_of("dialogue" + std::to_string(i)))[2];
    other += side_name(split_of("dialogue" + std::to_string(i), 7))[2];
  }
  EXPECT_EQ(sides, "aaaaasaaaaaaaaaaaaaaaasalaaaasaaaaaasaaa");
  EXPECT_EQ(other, "aaaaaaalaaaaalaslaalaaaaaaaaaaaaaaaaasas");
}

TEST(Sides, KeysAreLettersAndDigitsAlone) {
  EXPECT_EQ(split_key_of("Hi ! I'm 20."), "hiim20");
  EXPECT_EQ(split_key_of("hi, i \xE2\x80\x99 m 20"), "hiim20");
  EXPECT_EQ(split_key_of("\xC3\x84 \xE6\xBC\xA2"), "\xC3\x84\xE6\xBC\xA2");
  EXPECT_EQ(split_key_of("?!"), "?!") << "nothing is left: its own key";
  EXPECT_EQ(count_words("I 'm fine -- thanks , \xE6\xBC\xA2\xE5\xAD\x97!"), 6);
  EXPECT_EQ(count_words(" \n"), 0);
}

TEST(Sides, SharedUtterancesAreListedOnceForEachPairOfSides) {
  SharedUtterances shared(3);
  shared.add("one two three", "a:1", Side::kTrain);
  shared.add("one two three", "a:2", Side::kTrain);
  shared.add("One, two, three!", "b:1", Side::kTest);
  shared.add("one two three", "b:2", Side::kTest);
  shared.add("one two", "a:3", Side::kTrain);
  shared.add("one two", "b:3", Side::kTest);
  ASSERT_EQ(shared.list().size(), 1u);
  EXPECT_EQ(shared.list()[0].first, "a:1");
  EXPECT_EQ(shared.list()[0].second, "b:1");
  EXPECT_EQ(shared.list()[0].second_side, Side::kTest);
  EXPECT_THROW(SharedUtterances(0), Error);
}

struct Files {
  TemporaryFolder folder;
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder.path(name), std::ios::binary) << bytes;
    return folder.path(name);
  }
};

std::vector<std::string> read_all(const AlignedOptions& options, AlignedCounts* counts = nullptr) {
  AlignedReader reader(options);
  std::vector<std::string> units;
  for (AlignedUnit unit; reader.next(unit);) {
    units.push_back(std::string(unit.first ? "[" : "") + unit.source + "=" + unit.target + (unit.last ? "]" : ""));
  }
  if (counts != nullptr) *counts = reader.counts();
  return units;
}

TEST(AlignedReader, JoinsLinesButNotOfTwoDocuments) {
  const Files files;
  const std::string source = files.write("s", "a\nb\nc\n\nd\ne\n"), target = files.write("t", "A\nB\nC\n\nD\r\nE");
  AlignedCounts counts;
  EXPECT_THAT(read_all({.source = source, .target = target}, &counts),
              ElementsAre("[a=A", "b=B", "c=C]", "[d=D", "e=E]"));
  EXPECT_EQ(counts.documents, 2);
  EXPECT_EQ(counts.lines, 5);
  EXPECT_EQ(counts.blank, 1);
  EXPECT_THAT(read_all({.source = source, .target = target, .lines_per_unit = 2}),
              ElementsAre("[a b=A B", "c=C]", "[d e=D E]"));
  EXPECT_THAT(read_all({.source = source, .target = target, .lines_per_unit = 9}),
              ElementsAre("[a b c=A B C]", "[d e=D E]"));
}

TEST(AlignedReader, TakesDocumentsFromTheRef) {
  const Files files;
  const std::string source = files.write("s", "a\nb\nc\n"), target = files.write("t", "A\nB\nC\n"),
                    ref = files.write("r", "1\t1\n1\t2\n2\t1\n");
  EXPECT_THAT(read_all({.source = source, .target = target, .ref = ref, .lines_per_unit = 5}),
              ElementsAre("[a b=A B]", "[c=C]"));
}

TEST(AlignedReader, NamesWhatDoesNotFit) {
  const Files files;
  const auto error = [&](const std::string& source, const std::string& target) {
    try {
      read_all({.source = files.write("s", source), .target = files.write("t", target)});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error("a\nb\n", "A\n"), AllOf(HasSubstr("ends after 1 lines"), HasSubstr("/t")));
  EXPECT_THAT(error("a\n \n", "A\nB\n"), AllOf(HasSubstr("blank, but not in the other"), HasSubstr("/s, line 2")));
  EXPECT_THAT(error("a\n\xff\n", "A\nB\n"), HasSubstr("not valid UTF-8"));
  AlignedCounts counts;
  EXPECT_THAT(read_all({.source = files.write("s", "a\n\xff\nc\n\nd\n\xff"),
                        .target = files.write("t", "A\nB\nC\nD\nD\nE\n"),
                        .skip_broken = true},
                       &counts),
              ElementsAre("[a=A", "c=C", "d=D]"));
  EXPECT_EQ(counts.broken, 3);
  EXPECT_THROW(read_all({.source = "x", .target = ""}), Error);
}

TEST(AlignedReader, ReadsTheSharedFiles) {
  SKIP_WITHOUT_SHARED("data/mt");
  const auto mt = [](const std::string& name) { return test::shared("data/mt/" + name); };
  AlignedCounts counts;
  read_all({.source = mt("genesis_en-fr_doc/genesis.en"),
            .target = mt("genesis_en-fr_doc/genesis.fr"),
            .ref = mt("genesis_en-fr_doc/genesis.ref")},
           &counts);
  EXPECT_EQ(counts.documents, 50);
  EXPECT_EQ(counts.lines, 1533);
  read_all({.source = mt("multi30k/train.de.gz"), .target = mt("multi30k/train.en.gz")}, &counts);
  EXPECT_EQ(counts.lines, 29000);
}

}  // namespace
}  // namespace palimpsest::data
