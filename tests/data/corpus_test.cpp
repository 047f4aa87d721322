// SPDX-License-Identifier: Apache-2.0
// The token cache: equal ids however a text is cut, reuse, going on after an error or a kill, damage, memory.
#include "palimpsest/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <numeric>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/random.h"
#include "palimpsest/text/tokenizer.h"
#include "tests/data/sanitized.h"
#include "tests/support/paths.h"

namespace palimpsest::data {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;

void write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

/// A token per word with the white space before it: id = a hash. Cutting where a word would be cut changes ids.
std::vector<int32_t> encode_words(std::string_view text) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && std::isspace(static_cast<unsigned char>(text[end]))) ++end;
    while (end < text.size() && !std::isspace(static_cast<unsigned char>(text[end]))) ++end;
    uint64_t hash = 0;
    for (; i < end; ++i) hash = mix_bits(hash ^ static_cast<unsigned char>(text[i]));
    ids.push_back(static_cast<int32_t>(hash % 1000003));
  }
  return ids;
}
const TokenizeFunction kWords{.encode = encode_words, .fingerprint = "words"};

/// The same, but nothing may be tokenized.
TokenizeFunction refusing(const std::string& fingerprint = "words") {
  return {.encode = [](std::string_view) -> std::vector<int32_t> { throw internal_error("tokenized again"); },
          .fingerprint = fingerprint};
}

std::string make_text(int64_t bytes, uint64_t seed) {
  Random random(random_key(seed));
  std::string text;
  while (static_cast<int64_t>(text.size()) < bytes) {
    for (int64_t letters = 1 + random.below(9); letters > 0; --letters)
      text += static_cast<char>('a' + random.below(26));
    text += random.below(12) == 0 ? "\n" : random.below(20) == 0 ? ",  " : " ";
  }
  return text;
}

std::vector<int32_t> ids_of(const Corpus& corpus, int64_t document) {
  const auto tokens = corpus.tokens(document);
  return {tokens.begin(), tokens.end()};
}

void expect_equal(const Corpus& a, const Corpus& b) {
  ASSERT_EQ(a.documents(), b.documents());
  EXPECT_EQ(a.total_tokens(), b.total_tokens());
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  EXPECT_EQ(a.empty_documents(), b.empty_documents());
  for (int64_t d = 0; d < a.documents(); ++d) {
    ASSERT_EQ(ids_of(a, d), ids_of(b, d)) << d;
    EXPECT_EQ(a.name(d), b.name(d));
    EXPECT_EQ(a.bytes(d), b.bytes(d));
    EXPECT_EQ(a.words(d), b.words(d));
    EXPECT_EQ(a.hash(d), b.hash(d));
  }
}

/// Three documents: 600 kB, empty, 9 MB, in three files.
std::string fill(const TemporaryFolder& folder) {
  std::filesystem::create_directories(folder.path("in"));
  write(folder.path("in/a.txt"), make_text(600'000, 1));
  write(folder.path("in/b.txt"), "");
  write(folder.path("in/c.txt"), make_text(9'000'000, 2));
  return folder.path("in");
}

std::string only_folder(const std::string& cache) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(cache)) found.push_back(entry.path().string());
  EXPECT_EQ(found.size(), 1u);
  return found.at(0);
}

TEST(PrepareCorpus, HoldsTheIdsOfEachDocument) {
  const TemporaryFolder folder;
  const std::string in = fill(folder);
  const auto corpus = prepare_corpus({.data = {in}}, kWords, "");
  ASSERT_EQ(corpus->documents(), 2);
  EXPECT_EQ(corpus->empty_documents(), 1);
  const std::string text = make_text(9'000'000, 2);
  EXPECT_EQ(ids_of(*corpus, 0), encode_words(make_text(600'000, 1)));
  EXPECT_EQ(ids_of(*corpus, 1), encode_words(text)) << "a text in chunks";
  EXPECT_EQ(corpus->name(1), in + "/c.txt");
  EXPECT_EQ(corpus->bytes(1), static_cast<int64_t>(text.size()));
  EXPECT_EQ(corpus->total_tokens(), static_cast<int64_t>(corpus->tokens(0).size() + corpus->tokens(1).size()));
  EXPECT_THROW(corpus->tokens(2), Error);
  EXPECT_THROW(corpus->tokens(-1), Error);
}

TEST(PrepareCorpus, CountsBytesAndWords) {
  const TemporaryFolder folder;
  write(folder.path("a.txt"), " one two\xC2\xA0three\n\n\xC3\xA9t\xC3\xA9\xE3\x80\x80x \n");
  const auto corpus = prepare_corpus({.data = {folder.path("a.txt")}}, kWords, "");
  EXPECT_EQ(corpus->words(0), 5);
  EXPECT_EQ(corpus->bytes(0), 28);
}

TEST(PrepareCorpus, KeepsTheIdsInACache) {
  const TemporaryFolder folder;
  const CorpusOptions options{.data = {fill(folder)}};
  const auto in_memory = prepare_corpus(options, kWords, "");
  expect_equal(*in_memory, *prepare_corpus(options, kWords, folder.path("cache")));
  expect_equal(*in_memory, *prepare_corpus(options, refusing(), folder.path("cache")));
}

TEST(PrepareCorpus, MakesAnotherCacheWhereAnythingDiffers) {
  const TemporaryFolder folder;
  const std::string in = fill(folder), cache = folder.path("cache");
  prepare_corpus({.data = {in}}, kWords, cache);
  EXPECT_THROW(prepare_corpus({.data = {in}}, refusing("other"), cache), Error);
  EXPECT_THROW(prepare_corpus({.data = {in}, .document = "line"}, refusing(), cache), Error);
  EXPECT_THROW(prepare_corpus({.data = {in}, .strip = "a"}, refusing(), cache), Error);
  EXPECT_THROW(prepare_corpus({.data = {in + "/a.txt"}}, refusing(), cache), Error);
  write(in + "/a.txt", "changed");
  EXPECT_THROW(prepare_corpus({.data = {in}}, refusing(), cache), Error);
  EXPECT_EQ(ids_of(*prepare_corpus({.data = {in}}, kWords, cache), 0), encode_words("changed"));
}

TEST(PrepareCorpus, GoesOnWhereAnErrorStoppedIt) {
  const TemporaryFolder folder;
  const CorpusOptions options{.data = {fill(folder)}};
  const auto whole = prepare_corpus(options, kWords, "");
  const int64_t total = whole->bytes(0) + whole->bytes(1);
  for (const int64_t calls : {0, 1, 3, 4, 20}) {
    const std::string cache = folder.path("cache" + std::to_string(calls));
    int64_t done = 0, bytes = 0;
    const TokenizeFunction failing{.encode =
                                       [&](std::string_view text) {
                                         if (done++ == calls) throw internal_error("injected");
                                         bytes += static_cast<int64_t>(text.size());
                                         return encode_words(text);
                                       },
                                   .fingerprint = "words"};
    EXPECT_THROW(prepare_corpus(options, failing, cache), Error);
    const int64_t bytes_before = bytes;
    const TokenizeFunction counting{.encode =
                                        [&](std::string_view text) {
                                          bytes += static_cast<int64_t>(text.size());
                                          return encode_words(text);
                                        },
                                    .fingerprint = "words"};
    expect_equal(*whole, *prepare_corpus(options, counting, cache));
    EXPECT_EQ(bytes, total) << "nothing was tokenized twice, " << bytes_before << " before the error";
  }
}

TEST(PrepareCorpus, GoesOnWhereItWasKilled) {
  const TemporaryFolder folder;
  const CorpusOptions options{.data = {fill(folder)}};
  const std::string cache = folder.path("cache");
  const pid_t child = ::fork();
  if (child == 0) {  // dies without any clean-up, 6 MB into the text
    int64_t bytes = 0;
    const TokenizeFunction deadly{.encode =
                                      [&](std::string_view text) {
                                        bytes += static_cast<int64_t>(text.size());
                                        if (bytes > 6'000'000) ::kill(::getpid(), SIGKILL);
                                        return encode_words(text);
                                      },
                                  .fingerprint = "words"};
    prepare_corpus(options, deadly, cache);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  int64_t bytes = 0;
  const TokenizeFunction counting{.encode =
                                      [&](std::string_view text) {
                                        bytes += static_cast<int64_t>(text.size());
                                        return encode_words(text);
                                      },
                                  .fingerprint = "words"};
  const auto resumed = prepare_corpus(options, counting, cache);
  expect_equal(*prepare_corpus(options, kWords, ""), *resumed);
  EXPECT_LT(bytes, 6'000'000) << "what was written down before the kill is not tokenized again";
}

TEST(PrepareCorpus, StartsAnewWhereTheCacheIsDamaged) {
  const TemporaryFolder folder;
  const CorpusOptions options{.data = {fill(folder)}};
  const std::string cache = folder.path("cache");
  const auto whole = prepare_corpus(options, kWords, "");
  prepare_corpus(options, kWords, cache);
  const std::string made = only_folder(cache);
  for (const char* name : {"/tokens.bin", "/documents.bin", "/meta.json"}) {
    std::filesystem::resize_file(made + name, std::filesystem::file_size(made + name) / 2);
    expect_equal(*whole, *prepare_corpus(options, kWords, cache));
    std::filesystem::remove(made + name);
    expect_equal(*whole, *prepare_corpus(options, kWords, cache));
  }
  std::filesystem::remove(made + "/meta.json");
  write(made + "/progress.json", "{\"documents\": 99");
  expect_equal(*whole, *prepare_corpus(options, kWords, cache));
}

TEST(PrepareCorpus, LetsTwoProcessesPrepareOneCorpus) {
  const TemporaryFolder folder;
  const CorpusOptions options{.data = {fill(folder)}};
  const std::string cache = folder.path("cache");
  const pid_t child = ::fork();
  if (child == 0) {
    prepare_corpus(options, kWords, cache);
    ::_exit(0);
  }
  const auto corpus = prepare_corpus(options, kWords, cache);
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  expect_equal(*corpus, *prepare_corpus(options, refusing(), cache));
}

// FIELD_REPORTS FR-88: never "0 steps, loss 0, success".
TEST(PrepareCorpus, RefusesACorpusWithoutText) {
  const TemporaryFolder folder;
  write(folder.path("a.txt"), "\n\n");
  try {
    prepare_corpus({.data = {folder.path("a.txt")}, .document = "line"}, kWords, folder.path("cache"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("no text was found: 0 documents with text, 2 empty ones"));
    EXPECT_THAT(e.what(), HasSubstr("a.txt"));
  }
}

TEST(PrepareCorpus, NamesTheFileAndTheLineOfAnError) {
  const TemporaryFolder folder;
  write(folder.path("a.jsonl"), "{\"text\":\"x\"}\n{}\n");
  try {
    prepare_corpus({.data = {folder.path("a.jsonl")}}, kWords, folder.path("cache"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("a.jsonl, line 2"));
  }
}

// FIELD_REPORTS FR-21: ids only, peak memory bounded by a chunk.
TEST(PrepareCorpus, TokenizesALargeFileAtConstantMemory) {
  const TemporaryFolder folder;
  const std::string block = make_text(1'000'000, 3);
  {
    std::ofstream file(folder.path("a.txt"), std::ios::binary);
    for (int i = 0; i < 40; ++i) file << block;
  }
  int64_t greatest = 0, before = 0, longest = 0;
  const TokenizeFunction watching{.encode =
                                      [&](std::string_view text) {
                                        const int64_t now = resident_bytes().now;
                                        if (before == 0) before = now;
                                        greatest = std::max(greatest, now);
                                        longest = std::max(longest, static_cast<int64_t>(text.size()));
                                        return encode_words(text);
                                      },
                                  .fingerprint = "words"};
  const auto corpus = prepare_corpus({.data = {folder.path("a.txt")}}, watching, folder.path("cache"));
  EXPECT_GT(corpus->total_tokens(), 6'000'000);
  EXPECT_LE(longest, kChunkBytes + DocumentReader::kPieceBytes + DocumentReader::kLineBytes);
  if (!test::kAddressSanitized) EXPECT_LT(greatest - before, 8 << 20);
}

TEST(SafeCut, CutsBeforeASpaceThatFollowsSomething) {
  EXPECT_EQ(safe_cut("one two three"), 7);
  EXPECT_EQ(safe_cut("one  two"), 3) << "never inside a run of white space";
  EXPECT_EQ(safe_cut("one\n two"), 3);
  EXPECT_EQ(safe_cut("one\n two", true), 0);
  EXPECT_EQ(safe_cut("one\ntwo"), 3);
  EXPECT_EQ(safe_cut("one\ntwo", true), 0);
  EXPECT_EQ(safe_cut("a\xC2\xA0 b"), 0) << "after a no-break space";
  EXPECT_EQ(safe_cut("\xC3\xA9 b"), 2);
  EXPECT_EQ(safe_cut(" one"), 0);
  EXPECT_EQ(safe_cut(""), 0);
  EXPECT_EQ(safe_cut("x"), 0);
}

TEST(PrepareCorpus, CutsEndlessRunsWithoutSpacesAtLast) {
  const TemporaryFolder folder;
  write(folder.path("a.txt"), std::string(10'000'000, 'x'));
  int64_t bytes = 0;
  const TokenizeFunction counting{.encode =
                                      [&](std::string_view text) {
                                        bytes += static_cast<int64_t>(text.size());
                                        return std::vector<int32_t>{1};
                                      },
                                  .fingerprint = "one"};
  const auto corpus = prepare_corpus({.data = {folder.path("a.txt")}}, counting, "");
  EXPECT_EQ(bytes, 10'000'000);
  EXPECT_EQ(corpus->total_tokens(), 3);
}

/// A small byte-level BPE of a book's first lines.
std::shared_ptr<const text::Tokenizer> train_small(const std::string& book, bool add_prefix_space) {
  size_t at = 0;
  return text::train_tokenizer(
      [&](std::string& line) {
        if (at >= std::min<size_t>(book.size(), 200'000)) return false;
        const size_t end = std::min(book.find('\n', at), book.size() - 1) + 1;
        line = book.substr(at, end - at);
        at = end;
        return true;
      },
      {.vocab_size = 600, .add_prefix_space = add_prefix_space});
}

TEST(PrepareCorpus, GivesTheIdsOfAWholeBookThoughItIsTokenizedInChunks) {
  SKIP_WITHOUT_SHARED("data/lm/books");
  for (const bool add_prefix_space : {false, true}) {
    const auto tokenizer = train_small(read_file(test::shared("data/lm/books/Austen_Pride.txt")), add_prefix_space);
    for (const auto& entry : std::filesystem::directory_iterator(test::shared("data/lm/books"))) {
      const std::string path = entry.path().string();
      const auto corpus = prepare_corpus({.data = {path}}, *tokenizer, "");
      ASSERT_EQ(corpus->documents(), 1);
      EXPECT_EQ(ids_of(*corpus, 0), tokenizer->encode_ids(read_file(path), {.parse_special = false})) << path;
    }
  }
}

// Not only at the chunks' borders: at every place where a cut is allowed, around odd white space, digits, contractions.
TEST(SafeCut, NeverChangesTheIds) {
  SKIP_WITHOUT_SHARED("data/lm/books");
  const std::string book = read_file(test::shared("data/lm/books/carroll-alice.txt"));
  const std::vector<std::string> parts = {" ",
                                          "  ",
                                          "\n",
                                          "\n\n",
                                          "\t",
                                          "\r\n",
                                          "'s",
                                          "'",
                                          "don't",
                                          "12",
                                          "a",
                                          "Alice",
                                          ".",
                                          "...",
                                          "-",
                                          "\xC3\xA9",
                                          "\xC2\xA0",
                                          "\xE2\x80\x83",
                                          "\xE6\xBC\xA2",
                                          "\xCC\x81",
                                          "\x1C",
                                          "<s>",
                                          "\xF0\x9F\x98\x80"};
  for (const bool add_prefix_space : {false, true}) {
    const auto tokenizer = train_small(book, add_prefix_space);
    const TokenizeFunction function = tokenize_with(*tokenizer);
    EXPECT_EQ(function.cut_at_spaces_only, add_prefix_space);
    int64_t cuts = 0;
    for (uint64_t seed = 0; seed < 3000; ++seed) {
      Random random(random_key(seed));
      std::string text;
      for (int64_t n = 2 + random.below(12); n > 0; --n)
        text += parts[static_cast<size_t>(random.below(static_cast<int64_t>(parts.size())))];
      const auto whole = function.encode(text);
      for (size_t size = 1; size <= text.size(); ++size) {
        const auto cut =
            static_cast<size_t>(safe_cut(std::string_view(text).substr(0, size), function.cut_at_spaces_only));
        if (cut == 0) continue;
        auto ids = function.encode(std::string_view(text).substr(0, cut));
        const auto rest = function.encode(std::string_view(text).substr(cut));
        ids.insert(ids.end(), rest.begin(), rest.end());
        ASSERT_EQ(ids, whole) << text << " cut at " << cut;
        ++cuts;
      }
    }
    EXPECT_GT(cuts, 5000);
  }
}

TEST(TokenizeWith, TakesSpecialTokensInTheTextAsText) {
  const auto tokenizer = text::train_tokenizer(
      [first = true](std::string& chunk) mutable {
        chunk = "a b c";
        return std::exchange(first, false);
      },
      {.vocab_size = 300});
  const auto ids = tokenize_with(*tokenizer).encode("a</s>b");
  for (const int32_t id : ids) EXPECT_FALSE(tokenizer->is_special(id));
  EXPECT_EQ(tokenizer->decode(ids), "a</s>b");
}

TEST(CorpusOf, HoldsWhatItIsGiven) {
  const auto corpus = corpus_of({{1, 2, 3}, {}, {4}});
  EXPECT_EQ(corpus->documents(), 3);
  EXPECT_EQ(corpus->total_tokens(), 4);
  EXPECT_EQ(ids_of(*corpus, 0), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(corpus->tokens(1).empty());
  EXPECT_EQ(ids_of(*corpus, 2), (std::vector<int32_t>{4}));
  EXPECT_EQ(corpus->name(2), "document 2");
  EXPECT_NE(corpus->fingerprint(), corpus_of({{1, 2}, {3}, {4}})->fingerprint());
  EXPECT_EQ(corpus_of({})->total_tokens(), 0);
}

TEST(ScanCorpus, SeesEachDocumentAndKeepsNothing) {
  const TemporaryFolder folder;
  write(folder.path("a.txt"), "one two\n\nthree\n");
  std::vector<int64_t> ends;
  const auto counts = scan_corpus({.data = {folder.path("a.txt")}, .document = "line"}, kWords,
                                  [&](const Corpus::Record& record) { ends.push_back(record.tokens_end); });
  EXPECT_THAT(ends, testing::ElementsAre(2, 3));
  EXPECT_EQ(counts.documents, 2);
  EXPECT_EQ(counts.empty, 1);
}

}  // namespace
}  // namespace palimpsest::data
