// SPDX-License-Identifier: Apache-2.0
// Sessions: values, files that are whole or refused, rewinds.
#include "palimpsest/serve/session.h"

#include <filesystem>
#include <fstream>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/random.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"

namespace palimpsest::serve {
namespace {

using test::expect_identical;

Moment moment(uint64_t seed) {
  return {{test::randn({1, 4, 6}, seed).to(at::kFloat)},
          std::vector<int32_t>(5 + seed % 3, static_cast<int32_t>(seed)),
          std::vector<int32_t>(4, static_cast<int32_t>(seed + 1)),
          static_cast<int64_t>(2 * seed),
          static_cast<int64_t>(30 * seed)};
}

Session some_session(int64_t turns = 5, int64_t keep = 3) {
  Session session("abc", keep);
  for (int64_t i = 1; i <= turns; ++i) session.advance(moment(static_cast<uint64_t>(i)));
  return session;
}

void expect_same(const Moment& a, const Moment& b) {
  expect_identical(a.memory.slots, b.memory.slots, "memory");
  EXPECT_EQ(a.context, b.context);
  EXPECT_EQ(a.read, b.read);
  EXPECT_EQ(a.turns, b.turns);
  EXPECT_EQ(a.tokens, b.tokens);
}

std::string error_of(const std::string& path, const std::string& fingerprint = "abc") {
  try {
    Session::load(path, fingerprint);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

TEST(Session, GoesBackAsFarAsItKeeps) {
  Session session = some_session();
  EXPECT_EQ(session.past(), 3);
  expect_same(session.now(), moment(5));
  session.rewind(2);
  expect_same(session.now(), moment(3));
  EXPECT_EQ(session.past(), 1);
  EXPECT_THROW(session.rewind(2), Error);
  expect_same(session.now(), moment(3));
  session.reset();
  EXPECT_EQ(session.past(), 0);
  EXPECT_FALSE(session.now().memory.slots.defined());
}

TEST(Session, IsSavedWhole) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("s");
  some_session().save(path);
  Session loaded = Session::load(path, "abc");
  EXPECT_EQ(loaded.keep(), 3);
  for (int64_t i = 5; i >= 2; --i) {
    expect_same(loaded.now(), moment(static_cast<uint64_t>(i)));
    if (i > 2) loaded.rewind(1);
  }
  Session("abc").save(path);  // one that never began
  EXPECT_EQ(Session::load(path, "abc").now().turns, 0);
}

TEST(Session, TakesTheSameRoomHoweverLongItGets) {
  const test::TemporaryFolder folder;
  some_session(4).save(folder.path("short"));
  some_session(400).save(folder.path("long"));
  const auto a = std::filesystem::file_size(folder.path("short")), b = std::filesystem::file_size(folder.path("long"));
  EXPECT_LE(b, a + 64);
}

TEST(Session, AtBaseSizeTheMemoryIs192KiBAndAFileWithEightRewindsUnderTwoMegabytes) {
  models::BartConfig config;  // BART-base
  config.memory = {.kind = "membart", .slots = 64};
  const models::BartModel base(config, at::TensorOptions().device(at::kMeta));
  const auto shape = base.fresh_memory(1).slots.sizes().vec();
  ASSERT_EQ(shape, (std::vector<int64_t>{1, 64, 768}));
  const test::TemporaryFolder folder;
  Session session("abc");
  for (int64_t turn = 1; turn <= 20; ++turn) {
    const std::vector<int32_t> row(static_cast<size_t>(config.max_position_embeddings - 2), 7);  // as long as can be
    session.advance({{test::randn(shape, static_cast<uint64_t>(turn)).to(at::kFloat)}, row, row, 2 * turn, 0});
  }
  EXPECT_EQ(session.now().memory.bytes(), 192 * 1024);
  EXPECT_EQ(session.past(), 8);
  session.save(folder.path("s"));
  EXPECT_LT(std::filesystem::file_size(folder.path("s")), 2000000U);
  EXPECT_EQ(Session::load(folder.path("s"), "abc").past(), 8);
}

TEST(Session, RefusesWhatIsNotItsOwnAndSaysWhy) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("s");
  some_session().save(path);
  EXPECT_NE(error_of(path, "other").find("another model"), std::string::npos);
  EXPECT_NE(error_of(folder.path("none")).find("cannot open"), std::string::npos);
  write_file_atomically(folder.path("text"), "hello");
  EXPECT_NE(error_of(folder.path("text")), "");
  std::string bytes = read_file(path);
  bytes[bytes.size() - 40] = static_cast<char>(bytes[bytes.size() - 40] ^ 4);
  write_file_atomically(folder.path("flipped"), bytes);
  EXPECT_NE(error_of(folder.path("flipped")).find("checksum"), std::string::npos);
  write_file_atomically(folder.path("cut"), bytes.substr(0, bytes.size() - 9));
  EXPECT_NE(error_of(folder.path("cut")), "");
  EXPECT_NE(error_of(test::fixture("folders/bart_plain/model.safetensors")).find("is no session"), std::string::npos);
}

TEST(Session, TenThousandDamagedFilesAreRefusedOrEqual) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("s"), damaged = folder.path("damaged");
  some_session(9, 2).save(path);
  const std::string other = read_file(path);
  some_session().save(path);
  const std::string good = read_file(path);
  const size_t header = 8 + static_cast<size_t>(*reinterpret_cast<const uint64_t*>(good.data()));
  Random random(random_key(4));
  int64_t refused = 0;
  for (int64_t i = 0; i < 10000; ++i) {
    std::string bytes = good;
    const int64_t times = 1 + random.below(3);
    for (int64_t j = 0; j < times && !bytes.empty(); ++j) {
      const auto place = static_cast<size_t>(random.below(static_cast<int64_t>(bytes.size())));
      switch (random.below(8)) {
        case 0:
          bytes[place] = static_cast<char>(random.below(256));
          break;
        case 3:  // one bit
          bytes[place] = static_cast<char>(bytes[place] ^ (1 << random.below(8)));
          break;
        case 4:  // a header as long as anything
          for (size_t k = 0; k < std::min<size_t>(8, bytes.size()); ++k)
            bytes[k] = static_cast<char>(random.below(2) == 0 ? 255 : random.below(256));
          break;
        case 5: {  // a number of the header becomes huge
          const size_t digit = bytes.find_first_of("0123456789", 8 + place % header);
          if (digit != std::string::npos)
            bytes.insert(digit, std::to_string(INT64_MAX).substr(0, 1 + random.below(19)));
          break;
        }
        case 6:  // the head of another session before the rest of this one
          bytes = other.substr(0, place % header) + good.substr(place % header);
          break;
        case 1:
          bytes.resize(place);
          break;
        case 2:
          bytes.erase(place, static_cast<size_t>(random.below(20)));
          break;
        default:
          bytes.insert(place, bytes.substr(static_cast<size_t>(random.below(static_cast<int64_t>(bytes.size()))), 7));
      }
    }
    std::ofstream(damaged, std::ios::binary | std::ios::trunc) << bytes;
    try {
      expect_same(Session::load(damaged, "abc").now(), moment(5));
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 9000);
}

TEST(Session, IsOfAnyModelWhereNoneIsNamed) {
  const test::TemporaryFolder folder;
  some_session().save(folder.path("s"));
  EXPECT_EQ(Session::load(folder.path("s")).fingerprint(), "abc");
}

TEST(Fingerprint, TellsModelsApart) {
  models::BartConfig config;
  config.vocab_size = 20;
  config.d_model = 8;
  config.encoder_layers = config.decoder_layers = 1;
  config.encoder_attention_heads = config.decoder_attention_heads = 2;
  config.encoder_ffn_dim = config.decoder_ffn_dim = 12;
  config.max_position_embeddings = 16;
  models::BartModel a(config), b(config);
  a.initialize({.seed = 1});
  b.initialize({.seed = 1});
  EXPECT_EQ(model_fingerprint(a), model_fingerprint(b));
  b.initialize({.seed = 2});
  EXPECT_NE(model_fingerprint(a), model_fingerprint(b));
}

}  // namespace
}  // namespace palimpsest::serve
