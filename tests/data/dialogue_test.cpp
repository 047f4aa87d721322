// SPDX-License-Identifier: Apache-2.0
// Readers of dialogues: every form, what is wrong with a file and where, and the shared data sets as a whole.
#include "palimpsest/data/dialogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <map>

#include "palimpsest/core/error.h"
#include "tests/support/paths.h"

namespace palimpsest::data {
namespace {

using test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const char* const kPersonaChat =
    "1 your persona: i paint.\n2 your persona: i am tall.\n3 hi ! how are you ?\tfine , i paint .\n4 good\tyes\n"
    "1 partner's persona: i sing.\n2 your persona: i fly.\n3 __SILENCE__\thello\t\tno|yes\n4 bye\tso long\n";

const char* const kPersuasion =
    ",Unit,Turn,B4,B2\r\n"
    "0,Hello. ,0,0,d1\r\n"
    "1,\"Hi, \"\"you\"\"\r\nthere\",0,1,d1\r\n"
    "2,One.,1,0,d1\r\n"
    "3,Two.,1,0,d1\r\n"
    "0,Good day,0,0,d2\r\n";

const char* const kMsc =
    R"({"personas": [["later"], []], "dialog": [{"text": "back", "id": "Speaker 1"}, {"text": "yes", "id": "Speaker 2"}],)"
    R"( "metadata": {"initial_data_id": "test_7", "session_id": 1}, "previous_dialogs": [{"personas": [[], []],)"
    R"( "dialog": [{"text": "first "}, {"text": "second"}, {"text": "third"}]}], "init_personas": [["I sing."], ["I fly."]]})"
    "\n"
    R"({"dialog": [{"text": "x", "id": "42306"}, {"text": "y", "id": "Speaker 2"}], "previous_dialogs": []})"
    "\n";

std::vector<Dialogue> read_file_of(const std::string& bytes, const std::string& name, DialogueOptions options = {},
                                   bool skip = false, DialogueCounts* counts = nullptr,
                                   std::vector<std::string>* broken = nullptr) {
  const TemporaryFolder folder;
  const std::string path = folder.path(name);
  if (name.ends_with(".gz")) {
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  } else {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  DialogueReader reader({.data = {path}, .skip_broken = skip}, options);
  std::vector<Dialogue> dialogues;
  for (Dialogue dialogue; reader.next(dialogue);) dialogues.push_back(dialogue);
  if (counts != nullptr) *counts = reader.counts();
  if (broken != nullptr) *broken = reader.first_broken();
  return dialogues;
}

std::string error_of(const std::string& bytes, const std::string& name, DialogueOptions options = {}) {
  try {
    read_file_of(bytes, name, std::move(options));
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "no error";
}

std::vector<std::string> said(const Dialogue& dialogue) {
  std::vector<std::string> texts;
  for (const Turn& turn : dialogue.turns) texts.push_back(turn.role + std::to_string(turn.session) + ": " + turn.text);
  return texts;
}

TEST(DialogueReader, ReadsPersonaChat) {
  for (const char* name : {"a.txt", "a.txt.gz"}) {
    const auto dialogues = read_file_of(kPersonaChat, name, {.personas = "both"});
    ASSERT_EQ(dialogues.size(), 2u);
    EXPECT_THAT(said(dialogues[0]),
                ElementsAre("A1: hi ! how are you ?", "B1: fine , i paint .", "A1: good", "B1: yes"));
    EXPECT_THAT(dialogues[0].personas, ElementsAre(Persona{"B", {"i paint.", "i am tall."}}));
    EXPECT_THAT(said(dialogues[1]), ElementsAre("B1: hello", "A1: bye", "B1: so long"));
    EXPECT_THAT(dialogues[1].personas, ElementsAre(Persona{"A", {"i sing."}}, Persona{"B", {"i fly."}}));
    EXPECT_THAT(dialogues[1].place, HasSubstr(std::string(name) + ":5"));
    EXPECT_EQ(dialogues[0].split_key, "hihowareyoufineipaintgoodyes");
  }
  EXPECT_TRUE(read_file_of(kPersonaChat, "a.txt")[1].personas.empty());
  EXPECT_THAT(read_file_of(kPersonaChat, "a.txt", {.personas = "own"})[1].personas,
              ElementsAre(Persona{"B", {"i fly."}}));
}

TEST(DialogueReader, ReadsPersuasionForGood) {
  const auto dialogues = read_file_of(kPersuasion, "a.csv");
  ASSERT_EQ(dialogues.size(), 2u);
  EXPECT_THAT(said(dialogues[0]), ElementsAre("A1: Hello.", "B1: Hi, \"you\"\r\nthere", "A1: One. Two."));
  EXPECT_EQ(dialogues[0].id, "d1");
  EXPECT_THAT(dialogues[1].place, HasSubstr("a.csv:7"));
  EXPECT_EQ(read_file_of(kPersuasion, "noname").size(), 2u) << "by its header";
}

TEST(DialogueReader, ReadsMultiSessionChat) {
  const auto dialogues = read_file_of(kMsc, "a.jsonl.gz", {.personas = "both"});
  ASSERT_EQ(dialogues.size(), 2u);
  EXPECT_EQ(dialogues[0].id, "test_7");
  EXPECT_THAT(said(dialogues[0]), ElementsAre("A1: first", "B1: second", "A1: third", "A2: back", "B2: yes"));
  EXPECT_EQ(dialogues[0].sessions(), 2);
  EXPECT_EQ(dialogues[0].split_key, "firstsecondthird");
  EXPECT_THAT(dialogues[0].personas, ElementsAre(Persona{"A", {"I sing."}}, Persona{"B", {"I fly."}}));
  EXPECT_THAT(said(dialogues[1]), ElementsAre("A1: x", "B1: y"));
}

TEST(DialogueReader, ReadsTurns) {
  const auto dialogues = read_file_of(
      "{\"turns\":[{\"role\":\"user\",\"text\":\"q\"},{\"role\":\"assistant\",\"text\":\"a\",\"session\":1},"
      "{\"role\":\"Zoe\",\"text\":\" z \",\"session\":4}],\"id\":5,\"split\":\"test\"}\n\n"
      "{\"turns\":[{\"text\":\"one\"},{\"text\":\"\"},{\"text\":\"three\"}]}",
      "a.jsonl");
  ASSERT_EQ(dialogues.size(), 2u);
  EXPECT_THAT(said(dialogues[0]), ElementsAre("A1: q", "B1: a", "Zoe2: z"));
  EXPECT_EQ(dialogues[0].id, "5");
  EXPECT_EQ(dialogues[0].side, Side::kTest);
  EXPECT_THAT(said(dialogues[1]), ElementsAre("A1: one", "A1: three"));
}

TEST(DialogueReader, ReadsListsOfTurnsInAllTheirShapes) {
  const std::string a = R"({"dial_id":"p","turn_id":0,"session":1,"role":"bot_0","text":"hi"})",
                    b = R"({"dial_id":"p","turn_id":1,"session":2,"role":"Speaker 2","text":"}],\"{"})",
                    c = R"({"dial_id":"q","turn_id":0,"session":1,"role":"bot_0","text":"new"})";
  const std::map<std::string, std::string> shapes = {
      {"list a line", "[" + a + "," + b + "]\n[" + c + "]\n"},
      {"turn a line", a + "\n" + b + "\n" + c + "\n"},
      {"one list", "[\n" + a + ",\n" + b + ",\n" + c + "\n]\n"},
      {"list of lists", "[\n[" + a + ",\n " + b + "],\n[" + c + "]]"},
      {"object", "{\n  \"p\": [\n " + a + ",\n" + b + "\n ],\n \"q\": [" + c + "]\n}\n"},
      {"object on a line", "{\"p\":[" + a + "," + b + "],\"q\":[" + c + "]}"},
      {"all in one line", "[[" + a + "," + b + "],[" + c + "]]"}};
  for (const auto& [name, bytes] : shapes) {
    const auto dialogues = read_file_of(bytes, "a.json");
    ASSERT_EQ(dialogues.size(), 2u) << name;
    EXPECT_THAT(said(dialogues[0]), ElementsAre("A1: hi", "B2: }],\"{")) << name;
    EXPECT_THAT(said(dialogues[1]), ElementsAre("A1: new")) << name;
    EXPECT_EQ(dialogues[0].id + dialogues[1].id, "pq") << name;
  }
}

TEST(DialogueReader, ReadsPairsAndTexts) {
  const auto pairs =
      read_file_of("{\"source\":\"s one\",\"target\":\"t\"}\n{\"source\":\"S one!\",\"target\":\"u\"}\n", "a.jsonl");
  ASSERT_EQ(pairs.size(), 2u);
  EXPECT_THAT(said(pairs[0]), ElementsAre("A1: s one", "B1: t"));
  EXPECT_EQ(pairs[0].split_key, pairs[1].split_key) << "the same source is on one side";
  const auto text =
      read_file_of("Title\n\nCHAPTER I\n\nOne\nline.\n\nTwo.\n\nChapter 2. More\nText.\n", "a.txt", {.format = "text"});
  EXPECT_THAT(said(text.at(0)),
              ElementsAre("1: Title", "1: CHAPTER I", "1: One\nline.", "1: Two.", "1: Chapter 2. More\nText."));
}

TEST(DialogueReader, CutsBooksIntoChapters) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("a.txt")) << "Title\nCHAPTER I--THE PARSONAGE\nChapter and verse.\nx\n CHAPTER II\ny\n"
                                         "Chapter Twenty-One\nz\nChapter 4\nChapters 5\n";
  DocumentReader reader({.data = {folder.path("a.txt")}, .document = "chapter"});
  std::vector<std::string> texts;
  for (Document document; reader.next(document);) texts.push_back(document.text);
  EXPECT_THAT(texts, ElementsAre("Title\n", "CHAPTER I--THE PARSONAGE\nChapter and verse.\nx\n", " CHAPTER II\ny\n",
                                 "Chapter Twenty-One\nz\n", "Chapter 4\nChapters 5\n"));
}

TEST(DialogueReader, NamesWhatIsBrokenAndWhere) {
  EXPECT_THAT(error_of("1 a\tb\n3 c\td\n", "a.txt"), AllOf(HasSubstr("number 3 where 2"), HasSubstr("a.txt, line 2")));
  EXPECT_THAT(error_of("1 a\tb\n2 c d\n", "a.txt"), HasSubstr("neither a persona line nor"));
  EXPECT_THAT(error_of("1 a\tb\nx\n", "a.txt"), HasSubstr("does not start with a number"));
  EXPECT_THAT(error_of("1 a\tb\n2 c\xff\td\n", "a.txt"), AllOf(HasSubstr("not valid UTF-8"), HasSubstr("line 2")));
  const std::string header = ",Unit,Turn,B4,B2\r\n";
  EXPECT_THAT(error_of(header + "0,a,b,0,0,d\r\n", "a.csv"),
              AllOf(HasSubstr("6 fields, the header has 5"), HasSubstr("a.csv, line 2")));
  EXPECT_THAT(error_of(header + "0,a,0,2,d\r\n", "a.csv"), HasSubstr("role (B4) is \"2\""));
  EXPECT_THAT(error_of(header + "0,\"a,0,0,d\r\n", "a.csv"), HasSubstr("the file ends inside quotes"));
  EXPECT_THAT(error_of(header + "0,\"a\"b,0,0,d\r\n", "a.csv"), HasSubstr("text behind a closing quote"));
  EXPECT_THAT(error_of(header + "0,a,0,0,d\n0,a,0,0,e\n0,a,0,0,d\n", "a.csv"),
              AllOf(HasSubstr("dialogue d do not lie together"), HasSubstr("line 4")));
  EXPECT_THAT(error_of("x,y\n", "a.csv"), HasSubstr("CSV of an unknown form, its columns: x, y"));
  const std::string good = "{\"turns\":[{\"text\":\"a\"}]}\n";
  EXPECT_THAT(error_of(good + "{\"turns\":[{\"text\":3}]}\n", "a.jsonl"),
              AllOf(HasSubstr("\"text\" must be text, this is a number"), HasSubstr("a.jsonl, line 2")));
  EXPECT_THAT(error_of(good + "{\"turns\":[{\"text\":\"a\"}\n", "a.jsonl"),
              AllOf(HasSubstr("not valid JSON"), HasSubstr("a.jsonl, line 2, column")));
  EXPECT_THAT(error_of(good + "{\"body\":1}\n", "a.jsonl"), HasSubstr("not a dialogue: it has the keys body"));
  EXPECT_THAT(error_of(good + "{\"turns\":[{\"text\":\"a\",\"session\":2},{\"text\":\"b\",\"session\":1}]}", "a.jsonl"),
              HasSubstr("session 1 follows session 2"));
  EXPECT_THAT(error_of("{\n\"p\": [{\"text\":\"a\"}],\n\"q\": [{\"text\":}]\n}", "a.json"),
              HasSubstr("a.json, line 3"));
  EXPECT_THAT(error_of("{\n\"p\": [{\"text\":\"a\"}],\n", "a.json"), HasSubstr("JSON ends too early"));
  EXPECT_THAT(error_of("{\"dialog\":[]}\n", "a.jsonl", {.format = "pairs"}), HasSubstr("format is pairs"));
  EXPECT_THAT(error_of(good, "a.jsonl", {.format = "json"}), HasSubstr("format"));
}

TEST(DialogueReader, LeavesOutWholeDialoguesWhereAskedAndCountsThem) {
  DialogueCounts counts;
  std::vector<std::string> broken;
  auto dialogues =
      read_file_of("1 a\tb\n2 c\n3 d\te\n1 f\tg\n1 h\ti\n2 \xff\tk\n1 l\tm\n", "a.txt", {}, true, &counts, &broken);
  ASSERT_EQ(dialogues.size(), 2u);
  EXPECT_THAT(said(dialogues[0]), ElementsAre("A1: f", "B1: g"));
  EXPECT_THAT(said(dialogues[1]), ElementsAre("A1: l", "B1: m"));
  EXPECT_EQ(counts.broken, 2);
  EXPECT_THAT(broken, ElementsAre(HasSubstr("a.txt, line 2: neither"), HasSubstr("a.txt, line 6, byte")));

  dialogues = read_file_of(",Unit,Turn,B4,B2\n0,a,0,0,d\n1,b,0,1\n2,c,0,0,d\n0,e,0,0,f\n0,g,0,7,h\n0,i,0,0,j\n",
                           "a.csv", {}, true, &counts, &broken);
  ASSERT_EQ(dialogues.size(), 2u);
  EXPECT_EQ(dialogues[0].id + dialogues[1].id, "fj");
  EXPECT_EQ(counts.broken, 2);

  dialogues =
      read_file_of("{\"turns\":[{\"text\":\"a\"}]}\n{\"turns\":\n{\"turns\":[]}\n{\"turns\":[{\"text\":\"b\"}]}\n",
                   "a.jsonl", {}, true, &counts, &broken);
  EXPECT_EQ(dialogues.size(), 2u);
  EXPECT_EQ(counts.broken, 1);
  EXPECT_EQ(counts.empty, 1);
}

TEST(DialogueReader, ReadsOneSideAndStaysApartFromTheOthers) {
  std::string bytes;
  const std::string copied = "these are the ten words that everyone pastes everywhere always";
  for (int i = 0; i < 300; ++i) {
    const std::string text = "dialogue number " + std::to_string(i);
    bytes += "{\"turns\":[{\"text\":\"" + text + "\"},{\"text\":\"" + (i % 3 == 0 ? copied : text) + "\"}]}\n";
  }
  DialogueCounts train, test, apart;
  const auto all = read_file_of(bytes, "a.jsonl");
  read_file_of(bytes, "a.jsonl", {.side = "train", .keep_apart = 0}, false, &train);
  read_file_of(bytes, "a.jsonl", {.side = "test"}, false, &test);
  EXPECT_NEAR(static_cast<double>(train.dialogues), 240, 25);
  EXPECT_EQ(train.dialogues + train.other_side, 300);
  EXPECT_EQ(test.leaking, 0) << "test never changes";
  for (const auto& dialogue : read_file_of(bytes, "a.jsonl", {.side = "train"}, false, &apart)) {
    EXPECT_NE(dialogue.turns[1].text, copied);
    EXPECT_EQ(dialogue.side, Side::kTrain);
  }
  EXPECT_GT(apart.leaking, 50);
  EXPECT_EQ(apart.dialogues + apart.leaking, train.dialogues);
  EXPECT_EQ(all.size(), 300u);
}

// The figures of the whole files, as counted by other programs, too.
TEST(DialogueReader, ReadsTheSharedPersonaChat) {
  SKIP_WITHOUT_SHARED("data/dialogue/personachat");
  DialogueReader reader({.data = {test::shared("data/dialogue/personachat")}}, {.personas = "both"});
  int64_t persona_lines = 0;
  for (Dialogue dialogue; reader.next(dialogue);) {
    for (const auto& persona : dialogue.personas) persona_lines += static_cast<int64_t>(persona.lines.size());
    for (size_t i = 0; i < dialogue.turns.size(); ++i) ASSERT_EQ(dialogue.turns[i].role, i % 2 == 0 ? "A" : "B");
  }
  EXPECT_EQ(reader.counts().dialogues, 1000);
  EXPECT_EQ(reader.counts().turns, 2 * 7801);
  EXPECT_EQ(persona_lines, 4483);
  EXPECT_EQ(reader.counts().empty_turns, 0);
}

TEST(DialogueReader, ReadsTheSharedPersuasionForGood) {
  SKIP_WITHOUT_SHARED("data/dialogue/persuasionforgood");
  DialogueReader reader({.data = {test::shared("data/dialogue/persuasionforgood/full_dialog.csv")}}, {});
  std::map<std::string, int64_t> roles;
  for (Dialogue dialogue; reader.next(dialogue);) {
    EXPECT_EQ(dialogue.turns.front().role, "A");
    for (const Turn& turn : dialogue.turns) ++roles[turn.role];
  }
  EXPECT_EQ(reader.format(), "persuasion");
  EXPECT_EQ(reader.counts().dialogues, 1017);
  EXPECT_EQ(reader.counts().turns, 20932);
  EXPECT_EQ(roles["A"], 10600);
  EXPECT_EQ(roles["B"], 10332);
}

TEST(DialogueReader, ReadsTheSharedMultiSessionChatAndItsOverlapWithPersonaChat) {
  SKIP_WITHOUT_SHARED("data/dialogue/msc");
  std::map<std::string, Side> sides;
  DialogueReader personachat({.data = {test::shared("data/dialogue/personachat")}}, {});
  for (Dialogue dialogue; personachat.next(dialogue);) sides[dialogue.split_key] = dialogue.side;
  EXPECT_EQ(sides.size(), 1000u);
  const std::map<std::string, std::array<int64_t, 3>> files = {{"valid", {500, 7768 + 5897, 500}},
                                                               {"test", {501, 6572 + 5939, 0}}};
  for (const auto& [name, expected] : files) {
    DialogueReader reader({.data = {test::shared("data/dialogue/msc/session_2_" + name + ".jsonl.gz")}}, {});
    int64_t known = 0;
    for (Dialogue dialogue; reader.next(dialogue);) {
      EXPECT_EQ(dialogue.sessions(), 2);
      const auto found = sides.find(dialogue.split_key);
      if (found == sides.end()) continue;
      ++known;
      EXPECT_EQ(found->second, dialogue.side) << "one key, one side, in both data sets";
    }
    EXPECT_EQ(reader.counts().dialogues, expected[0]);
    EXPECT_EQ(reader.counts().turns, expected[1]);
    EXPECT_EQ(known, expected[2]) << name;
  }
}

TEST(DialogueReader, SharesNoLongUtteranceBetweenTrainAndTestOverAllDataSetsOfAChain) {
  SKIP_WITHOUT_SHARED("data/dialogue");
  const std::vector<std::string> sets = {test::shared("data/dialogue/personachat"), test::shared("data/dialogue/msc"),
                                         test::shared("data/dialogue/persuasionforgood/full_dialog.csv")};
  for (const int64_t words : {10, 8}) {
    SharedUtterances shared(words), unguarded(words);
    std::array<int64_t, 3> dialogues = {};
    for (const auto& set : sets) {  // each is a recipe's own data; the chain is named in apart_from
      for (const auto side : {Side::kTrain, Side::kValid, Side::kTest}) {
        for (const int64_t apart : {words, int64_t{0}}) {
          DialogueReader reader({.data = {set}}, {.side = side_name(side), .keep_apart = apart, .apart_from = sets});
          for (Dialogue dialogue; reader.next(dialogue);) {
            if (apart > 0) ++dialogues[static_cast<size_t>(side)];
            for (const Turn& turn : dialogue.turns) {
              (apart > 0 ? shared : unguarded).add(turn.text, dialogue.place, side);
            }
          }
        }
      }
    }
    EXPECT_TRUE(shared.list().empty()) << shared.list().front().text;
    EXPECT_GT(unguarded.list().size(), 5u) << "else this test says nothing";
    EXPECT_GT(dialogues[0], 2100);
    EXPECT_GT(dialogues[1], 200);
    EXPECT_GT(dialogues[2], 250);
  }
}

TEST(DialogueReader, CutsTheSharedBooksIntoTheirChapters) {
  SKIP_WITHOUT_SHARED("data/lm/books");
  const std::map<std::string, int64_t> chapters = {{"carroll-alice.txt", 12},       {"melville-moby_dick.txt", 135},
                                                   {"Austen_Pride.txt", 61},        {"CBronte_Jane.txt", 38},
                                                   {"chesterton-thursday.txt", 15}, {"Dickens_Hard.txt", 37}};
  for (const auto& [name, expected] : chapters) {
    DocumentReader reader({.data = {test::shared("data/lm/books/" + name)}, .document = "chapter"});
    int64_t documents = 0;
    for (Document document; reader.next(document);) ++documents;
    EXPECT_EQ(documents, expected + 1) << name << ": the chapters, and what stands before the first";
  }
}

}  // namespace
}  // namespace palimpsest::data
