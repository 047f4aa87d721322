// SPDX-License-Identifier: Apache-2.0
// Ten thousand damaged safetensors files: each is refused with a message or can be read to its last byte.
#include "palimpsest/checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "palimpsest/core/error.h"
#include "palimpsest/core/json.h"
#include "palimpsest/core/random.h"
#include "tests/support/paths.h"

namespace palimpsest::checkpoint {
namespace {

constexpr int64_t kFiles = 10000;

std::string with_length(const std::string& header, const std::string& data, uint64_t length) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

/// Files to start from: small, so that a random place is often one that matters.
std::vector<std::string> sound_files() {
  const test::TemporaryFolder folder;
  save_safetensors(folder.path("f"),
                   {{"layer.0.weight", at::arange(6, at::kFloat).view({2, 3})},
                    {"layer.0.bias", at::ones({3}, at::kBFloat16)},
                    {"mask", at::ones({5}, at::kBool)},
                    {"ids", at::arange(4)},
                    {"none", at::empty({0, 7})}},
                   {{"format", "pt"}, {"é🤗", "x"}});
  const std::string small =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F16","shape":[2],"data_offsets":[1,5]}})";
  const std::string packed =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"b":{"dtype":"F6_E2M3","shape":[4],)"
      R"("data_offsets":[1,4],"x":[{"y":null},1.5]}})";
  return {read_file(folder.path("f")), with_length(small, "12345", small.size()),
          with_length(packed, "1234", packed.size()), with_length("{}", "", 2)};
}

template <class T>
const T& pick(const std::vector<T>& list, Random& random) {
  return list[static_cast<size_t>(random.below(static_cast<int64_t>(list.size())))];
}

/// A damaged copy of one of the files.
class Mutator {
 public:
  explicit Mutator(uint64_t key) : random_(key) {}

  std::string damage(const std::string& sound) {
    uint64_t length = 0;
    std::memcpy(&length, sound.data(), 8);
    header_ = sound.substr(8, length);
    data_ = sound.substr(8 + length);
    for (int64_t edits = 1 + random_.below(3); edits > 0; --edits) edit();
    // Mostly the length fits the edited header, so that the damage is met and not the length.
    const std::string file = with_length(header_, data_, random_.below(8) == 0 ? odd_number() : header_.size());
    return random_.below(8) == 0 ? file.substr(0, place(file) + 1) : file;
  }

 private:
  size_t place(const std::string& text) {
    return static_cast<size_t>(random_.below(static_cast<int64_t>(text.size()) + 1));
  }

  uint64_t odd_number() {
    const std::vector<uint64_t> numbers = {
        0,         1,          2,          7,          8,         header_.size() - 1, header_.size() + 1,
        100000000, 1ULL << 31, 1ULL << 32, 1ULL << 62, INT64_MAX, 1ULL << 63,         UINT64_MAX};
    return pick(numbers, random_);
  }

  void edit() {
    switch (random_.below(8)) {
      case 0:  // a bit of the header
        flip(header_);
        break;
      case 1:  // a bit of the data
        flip(data_);
        break;
      case 2:  // bytes lost or won at the end of the data
        data_ = random_.below(2) == 0 ? data_.substr(0, place(data_)) : data_ + std::string(1 + place(data_), 'z');
        break;
      case 3: {  // a stretch of the header lost
        const size_t at = place(header_);
        header_.erase(at, 1 + static_cast<size_t>(random_.below(12)));
        break;
      }
      case 4: {  // a stretch of the header repeated
        const size_t at = place(header_);
        header_.insert(place(header_), header_.substr(at, 1 + static_cast<size_t>(random_.below(60))));
        break;
      }
      case 5:  // a piece of grammar in a random place
        header_.insert(place(header_), word());
        break;
      default:  // another number
        replace_number();
    }
  }

  void flip(std::string& text) {
    if (!text.empty()) text[place(text) % text.size()] ^= static_cast<char>(1 << random_.below(8));
  }

  std::string word() {
    const std::vector<std::string> words = {"{",
                                            "}",
                                            "[",
                                            "]",
                                            ",",
                                            ":",
                                            "\"",
                                            "null",
                                            "true",
                                            "-",
                                            "1e999",
                                            "0.5",
                                            "\\u0000",
                                            "\xFF",
                                            "\xEF\xBB\xBF",
                                            "\"dtype\":\"F64\",",
                                            "\"shape\":[],",
                                            "\"__metadata__\":{},",
                                            "\"F32\"",
                                            " ",
                                            "\n",
                                            std::string(1, '\0'),
                                            std::string(200, '['),
                                            R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"};
    return pick(words, random_);
  }

  void replace_number() {
    const size_t from = header_.find_first_of("0123456789", place(header_));
    if (from == std::string::npos) return;
    const size_t to = std::min(header_.find_first_not_of("0123456789", from), header_.size());
    const std::string number = random_.below(2) == 0 ? std::to_string(random_.below(10)) : std::to_string(odd_number());
    header_.replace(from, to - from, number);
  }

  Random random_;
  std::string header_, data_;
};

struct Outcome {
  bool accepted = false;
  uint64_t checksum = 0;  // of all bytes of all tensors
};

template <class Parse>
Outcome try_file(const Parse& parse) {
  Outcome outcome;
  try {
    const Safetensors file = parse();
    outcome.accepted = true;
    for (const TensorInfo& info : file.tensors()) {
      try {
        const at::Tensor tensor = file.tensor(info.name);
        EXPECT_LE(tensor.nbytes(), info.bytes());
        const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
        for (size_t i = 0; i < tensor.nbytes(); ++i) outcome.checksum = outcome.checksum * 31 + bytes[i];
      } catch (const Error& error) {  // a dtype that PyTorch lacks
        EXPECT_NE(error.place().find("tensor "), std::string::npos) << error.what();
      }
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_FALSE(error.problem().empty());
    EXPECT_LT(std::strlen(error.what()), 2000U);
    EXPECT_NO_THROW(Json(error.what()).dump()) << "the message is not valid UTF-8";
  }
  return outcome;
}

TEST(SafetensorsFuzz, RefusesOrReadsEveryDamagedFile) {
  const std::vector<std::string> sound = sound_files();
  // The map of a file in memory: what a program sees, without a disk. In the string below, whose end is exact,
  // the address sanitizer sees every byte read too far.
  const int memory = ::memfd_create("fuzz", MFD_CLOEXEC);
  ASSERT_GE(memory, 0);
  const std::string path = "/proc/self/fd/" + std::to_string(memory);
  int64_t accepted = 0;
  for (int64_t i = 0; i < kFiles && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("file " + std::to_string(i));
    const std::string bytes = Mutator(random_key(20, i)).damage(sound[static_cast<size_t>(i) % sound.size()]);
    ASSERT_EQ(::ftruncate(memory, 0), 0);
    ASSERT_EQ(::pwrite(memory, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    const Outcome mapped = try_file([&] { return Safetensors::open(path); });
    const Outcome in_memory = try_file([&] { return Safetensors::parse(bytes, "damaged.safetensors"); });
    ASSERT_EQ(mapped.accepted, in_memory.accepted);
    ASSERT_EQ(mapped.checksum, in_memory.checksum);
    accepted += in_memory.accepted ? 1 : 0;
  }
  ::close(memory);
  // Both ways were taken often: neither a mutator that breaks everything nor one that breaks nothing.
  EXPECT_GT(accepted, kFiles / 20);
  EXPECT_LT(accepted, kFiles * 19 / 20);
}

}  // namespace
}  // namespace palimpsest::checkpoint
