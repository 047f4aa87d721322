// SPDX-License-Identifier: Apache-2.0
// Ten thousand mutated JSONL files (some gzipped): documents or one clear error, never anything else.
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/random.h"
#include "palimpsest/data/documents.h"
#include "palimpsest/data/text_lines.h"
#include "tests/support/paths.h"

namespace palimpsest::data {
namespace {

const char* const kRecords[] = {
    "{\"text\": \"A line of text.\", \"id\": 17}\n",
    "{\"id\": [1, 2.5e3, null, true], \"text\": \"caf\xC3\xA9 \\u00e9\\ud83d\\ude00 \\\"quoted\\\"\\n\"}\n",
    "{\"meta\": {\"text\": \"inner\", \"deep\": [[[{}]]]}, \"text\": \"\xE6\xBC\xA2\xE5\xAD\x97\"}\r\n",
    "{\"text\": \"\"}\n",
    "\n",
};

std::string mutate(std::string bytes, Random& random) {
  static const std::string interesting[] = {"\"",         "\\",
                                            "{",          "}",
                                            "[",          "]",
                                            ":",          ",",
                                            "\n",         "\r",
                                            "\0",         "\xFF",
                                            "\xC3",       "\xED\xA0\x80",
                                            "\\u",        "\\ud800",
                                            "null",       "-",
                                            "1e999",      "text",
                                            "\"text\"",   "\xEF\xBB\xBF",
                                            "{\"text\":", "\"\"",
                                            "  "};
  for (int64_t times = 1 + random.below(4); times > 0 && !bytes.empty(); --times) {
    const auto at = static_cast<size_t>(random.below(static_cast<int64_t>(bytes.size())));
    const auto length = static_cast<size_t>(random.below(12));
    switch (random.below(6)) {
      case 0:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        bytes.erase(at, length);
        break;
      case 2:
        bytes.insert(at, interesting[random.below(std::size(interesting))]);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 4:
        bytes.resize(at);
        break;
      default:
        bytes.insert(at, std::string(static_cast<size_t>(random.below(400)), random.below(2) == 0 ? '[' : '{'));
        break;
    }
  }
  return bytes;
}

std::string gzip(const std::string& bytes, const std::string& scratch) {
  std::filesystem::remove(scratch);
  gzFile file = gzopen(scratch.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  return read_file(scratch);
}

TEST(JsonlFuzz, GivesDocumentsOrAnErrorForTenThousandMutatedFiles) {
  const test::TemporaryFolder folder;
  int64_t errors = 0, documents = 0;
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    Random random(random_key(2024, seed));
    std::string bytes;
    for (int64_t records = 1 + random.below(4); records > 0; --records)
      bytes += kRecords[random.below(std::size(kRecords))];
    const bool packed = seed % 8 == 0, packed_first = packed && random.below(2) == 0;
    if (packed_first) bytes = gzip(bytes, folder.path("scratch"));
    bytes = mutate(std::move(bytes), random);
    if (packed && !packed_first) bytes = gzip(bytes, folder.path("scratch"));
    // A new file each time: some file systems flush one that is truncated and written again.
    const std::string path = folder.path(packed ? "a.jsonl.gz" : "a.jsonl");
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary) << bytes;
    const char* const borders[] = {"file", "line", "blank", "separator=[A-Z]", "pieces=3"};
    try {
      DocumentReader reader({.data = {path}, .document = borders[seed % std::size(borders)]});
      for (Document document; reader.next(document); ++documents) {
        ASSERT_FALSE(document.text.empty());
        ASSERT_EQ(find_invalid_utf8(document.text), std::string::npos);
      }
    } catch (const Error& e) {
      ++errors;
      ASSERT_EQ(e.exit_code(), 2) << e.what();
      ASSERT_NE(e.place().find("a.jsonl"), std::string::npos) << e.what();
      ASSERT_LT(std::string(e.what()).size(), 2000u);
      ASSERT_EQ(find_invalid_utf8(e.what()), std::string::npos);
    }
  }
  EXPECT_GT(errors, 3000);
  EXPECT_GT(documents, 3000);
}

}  // namespace
}  // namespace palimpsest::data
