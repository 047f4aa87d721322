// SPDX-License-Identifier: Apache-2.0
// The memory's text form and the value type; the invariants of the stream are in tests/models.
#include "palimpsest/memory/memory_stream.h"

#include <cmath>

#include "palimpsest/core/error.h"
#include "tests/support/tensors.h"

namespace palimpsest::memory {
namespace {

TEST(MemoryOptions, ReadsAndWritesItsTextForm) {
  EXPECT_EQ(MemoryOptions::parse("membart:64").text(), "membart:64");
  EXPECT_EQ(MemoryOptions::parse("membart:8,shared").text(), "membart:8,shared");
  EXPECT_TRUE(MemoryOptions::parse("membart:8,shared").shared);
  for (const char* text : {"memformer:4", "memformer:4,rezero", "memformer:4,rezero,gate,l2", "membart:4,shared,l2"})
    EXPECT_EQ(MemoryOptions::parse(text).text(), text);
  EXPECT_EQ(MemoryOptions::parse("none").text(), "none");
  EXPECT_FALSE(MemoryOptions::parse("none").enabled());
  EXPECT_FALSE(MemoryOptions::parse("membart:0").enabled());
}

TEST(MemoryOptions, RefusesWhatItDoesNotKnowWithAnExample) {
  for (const char* text : {"membart", "membart:", "membart:-1", "membart:6x", "membart:4,own", "gmatt:3",
                           "membart:4,rezero", "memformer:4,shared", "memformer", "membart:99999999999"}) {
    try {
      MemoryOptions::parse(text);
      FAIL() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      EXPECT_NE(std::string(e.what()).find("membart:64"), std::string::npos) << e.what();
    }
  }
}

TEST(Memory, AResetIsASelect) {  // FR-62
  Memory memory{test::randn({2, 3, 4}, 1)};
  memory.slots[0].fill_(std::nan(""));
  const Memory after = select_reset(memory, at::tensor({1, 0}, at::kLong).to(at::kBool));
  EXPECT_EQ(after.slots[0].abs().max().item<double>(), 0.0);
  test::expect_identical(after.slots[1], memory.slots[1], "the other lane");
  EXPECT_EQ(memory.bytes(), 2 * 3 * 4 * 8);
}

TEST(Memory, StandsBeforeTheTokens) {
  const at::Tensor rows = test::randn({2, 5, 4}, 1);
  const at::Tensor mask = at::zeros({2, 5}, at::kBool);
  const auto [joined, joined_mask] = with_memory({test::randn({2, 3, 4}, 2)}, rows, mask);
  EXPECT_EQ(joined.sizes(), at::IntArrayRef({2, 8, 4}));
  test::expect_identical(joined.narrow(1, 3, 5), rows, "tokens");
  EXPECT_TRUE(joined_mask.narrow(1, 0, 3).all().item<bool>());
  EXPECT_FALSE(joined_mask.narrow(1, 3, 5).any().item<bool>());
  EXPECT_FALSE(with_memory({test::randn({2, 3, 4}, 2)}, rows, {}).second.defined());
}

}  // namespace
}  // namespace palimpsest::memory
