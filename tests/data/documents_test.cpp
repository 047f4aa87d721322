// SPDX-License-Identifier: Apache-2.0
// Readers: borders, names, gzip, JSONL, what is refused and in which words, and memory.
#include "palimpsest/data/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <fstream>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "tests/data/sanitized.h"
#include "tests/support/paths.h"

namespace palimpsest::data {
namespace {

using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

void write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

void write_gzip(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

std::vector<Document> read_all(const CorpusOptions& options, ReadCounts* counts = nullptr) {
  DocumentReader reader(options);
  std::vector<Document> documents;
  for (Document document; reader.next(document);) documents.push_back(document);
  if (counts != nullptr) *counts = reader.counts();
  return documents;
}

std::vector<std::string> texts(const std::vector<Document>& documents) {
  std::vector<std::string> list;
  for (const auto& document : documents) list.push_back(document.text);
  return list;
}

std::vector<std::string> names(const std::vector<Document>& documents) {
  std::vector<std::string> list;
  for (const auto& document : documents) list.push_back(std::filesystem::path(document.name).filename().string());
  return list;
}

/// The documents of one file with these bytes.
std::vector<Document> read_text(const std::string& bytes, CorpusOptions options, ReadCounts* counts = nullptr,
                                const std::string& name = "a.txt") {
  const TemporaryFolder folder;
  write(folder.path(name), bytes);
  options.data = {folder.path(name)};
  return read_all(options, counts);
}

std::string error_of(const std::string& bytes, CorpusOptions options = {}, const std::string& name = "a.txt") {
  try {
    read_text(bytes, std::move(options), nullptr, name);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "no error";
}

TEST(DocumentReader, GivesAFileAsItIs) {
  const std::string bytes = "One\r\n\r\n  two \xC3\xA9\n\nno line end";
  ReadCounts counts;
  const auto documents = read_text(bytes, {}, &counts);
  EXPECT_THAT(texts(documents), ElementsAre(bytes));
  EXPECT_THAT(names(documents), ElementsAre("a.txt"));
  EXPECT_EQ(counts.files, 1);
  EXPECT_EQ(counts.bytes, static_cast<int64_t>(bytes.size()));
}

TEST(DocumentReader, DropsAByteOrderMark) {
  EXPECT_THAT(texts(read_text("\xEF\xBB\xBFtext", {})), ElementsAre("text"));
}

TEST(DocumentReader, GivesEachLine) {
  ReadCounts counts;
  const auto documents = read_text("one\n\ntwo\r\n \t\n  three  \nfour", {.document = "line"}, &counts);
  EXPECT_THAT(texts(documents), ElementsAre("one", "two", "  three  ", "four"));
  EXPECT_THAT(names(documents), ElementsAre("a.txt:1", "a.txt:3", "a.txt:5", "a.txt:6"));
  EXPECT_EQ(counts.documents, 4);
  EXPECT_EQ(counts.empty, 2);
}

TEST(DocumentReader, CutsAtBlankLines) {
  const auto documents = read_text("\n\na\nb\n \t\r\n\nc\n\n", {.document = "blank"});
  EXPECT_THAT(texts(documents), ElementsAre("a\nb\n", "c\n"));
  EXPECT_THAT(names(documents), ElementsAre("a.txt:3", "a.txt:7"));
}

TEST(DocumentReader, StartsADocumentAtASeparatorWhichBelongsToIt) {
  const auto documents = read_text("before\n# A\na\n## b\n# B\n", {.document = "separator=# "});
  EXPECT_THAT(texts(documents), ElementsAre("before\n", "# A\na\n## b\n", "# B\n"));
}

TEST(DocumentReader, LeavesOutALineOfWhichStripLeavesNothing) {
  ReadCounts counts;  // the format of fortune files
  const auto documents =
      read_text("first\n%\nsecond\n100%\n%\n%\nthird\n%\n", {.document = "separator=^%$", .strip = "^%$"}, &counts);
  EXPECT_THAT(texts(documents), ElementsAre("first\n", "second\n100%\n", "third\n"));
  EXPECT_EQ(counts.empty, 2);
}

TEST(DocumentReader, StartsADocumentWhereTheCapturedGroupChanges) {
  const std::string text =
      "Gen1:1 In the beginning\nGen1:2 And the earth\nGen2:1 Thus the heavens\n1Sam2:1 And Hannah\n1Sam2:2 There is\n";
  const auto documents = read_text(text, {.document = "change=^(\\S+?\\d*):\\d+ ", .strip = "^\\S+ "});
  EXPECT_THAT(texts(documents),
              ElementsAre("In the beginning\nAnd the earth\n", "Thus the heavens\n", "And Hannah\nThere is\n"));
  EXPECT_THAT(names(documents), ElementsAre("a.txt:1", "a.txt:3", "a.txt:4"));
}

TEST(DocumentReader, KeepsLinesThatDoNotMatchChangeWithTheDocumentBefore) {
  const auto documents = read_text("title\nA1 x\nmore\nA2 y\nB1 z\n", {.document = "change=([A-Z])"});
  EXPECT_THAT(texts(documents), ElementsAre("title\n", "A1 x\nmore\nA2 y\n", "B1 z\n"));
}

TEST(DocumentReader, MatchesTheFirstBytesOfALineOnly) {
  const std::string far = std::string(300, 'x') + "END\n";
  EXPECT_EQ(read_text("a\n" + far + "b\n", {.document = "separator=.*END"}).size(), 1u);
  EXPECT_EQ(read_text("a\nxxEND\nb\n", {.document = "separator=.*END"}).size(), 2u);
  EXPECT_EQ(read_text("a\n" + std::string(300, 'x') + "\n", {.document = "separator=x+$"}).size(), 1u)
      << "$ is not the end of the prefix";
  EXPECT_EQ(read_text("a\n" + std::string(200, 'x') + "\r\n", {.document = "separator=x+$"}).size(), 2u);
  // A pattern that would take exponential time elsewhere.
  EXPECT_EQ(read_text(std::string(250, 'a') + "\n", {.document = "separator=(a*)*b"}).size(), 1u);
}

TEST(DocumentReader, CutsAFileIntoPieces) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "word" + std::to_string(i) + (i % 10 == 9 ? "\n" : " ");
  const auto documents = read_text(text, {.document = "pieces=7"});
  ASSERT_EQ(documents.size(), 7u);
  std::string all;
  for (const auto& document : documents) {
    all += document.text;
    EXPECT_NEAR(static_cast<double>(document.text.size()), static_cast<double>(text.size()) / 7, 20);
    if (&document != &documents.front()) {
      EXPECT_TRUE(document.text.front() == ' ' || document.text.front() == '\n');
    }
  }
  EXPECT_EQ(all, text);
  EXPECT_EQ(names(documents).front(), "a.txt#1");
  EXPECT_EQ(names(documents).back(), "a.txt#7");
}

TEST(DocumentReader, CutsLongPiecesAndTextWithoutSpaces) {
  std::string text;
  while (text.size() < 1000000) text += "\xE6\xBC\xA2\xE5\xAD\x97";  // no white space at all
  for (const int64_t pieces : {2, 5}) {
    const auto documents = read_text(text, {.document = "pieces=" + std::to_string(pieces)});
    ASSERT_EQ(static_cast<int64_t>(documents.size()), pieces);
    std::string all;
    for (const auto& document : documents) all += document.text;
    EXPECT_EQ(all, text);
  }
  EXPECT_THAT(texts(read_text("a b", {.document = "pieces=9"})), ElementsAre("a", " b"))
      << "fewer pieces than asked for, nothing lost";
}

TEST(DocumentReader, GivesLongLinesWhole) {
  for (const size_t size : {65534u, 65535u, 65536u, 65537u, 131072u, 300001u}) {
    std::string line(size, 'a');
    for (size_t i = 0; i + 3 < size; i += 7) line.replace(i, 3, "\xE2\x82\xAC");
    line += "\r";
    const auto documents = read_text(line + "\nnext\n" + line, {.document = "line"});
    ASSERT_EQ(documents.size(), 3u) << size;
    EXPECT_EQ(documents[0].text + "\r", line);
    EXPECT_EQ(documents[1].text, "next");
    EXPECT_EQ(documents[2].text + "\r", line);
    EXPECT_EQ(read_text(line, {})[0].text, line);
  }
}

TEST(DocumentReader, ReadsGzipAsItReadsTheFile) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "line " + std::to_string(i) + "\n";
  write_gzip(folder.path("a.txt.gz"), text);
  EXPECT_THAT(texts(read_all({.data = {folder.path("a.txt.gz")}})), ElementsAre(text));
  write_gzip(folder.path("noname"), "{}");
  EXPECT_THAT(texts(read_all({.data = {folder.path("noname")}})), ElementsAre("{}")) << "noticed by its bytes";
  write_gzip(folder.path("b.jsonl.gz"), "{\"text\":\"x\"}\n");
  EXPECT_THAT(texts(read_all({.data = {folder.path("b.jsonl.gz")}})), ElementsAre("x"));
  EXPECT_EQ(read_all({.data = {folder.path("a.txt.gz")}, .document = "pieces=4"}).size(), 4u);
}

TEST(DocumentReader, RefusesBrokenGzip) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::to_string(i * 7919) + "\n";
  write_gzip(folder.path("a.txt.gz"), text);
  const std::string bytes = read_file(folder.path("a.txt.gz"));
  for (const size_t size : {size_t{2}, size_t{11}, bytes.size() / 2, bytes.size() - 1}) {
    EXPECT_THAT(error_of(bytes.substr(0, size), {}, "a.txt.gz"), HasSubstr("gzip data ends too early")) << size;
  }
  std::string damaged = bytes;
  damaged[bytes.size() / 2] ^= 0x55;
  EXPECT_THAT(error_of(damaged, {}, "a.txt.gz"), HasSubstr("cannot read"));
  EXPECT_THAT(error_of("plain", {}, "a.txt.gz"), HasSubstr("is not gzip, though its name ends in .gz"));
  EXPECT_THAT(error_of("", {}, "a.txt.gz"), HasSubstr("is not gzip"));
}

TEST(DocumentReader, ReadsJsonl) {
  ReadCounts counts;
  const auto documents = read_text(
      "{\"text\": \"one\\n\\u00e9\", \"more\": {\"text\": 3, \"list\": [1, {\"text\": null}]}}\r\n\n  "
      "\n{\"id\":1e5,\"text\":\"\"}\n{\"text\":\"three\"}",
      {}, &counts, "a.jsonl");
  EXPECT_THAT(texts(documents), ElementsAre("one\n\xC3\xA9", "three"));
  EXPECT_THAT(names(documents), ElementsAre("a.jsonl:1", "a.jsonl:5"));
  EXPECT_EQ(counts.empty, 1);
  EXPECT_EQ(counts.documents, 2);
  EXPECT_THAT(texts(read_text("{\"body\":\"x\"}", {.text_key = "body"}, nullptr, "a.jsonl")), ElementsAre("x"));
}

TEST(DocumentReader, CutsARecordLikeAFile) {
  const auto documents =
      read_text("{\"text\":\"a\\nb\"}\n{\"text\":\"c\"}\n", {.document = "line"}, nullptr, "a.jsonl");
  EXPECT_THAT(texts(documents), ElementsAre("a", "b", "c"));
  EXPECT_THAT(names(documents), ElementsAre("a.jsonl:1#1", "a.jsonl:1#2", "a.jsonl:2#1"));
}

TEST(DocumentReader, SaysWhatIsWrongWithARecordAndWhere) {
  const auto error = [](const std::string& bytes) { return error_of("{\"text\":\"fine\"}\n" + bytes, {}, "a.jsonl"); };
  EXPECT_THAT(error("{\"id\":1,\"body\":\"x\"}"),
              testing::AllOf(HasSubstr("error: key \"text\" is missing"), HasSubstr("a.jsonl, line 2"),
                             HasSubstr("--text-key; this record has: id, body")));
  EXPECT_THAT(error("{\"text\":7}"), HasSubstr("\"text\" must be text, this is a number"));
  EXPECT_THAT(error("{\"text\":null}"), HasSubstr("\"text\" must be text, this is null"));
  EXPECT_THAT(error("{\"text\":[\"x\"]}"), HasSubstr("\"text\" must be text, this is a list"));
  EXPECT_THAT(error("{\"text\":{\"text\":\"x\"}}"), HasSubstr("\"text\" must be text, this is an object"));
  EXPECT_THAT(error("{\"text\":\"a\",\"text\":\"b\"}"), HasSubstr("key \"text\" is there twice"));
  EXPECT_THAT(error("[1]"), HasSubstr("a record must be an object, this is a list"));
  EXPECT_THAT(error("\"x\""), HasSubstr("a record must be an object, this is text"));
  EXPECT_THAT(error("{\"text\":\"x\""),
              testing::AllOf(HasSubstr("not valid JSON"), HasSubstr("a.jsonl, line 2, byte 12")));
  EXPECT_THAT(error("{\"text\":\"x\"} {\"text\":\"y\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("{\"text\":\"\\ud800\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("{\"x\":" + std::string(1000, '[')), HasSubstr("nested deeper than 128 levels"));
  EXPECT_LT(error("{\"text\":\"" + std::string(100000, 'x')).size(), 1000u)
      << "the record is not repeated in the message";
}

TEST(DocumentReader, RefusesInvalidUtf8AndNamesTheByte) {
  EXPECT_THAT(error_of("abc\nd\xE9zz\n"),
              testing::AllOf(HasSubstr("error: not valid UTF-8 (byte 0xE9)"), HasSubstr("a.txt, line 2, byte 5"),
                             HasSubstr("iconv -f WINDOWS-1252")));
  EXPECT_THAT(error_of(std::string("\xFF\xFE"
                                   "a\0b\0",
                                   6)),
              HasSubstr("it looks like UTF-16"));
  EXPECT_THAT(error_of("x\xE2\x82"), HasSubstr("byte 1"));
  EXPECT_THAT(error_of("\xC0\x80"), HasSubstr("byte 0"));
  EXPECT_THAT(error_of("\xED\xA0\x80"), HasSubstr("byte 0")) << "a surrogate";
  EXPECT_THAT(error_of("\xF4\x90\x80\x80"), HasSubstr("byte 0")) << "beyond U+10FFFF";
  EXPECT_THAT(error_of(std::string(200000, 'a') + "\x80"), HasSubstr("line 1, byte 200000"));
  EXPECT_THAT(error_of("{\"text\":\"\xFF\"}", {}, "a.jsonl"), HasSubstr("not valid UTF-8"));
}

TEST(DocumentReader, ReadsFoldersInOrder) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("sub"));
  std::filesystem::create_directories(folder.path(".git"));
  write(folder.path("b.txt"), "b");
  write(folder.path("a.jsonl"), "{\"text\":\"a\"}");
  write(folder.path("sub/c.txt"), "c");
  write(folder.path("readme.md"), "m");
  write(folder.path(".hidden.txt"), "h");
  write(folder.path(".git/x.txt"), "h");
  write(folder.path("empty.txt"), "");
  ReadCounts counts;
  EXPECT_THAT(texts(read_all({.data = {folder.path()}}, &counts)), ElementsAre("a", "b", "c"));
  EXPECT_EQ(counts.files, 4);
  EXPECT_EQ(counts.empty, 1);
  EXPECT_EQ(counts.left_out, 1);
  EXPECT_THAT(texts(read_all({.data = {folder.path("readme.md"), folder.path("b.txt")}})), ElementsAre("m", "b"));
}

TEST(DocumentReader, RefusesWhatCannotBeRead) {
  const TemporaryFolder folder;
  const auto error = [](const CorpusOptions& options) -> std::string {
    try {
      read_all(options);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error({.data = {folder.path("none")}}), HasSubstr("no such file or folder"));
  EXPECT_THAT(error({.data = {folder.path()}}), HasSubstr("no text in this folder"));
  EXPECT_THAT(error({}), HasSubstr("no data"));
  EXPECT_THAT(error_of("x", {.document = "page"}),
              HasSubstr("choose one of: file, line, blank, chapter, separator=REGEX"));
  EXPECT_THAT(error_of("x", {.document = "file=3"}), HasSubstr("choose one of"));
  EXPECT_THAT(error_of("x", {.document = "separator="}), HasSubstr("choose one of"));
  EXPECT_THAT(error_of("x", {.document = "separator=(("}), HasSubstr("is not a regular expression"));
  EXPECT_THAT(error_of("x", {.document = "separator=(a)\\1"}), HasSubstr("back references are not supported"));
  EXPECT_THAT(error_of("x", {.document = "change=abc"}), HasSubstr("has no capture group"));
  EXPECT_THAT(error_of("x", {.document = "pieces=0"}), HasSubstr("is not a number of pieces"));
  EXPECT_THAT(error_of("x", {.document = "pieces=2x"}), HasSubstr("is not a number of pieces"));
  EXPECT_THAT(error_of("x", {.strip = "["}), HasSubstr("strip: \"[\" is not a regular expression"));
  EXPECT_THAT(error({.data = {"-"}, .document = "pieces=2"}), HasSubstr("stdin and pipes have none"));
}

TEST(DocumentReader, SkipsEmptyFilesAndCountsThem) {
  ReadCounts counts;
  EXPECT_TRUE(read_text("", {}, &counts).empty());
  EXPECT_EQ(counts.empty, 1);
  EXPECT_TRUE(read_text("\xEF\xBB\xBF", {}, &counts).empty());
  EXPECT_EQ(counts.empty, 1);
  EXPECT_TRUE(read_text("\n\n", {.document = "blank"}, &counts).empty());
  EXPECT_EQ(counts.empty, 1);
  EXPECT_TRUE(read_text("", {}, &counts, "a.jsonl").empty());
  EXPECT_EQ(counts.empty, 1);
}

TEST(DocumentReader, PiecesAreDocumentsInParts) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 50000; ++i) text += "line " + std::to_string(i) + "\n";
  write(folder.path("a.txt"), text + "\n\n" + text + "\n\nend");
  DocumentReader reader({.data = {folder.path("a.txt")}, .document = "blank"});
  std::vector<std::string> documents;
  bool inside = false;
  for (Piece piece; reader.next_piece(piece); inside = !piece.last) {
    EXPECT_EQ(piece.first, !inside);
    EXPECT_LE(static_cast<int64_t>(piece.text.size()), DocumentReader::kPieceBytes + DocumentReader::kLineBytes);
    if (piece.first) documents.emplace_back();
    documents.back() += piece.text;
  }
  EXPECT_THAT(documents, ElementsAre(text, text, "end"));
  EXPECT_EQ(reader.raw_position(), reader.raw_size());
}

// FIELD_REPORTS FR-21.
TEST(DocumentReader, ReadsAHundredMegabytesAtConstantMemory) {
  const TemporaryFolder folder;
  {
    std::string block;
    for (int i = 0; i < 20000; ++i) block += "some words of line " + std::to_string(i) + "\n";
    std::ofstream file(folder.path("a.txt"), std::ios::binary);
    for (int64_t size = 0; size < 100'000'000; size += static_cast<int64_t>(block.size())) file << block;
  }
  DocumentReader reader({.data = {folder.path("a.txt")}});
  Piece piece;
  int64_t bytes = 0, greatest = 0;
  ASSERT_TRUE(reader.next_piece(piece));
  const int64_t before = resident_bytes().now;
  do {
    bytes += static_cast<int64_t>(piece.text.size());
    greatest = std::max(greatest, resident_bytes().now);
  } while (reader.next_piece(piece));
  EXPECT_GT(bytes, 99'000'000);
  if (!test::kAddressSanitized) EXPECT_LT(greatest - before, 4 << 20) << "resident bytes grew while reading";
}

}  // namespace
}  // namespace palimpsest::data
