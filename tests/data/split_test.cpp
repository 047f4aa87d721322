// SPDX-License-Identifier: Apache-2.0
// Held-out documents, pieces for lanes, windows (M19).
#include "palimpsest/data/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "palimpsest/core/error.h"
#include "palimpsest/data/segments.h"
#include "palimpsest/data/synthetic.h"

namespace palimpsest::data {
namespace {

using testing::HasSubstr;

std::vector<std::vector<int32_t>> different_documents(int64_t count) {
  std::vector<std::vector<int32_t>> documents;
  for (int32_t d = 0; d < count; ++d) documents.emplace_back(static_cast<size_t>(1 + d % 7), d);
  return documents;
}

/// Sorted by place; touching spans of a document joined.
std::vector<Span> joined(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::pair(a.document, a.begin) < std::pair(b.document, b.begin);
  });
  std::vector<Span> result;
  for (const Span& span : spans) {
    if (!result.empty() && result.back().document == span.document && result.back().end == span.begin) {
      result.back().end = span.end;
    } else {
      result.push_back(span);
    }
  }
  return result;
}

void expect_disjoint_and_complete(const Corpus& corpus, const Split& split) {
  std::vector<Span> all = split.train;
  all.insert(all.end(), split.held_out.begin(), split.held_out.end());
  EXPECT_EQ(total_size(all), corpus.total_tokens());
  EXPECT_EQ(joined(all), whole_documents(corpus));
}

TEST(SplitCorpus, HoldsOutWholeDocumentsByHash) {
  const auto corpus = corpus_of(different_documents(2000));
  const Split split = split_corpus(*corpus, {});
  expect_disjoint_and_complete(*corpus, split);
  EXPECT_NEAR(static_cast<double>(split.held_out.size()), 100, 30);
  EXPECT_THAT(split.description, HasSubstr("of 2,000 documents"));
  EXPECT_EQ(split_corpus(*corpus, {}).held_out, split.held_out);
  EXPECT_NE(split_corpus(*corpus, {.split_seed = 1}).held_out, split.held_out);
}

TEST(SplitCorpus, HoldsOutTheSameTextsWhereverTheyLie) {
  auto documents = different_documents(200);
  const auto corpus = corpus_of(documents);
  std::reverse(documents.begin(), documents.end());
  const auto reversed = corpus_of(documents);
  std::vector<int64_t> a, b;
  for (const Span& span : split_corpus(*corpus, {}).held_out) a.push_back(span.document);
  for (const Span& span : split_corpus(*reversed, {}).held_out) b.push_back(199 - span.document);
  std::sort(b.begin(), b.end());
  EXPECT_EQ(a, b);
}

TEST(SplitCorpus, NeverHasOneTextOnBothSides) {
  auto documents = different_documents(100);
  const auto copy = documents;
  documents.insert(documents.end(), copy.begin(), copy.end());
  const auto corpus = corpus_of(documents);
  const Split split = split_corpus(*corpus, {.held_out_share = 0.2});
  expect_disjoint_and_complete(*corpus, split);
  for (const Span& held : split.held_out) {
    for (const Span& trained : split.train) EXPECT_NE(corpus->hash(held.document), corpus->hash(trained.document));
  }
}

TEST(SplitCorpus, HasAtLeastOneDocumentOnEachSide) {
  for (const int64_t count : {2, 3, 10}) {
    const auto corpus = corpus_of(different_documents(count));
    for (const double share : {1e-9, 0.05, 0.5, 0.999999999}) {
      const Split split = split_corpus(*corpus, {.held_out_share = share});
      EXPECT_GE(split.held_out.size(), 1u);
      EXPECT_GE(split.train.size(), 1u);
      expect_disjoint_and_complete(*corpus, split);
    }
  }
  const auto equal = corpus_of({{1, 2}, {1, 2}, {1, 2}});
  const Split split = split_corpus(*equal, {});
  EXPECT_EQ(split.held_out.size(), 1u);
  EXPECT_THAT(split.description, HasSubstr("all documents are equal"));
}

TEST(SplitCorpus, HoldsOutTheEndOfASingleDocument) {
  const auto corpus = uniform_corpus({.documents = 1, .length = 1000});
  const Split split = split_corpus(*corpus, {});
  EXPECT_EQ(split.train, (std::vector<Span>{{0, 0, 900}}));
  EXPECT_EQ(split.held_out, (std::vector<Span>{{0, 900, 1000}}));
  EXPECT_THAT(split.description, HasSubstr("the last 100 of 1,000 tokens"));
  const Split two = split_corpus(*corpus_of({{1, 2}}), {});
  EXPECT_EQ(two.held_out, (std::vector<Span>{{0, 1, 2}}));
  const Split one = split_corpus(*corpus_of({{1}}), {});
  EXPECT_TRUE(one.held_out.empty());
  EXPECT_EQ(total_size(one.train), 1);
}

TEST(SplitCorpus, HoldsOutNothingWhereAskedAndRefusesBadShares) {
  const auto corpus = corpus_of(different_documents(10));
  EXPECT_TRUE(split_corpus(*corpus, {.held_out_share = 0}).held_out.empty());
  EXPECT_TRUE(split_corpus(*corpus_of({{1, 2, 3}}), {.held_out_share = 0}).held_out.empty());
  EXPECT_THROW(split_corpus(*corpus, {.held_out_share = 1}), Error);
  EXPECT_THROW(split_corpus(*corpus, {.held_out_share = -0.1}), Error);
  EXPECT_THROW(split_corpus(*corpus, {.held_out_tail = std::nan("")}), Error);
}

TEST(SplitCorpus, SaysWhichDocumentsHaveNoTokens) {
  const Split split = split_corpus(*corpus_of({{1}, {}, {2}, {}}), {});
  EXPECT_THAT(split.description, HasSubstr("2 documents without tokens left out"));
}

TEST(CutForLanes, CutsIntoEqualContiguousPieces) {
  std::string said;
  const std::vector<Span> one = {{0, 0, 1000}};
  const auto cut = cut_for_lanes(one, 7, &said);
  EXPECT_EQ(cut.size(), 7u);
  EXPECT_EQ(joined(cut), one);
  for (const Span& span : cut) EXPECT_TRUE(span.size() == 142 || span.size() == 143);
  EXPECT_EQ(said, "1 document for 7 lanes: cut into 7 contiguous pieces of about 142 tokens");
}

TEST(CutForLanes, CutsTheLongestDocumentsMost) {
  std::string said;
  const std::vector<Span> spans = {{0, 0, 100}, {1, 50, 950}, {2, 0, 10}};
  const auto cut = cut_for_lanes(spans, 10, &said);
  EXPECT_EQ(cut.size(), 10u);
  EXPECT_EQ(joined(cut), spans);
  EXPECT_EQ(std::count_if(cut.begin(), cut.end(), [](const Span& s) { return s.document == 2; }), 1);
  EXPECT_FALSE(said.empty());
}

TEST(CutForLanes, LeavesEnoughDocumentsAlone) {
  std::string said = "x";
  const std::vector<Span> spans = {{0, 0, 5}, {1, 0, 5}};
  EXPECT_EQ(cut_for_lanes(spans, 2, &said), spans);
  EXPECT_EQ(said, "");
  EXPECT_EQ(cut_for_lanes(spans, 1, nullptr), spans);
  EXPECT_EQ(cut_for_lanes({{0, 0, 3}}, 8, nullptr).size(), 3u) << "one piece per token at most";
  EXPECT_TRUE(cut_for_lanes({}, 4, nullptr).empty());
  EXPECT_THROW(cut_for_lanes(spans, 0, nullptr), Error);
}

// FIELD_REPORTS FR-88: tokens in = tokens used + tokens reported dropped.
TEST(DropShort, SaysWhatItDrops) {
  std::string said;
  const std::vector<Span> spans = {{0, 0, 5}, {1, 0, 500}, {2, 0, 50}};
  EXPECT_EQ(drop_short(spans, 50, &said), (std::vector<Span>{{1, 0, 500}, {2, 0, 50}}));
  EXPECT_EQ(said, "1 document shorter than 50 tokens dropped, 5 of 555 tokens");
  EXPECT_EQ(drop_short(spans, 1, &said), spans);
  EXPECT_EQ(said, "");
}

// M19.
TEST(Segments, CoverTheDocumentWithTheGivenOverlap) {
  for (const int64_t segment : {1, 2, 7, 512}) {
    for (const int64_t overlap : {int64_t{0}, segment / 4, segment - 1}) {
      if (overlap >= segment) continue;
      for (const int64_t size : {0, 1, 2, 6, 7, 8, 13, 14, 511, 512, 513, 896, 897, 2000}) {
        const Span span{3, 10, 10 + size};
        const auto windows = segments_of(span, {.segment = segment, .overlap = overlap});
        ASSERT_EQ(windows.empty(), size == 0);
        if (size == 0) continue;
        EXPECT_EQ(windows.front().begin, span.begin);
        EXPECT_EQ(windows.back().end, span.end);
        for (size_t i = 0; i < windows.size(); ++i) {
          EXPECT_EQ(windows[i].document, 3);
          if (i + 1 < windows.size()) {
            EXPECT_EQ(windows[i].size(), segment);
            EXPECT_EQ(windows[i + 1].begin, windows[i].begin + segment - overlap) << "stride";
            EXPECT_EQ(windows[i].end - windows[i + 1].begin, overlap);
            EXPECT_GT(windows[i + 1].end, windows[i].end) << "each brings something new";
          }
        }
      }
    }
  }
}

TEST(Segments, OfTheDenoisingTaskHaveStride384) {
  const auto windows = segments_of({0, 0, 1300}, {.segment = 512, .overlap = 128});
  EXPECT_EQ(windows, (std::vector<Span>{{0, 0, 512}, {0, 384, 896}, {0, 768, 1280}, {0, 1152, 1300}}));
}

// FIELD_REPORTS FR-24, FR-88.
TEST(Segments, RefuseAnOverlapAsLongAsTheSegment) {
  EXPECT_THROW(check_segments({.segment = 6, .overlap = 6}), Error);
  EXPECT_THROW(check_segments({.segment = 0}), Error);
  EXPECT_THROW(check_segments({.segment = 6, .overlap = -1}), Error);
  EXPECT_EQ(segments_of({0, 0, 100}, {.segment = 128}).size(), 1u) << "a short document is one short segment";
}

}  // namespace
}  // namespace palimpsest::data
