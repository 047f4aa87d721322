// SPDX-License-Identifier: Apache-2.0
// The safetensors reader and writer: the reference's verdicts, the text of each refusal, round trips, views, shards.
#include "palimpsest/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>

#include "palimpsest/core/error.h"
#include "palimpsest/core/json.h"
#include "tests/support/paths.h"

namespace palimpsest::checkpoint {
namespace {

using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The bytes of a file with this header and data.
std::string file_bytes(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

/// The message with which a file is refused, "" where it is accepted.
std::string refusal(const std::string& header, const std::string& data = "") {
  try {
    Safetensors::parse(file_bytes(header, data), "some.safetensors");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.place(), StartsWith("some.safetensors"));
    return error.what();
  }
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// An entry of the header for a tensor named "a", with one part replaced.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::string decode_base64(const std::string& text) {
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(alphabet.find(c));
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xFF);
  }
  return bytes;
}

TEST(Safetensors, AgreesWithEveryVerdictOfTheReference) {
  SKIP_WITHOUT_SHARED("field/golden_safetensors.json");
  const Json golden = read_json(test::shared("field/golden_safetensors.json"));
  const TemporaryFolder folder;
  ASSERT_GE(golden["cases"].size(), 40U);
  for (const auto& item : golden["cases"]) {
    SCOPED_TRACE(item["case"].get<std::string>());
    const std::string path = folder.path("golden.safetensors");
    write_file_atomically(path, decode_base64(item["file_base64"].get<std::string>()));
    std::optional<Safetensors> file;
    const std::string message = error_of([&] { file = Safetensors::open(path); });
    ASSERT_EQ(file.has_value(), item["reference_verdict"] == "accept") << message;
    if (!file) {
      EXPECT_THAT(message, HasSubstr(path));
      continue;
    }
    // The reference lists tensors of the same place in any order, so they are looked up by name.
    ASSERT_EQ(file->tensors().size(), item["reference_info"].size());
    for (const auto& expected : item["reference_info"]) {
      const std::string name = expected[0].get<std::string>();
      EXPECT_EQ(file->info(name).dtype, expected[1].get<std::string>());
      EXPECT_EQ(file->info(name).shape, expected[2].get<std::vector<int64_t>>());
      EXPECT_EQ(file->info(name).bytes(), expected[3].get<uint64_t>());
      EXPECT_EQ(file->tensor(name).sizes().vec(), file->info(name).shape);
    }
  }
}

TEST(Safetensors, SaysWhatIsWrongWithTheLengthOfTheHeader) {
  const auto message = [](const std::string& bytes) {
    return error_of([&] { Safetensors::parse(bytes, "some.safetensors"); });
  };
  const auto length = [](uint64_t value) { return std::string(reinterpret_cast<const char*>(&value), 8); };
  EXPECT_THAT(message(""), HasSubstr("0 bytes are too few for a safetensors file"));
  EXPECT_THAT(message("1234567"), HasSubstr("7 bytes are too few"));
  EXPECT_THAT(message(length(0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(message(length(3) + "{}"), HasSubstr("the header claims 3 bytes, the file has 2"));
  EXPECT_THAT(message(length(100000001) + "{}"), HasSubstr("claims 100000001 bytes, at most 100000000 are allowed"));
  EXPECT_THAT(message(length(UINT64_MAX) + "{}"), HasSubstr("at most 100000000"));
  EXPECT_THAT(message(length(UINT64_MAX - 7) + "{}"), HasSubstr("at most 100000000"));
  EXPECT_THAT(message("<!DOCTYPE html><html></html>"), HasSubstr("fix: it is not a safetensors file"));
}

TEST(Safetensors, SaysWhatIsWrongWithTheText) {
  EXPECT_THAT(refusal("{"), HasSubstr("the header is not valid JSON"));
  EXPECT_THAT(refusal("{}x"), HasSubstr("the header is not valid JSON"));
  EXPECT_THAT(refusal(std::string("{}\0\0", 4)), HasSubstr("a NUL byte at its byte 2"));
  EXPECT_THAT(refusal("\xEF\xBB\xBF{}"), HasSubstr("byte order mark"));
  EXPECT_THAT(refusal("[]"), HasSubstr("the header must be a JSON object, got a list"));
  EXPECT_THAT(refusal("7"), HasSubstr("the header must be a JSON object, got 7"));
  EXPECT_THAT(refusal("{\"a\xFF\":1}"), HasSubstr("not valid UTF-8 at its byte 3"));
  for (const char* bad : {"\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xC3"}) {
    EXPECT_THAT(refusal(std::string("{\"") + bad + "\":1}"), HasSubstr("not valid UTF-8 at its byte 2"));
  }
  const auto nested = [](size_t levels) {
    return R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":)" + std::string(levels, '[') +
           std::string(levels, ']') + "}}";
  };
  EXPECT_EQ(refusal(nested(125)), "");
  EXPECT_THAT(refusal(nested(126)), HasSubstr("nested deeper than 127 levels"));
  EXPECT_THAT(refusal(nested(1000000)), HasSubstr("nested deeper than 127 levels"));
}

TEST(Safetensors, SaysWhatIsWrongWithAnEntry) {
  const auto expect = [](const std::string& header, const std::string& data, const std::string& reason) {
    EXPECT_THAT(refusal(header, data), AllOf(HasSubstr(reason), HasSubstr("at:  some.safetensors, tensor \"a\"")))
        << header;
  };
  expect(R"({"a":null})", "", "the entry must be an object with dtype, shape and data_offsets, got null");
  expect(R"({"a":["U8",[0],[0,0]]})", "", "the entry must be an object with dtype, shape and data_offsets, got a list");
  expect(R"({"a":{"shape":[0],"data_offsets":[0,0]}})", "", "\"dtype\" is missing");
  expect(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", "", "\"shape\" is missing");
  expect(R"({"a":{"dtype":"U8","shape":[0]}})", "", "\"data_offsets\" is missing");
  expect(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "", "\"dtype\" is given twice");
  expect(entry("\"F128\"", "[0]", "[0,0]"), "", "unknown dtype \"F128\"");
  expect(entry("\"f32\"", "[0]", "[0,0]"), "", "did you mean \"F32\"?");
  expect(entry("7", "[0]", "[0,0]"), "", "\"dtype\" must be a string, got 7");
  expect(entry("{\"U8\":null}", "[0]", "[0,0]"), "", "\"dtype\" must be a string, got an object");
  expect(entry("\"U8\"", "0", "[0,0]"), "", "\"shape\" must be a list of whole numbers >= 0, got 0");
  expect(entry("\"U8\"", "[-1]", "[0,0]"), "", "\"shape\" must hold whole numbers >= 0, got -1");
  expect(entry("\"U8\"", "[-0]", "[0,0]"), "", "\"shape\" must hold whole numbers >= 0, got -0");
  expect(entry("\"U8\"", "[1.0]", "[0,1]"), "x", "\"shape\" must hold whole numbers >= 0, got 1.0");
  expect(entry("\"U8\"", "[18446744073709551616]", "[0,0]"), "", "got 18446744073709551616");
  expect(entry("\"U8\"", "[0,9223372036854775808]", "[0,0]"), "", "9223372036854775808, more than a tensor can have");
  expect(entry("\"U8\"", "[[0]]", "[0,0]"), "", "\"shape\" must hold whole numbers >= 0, got a list");
  expect(entry("\"U8\"", "[true]", "[0,0]"), "", "got true");
  expect(entry("\"U8\"", "[0]", "[0]"), "", "\"data_offsets\" must be two numbers, got 1");
  expect(entry("\"U8\"", "[0]", "[0,0,0]"), "", "\"data_offsets\" must be two numbers, got more");
  expect(entry("\"U8\"", "[0]", "[0,\"0\"]"), "", "\"data_offsets\" must hold whole numbers >= 0, got \"0\"");
  expect(entry("\"U8\"", "[1]", "[1,0]"), "x", "\"data_offsets\" [1, 0] end before they start");
  expect(entry("\"U8\"", "[1]", "[1,2]"), "xy", "leave a hole: the data before ends at 0");
  expect(entry("\"F32\"", "[2]", "[0,4]"), "1234",
         "shape [2] of F32 takes 8 bytes, but \"data_offsets\" [0, 4] give 4");
  expect(entry("\"F32\"", "[]", "[0,0]"), "", "shape [] of F32 takes 4 bytes");
  expect(entry("\"F32\"", "[4294967296,4294967296]", "[0,0]"), "", "overflows");
  expect(entry("\"F32\"", "[1152921504606846976]", "[0,0]"), "", "overflows");
  expect(entry("\"U8\"", "[4611686018427387904,4,0]", "[0,0]"), "", "overflows");
  expect(entry("\"F4\"", "[1]", "[0,1]"), "x", "shape [1] of F4 does not end at a whole byte");
  expect(entry("\"F6_E2M3\"", "[3]", "[0,3]"), "xyz", "does not end at a whole byte");
  expect(entry("\"U8\"", "[3]", "[0,3]"), "xy", "the data ends at byte 2, the tensor at 3");
  EXPECT_THAT(refusal(entry("\"U8\"", "[1]", "[0,1]"), "xy"), HasSubstr("1 bytes after the data of the last tensor"));
}

TEST(Safetensors, NamesBothTensorsOfAnOverlap) {
  const std::string message = refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
      "b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                                      "xyz");
  EXPECT_THAT(message, AllOf(HasSubstr("[1, 3] overlap tensor \"a\", which ends at 2"), HasSubstr("tensor \"b\"")));
}

TEST(Safetensors, TakesARepeatedNameOnlyWhereTheEntriesAreEqual) {
  const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  const std::string same = R"("a":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"})";
  EXPECT_EQ(refusal("{" + a + "," + same + "}", "x"), "");
  EXPECT_EQ(Safetensors::parse(file_bytes("{" + a + "," + same + "}", "x"), "f").tensors().size(), 1U);
  for (const char* other : {R"("a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]})",
                            R"("a":{"dtype":"U8","shape":[1,1],"data_offsets":[0,1]})",
                            R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})",
                            R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})"}) {
    EXPECT_THAT(refusal("{" + a + "," + other + "}", "xy"),
                AllOf(HasSubstr("duplicate tensor name"), HasSubstr("tensor \"a\"")));
  }
}

TEST(Safetensors, TakesMetadataOfStringsOnly) {
  EXPECT_EQ(refusal(R"({"__metadata__":null})"), "");
  EXPECT_EQ(refusal(R"({"__metadata__":{}})"), "");
  EXPECT_THAT(refusal(R"({"__metadata__":[]})"),
              HasSubstr("\"__metadata__\" must be an object of strings, got a list"));
  EXPECT_THAT(refusal(R"({"__metadata__":"x"})"),
              HasSubstr("\"__metadata__\" must be an object of strings, got \"x\""));
  EXPECT_THAT(refusal(R"({"__metadata__":{"k":1}})"),
              HasSubstr("\"__metadata__\" holds 1 for \"k\", a string was expected"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"k":{}}})"), HasSubstr("holds an object for \"k\""));
  EXPECT_THAT(refusal(R"({"__metadata__":{"k":null}})"), HasSubstr("holds null for \"k\""));
  EXPECT_THAT(refusal(R"({"__metadata__":{},"__metadata__":{}})"), HasSubstr("\"__metadata__\" is given twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":null,"__metadata__":null})"), HasSubstr("\"__metadata__\" is given twice"));
}

TEST(Safetensors, IgnoresFieldsItDoesNotKnow) {
  const std::string header =
      R"( {"a":{"x":[{"dtype":1,"shape":[-1]},null],"dtype":"U8","y":{"z":[]},"shape":[1],"data_offsets":[0,1],
      "v":-1.5,"w":"t"}} )";
  const auto file = Safetensors::parse(file_bytes(header, "x"), "f");
  EXPECT_EQ(file.tensor("a").item<uint8_t>(), 'x');
}

TEST(Safetensors, ShowsHostileNamesWithoutControlCharactersAndCutShort) {
  const std::string name = "\\u001b[31m\\n" + std::string(100000, 'x');
  const std::string message = refusal("{\"" + name + "\":1}");
  EXPECT_THAT(message, HasSubstr("tensor \"\\u001b[31m\\nxxx"));
  EXPECT_LT(message.size(), 500U);
}

TEST(Safetensors, NamesTheNearestTensorWhereOneIsNotThere) {
  const auto file =
      Safetensors::parse(file_bytes(R"({"wte.weight":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"), "f");
  EXPECT_EQ(error_of([&] { file.tensor("wte.wieght"); }),
            "error: there is no tensor \"wte.wieght\"\n  at:  f\n  fix: did you mean \"wte.weight\"?");
  EXPECT_FALSE(file.contains("wte.wieght"));
  EXPECT_TRUE(file.contains("wte.weight"));
}

TEST(Safetensors, ListsTensorsInTheOrderOfTheirData) {
  const auto file = Safetensors::parse(file_bytes(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},
      "z":{"dtype":"F32","shape":[2,0],"data_offsets":[1,1]},"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
                                                  "xy"),
                                       "f");
  std::vector<std::string> names;
  for (const auto& info : file.tensors()) names.push_back(info.name);
  EXPECT_THAT(names, ElementsAre("a", "z", "b"));
  EXPECT_EQ(file.tensor("z").sizes().vec(), (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(file.tensor("a").dim(), 0);
  EXPECT_EQ(file.tensor("b").item<uint8_t>(), 'y');
}

TEST(Safetensors, CopiesWhatIsNotAligned) {
  for (size_t shift = 0; shift < 8; ++shift) {
    const std::string header =
        R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F64","shape":[2],"data_offsets":[1,17]}})" +
        std::string(shift, ' ');
    const double values[] = {0.5, -3.0};
    const TemporaryFolder folder;
    write_file_atomically(folder.path("f"),
                          file_bytes(header, "x" + std::string(reinterpret_cast<const char*>(values), 16)));
    const auto tensor = Safetensors::open(folder.path("f")).tensor("f");
    EXPECT_EQ(tensor.data_ptr<double>()[0], 0.5);
    EXPECT_EQ(tensor.data_ptr<double>()[1], -3.0);
  }
}

TEST(Safetensors, ReadsAnyByteOfABoolAsTrueOrFalse) {
  const auto file =
      Safetensors::parse(file_bytes(entry("\"BOOL\"", "[4]", "[0,4]"), std::string("\0\1\2\xFF", 4)), "f");
  const auto tensor = file.tensor("a");
  EXPECT_EQ(tensor.scalar_type(), at::kBool);
  EXPECT_EQ(tensor.sum().item<int64_t>(), 3);
}

TEST(Safetensors, ReadsPairsOfFourBitFloatsAndRefusesSixBitOnes) {
  const auto pairs = Safetensors::parse(file_bytes(entry("\"F4\"", "[2,4]", "[0,4]"), "abcd"), "f").tensor("a");
  EXPECT_EQ(pairs.scalar_type(), at::kFloat4_e2m1fn_x2);
  EXPECT_EQ(pairs.sizes().vec(), (std::vector<int64_t>{2, 2}));
  const auto odd = Safetensors::parse(file_bytes(entry("\"F4\"", "[2,1]", "[0,1]"), "a"), "f");
  EXPECT_THAT(error_of([&] { odd.tensor("a"); }), HasSubstr("shape [2, 1] of F4 cannot be loaded"));
  const auto six = Safetensors::parse(file_bytes(entry("\"F6_E3M2\"", "[4]", "[0,3]"), "abc"), "f");
  EXPECT_THAT(error_of([&] { six.tensor("a"); }),
              AllOf(HasSubstr("dtype F6_E3M2 cannot be loaded"), HasSubstr("at:  f, tensor \"a\"")));
}

/// Every type that both the format and PyTorch have.
const std::vector<at::ScalarType> kTypes = {at::kBool,
                                            at::kByte,
                                            at::kChar,
                                            at::kShort,
                                            at::kInt,
                                            at::kLong,
                                            at::kUInt16,
                                            at::kUInt32,
                                            at::kUInt64,
                                            at::kHalf,
                                            at::kBFloat16,
                                            at::kFloat,
                                            at::kDouble,
                                            at::kComplexFloat,
                                            at::kFloat8_e5m2,
                                            at::kFloat8_e4m3fn,
                                            at::kFloat8_e8m0fnu,
                                            at::kFloat8_e5m2fnuz,
                                            at::kFloat8_e4m3fnuz,
                                            at::kFloat4_e2m1fn_x2};

/// Tensors of equal type, shape and bytes (NaN included).
void expect_same_bytes(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.scalar_type(), b.scalar_type());
  EXPECT_EQ(a.sizes(), b.sizes());
  EXPECT_EQ(std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()), 0);
}

TEST(Safetensors, KeepsEveryTypeBitForBit) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const at::ScalarType type : kTypes) {
    const int64_t width = static_cast<int64_t>(c10::elementSize(type));
    const at::Tensor bytes = at::randint(0, type == at::kBool ? 2 : 256, {3, 5 * width}, at::kByte);
    tensors.emplace_back(c10::toString(type), at::from_blob(bytes.data_ptr(), {3, 5}, [bytes](void*) {}, type));
  }
  const TemporaryFolder folder;
  save_safetensors(folder.path("f"), tensors);
  const auto file = Safetensors::open(folder.path("f"));
  ASSERT_EQ(file.tensors().size(), kTypes.size());
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    EXPECT_EQ(file.info(name).dtype, safetensors_dtype(tensor.scalar_type()));
    expect_same_bytes(file.tensor(name), tensor);
  }
}

TEST(Safetensors, SavesScalarsEmptyTensorsViewsAndConjugates) {
  const at::Tensor base = at::arange(24, at::kFloat).view({4, 6});
  const std::vector<std::pair<std::string, at::Tensor>> tensors = {{"scalar", at::scalar_tensor(2.5)},
                                                                   {"none", at::empty({0})},
                                                                   {"flat", at::empty({3, 0, 2})},
                                                                   {"", base.select(1, 3)},
                                                                   {"turned", base.t()},
                                                                   {"é🤗\n\"", base.slice(1, 1, 6, 2)},
                                                                   {"leaf", at::ones({2}).requires_grad_()},
                                                                   {"conjugate", at::complex(base, base).conj()}};
  const TemporaryFolder folder;
  save_safetensors(folder.path("f"), tensors, {{"format", "pt"}, {"", "ü"}});
  const auto file = Safetensors::open(folder.path("f"));
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(at::equal(file.tensor(name), tensor.detach()));
    EXPECT_FALSE(file.tensor(name).requires_grad());
  }
  EXPECT_THAT(file.metadata(), ElementsAre(std::pair("", "ü"), std::pair("format", "pt")));
}

TEST(Safetensors, SavesFilesWithoutTensors) {
  const TemporaryFolder folder;
  save_safetensors(folder.path("empty"), {});
  EXPECT_TRUE(Safetensors::open(folder.path("empty")).tensors().empty());
  save_safetensors(folder.path("metadata"), {}, {{"crc", "12"}});
  const auto file = Safetensors::open(folder.path("metadata"));
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_THAT(file.metadata(), ElementsAre(std::pair("crc", "12")));
}

TEST(Safetensors, ViewsTheMapAndOutlivesTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path("f");
  // A small element first: the writer moves it behind the larger ones, so that all can be viewed.
  save_safetensors(
      path,
      {{"byte", at::ones({1}, at::kByte)}, {"a", at::arange(1000, at::kFloat)}, {"d", at::ones({3}, at::kDouble)}});
  const auto map = MappedFile::open(path);
  at::Tensor a, twin;
  {
    const auto file = Safetensors::parse(map);
    for (const auto& info : file.tensors()) {
      const auto* data = static_cast<const std::byte*>(file.tensor(info.name).const_data_ptr());
      EXPECT_GE(data, map->data()) << info.name;
      EXPECT_LT(data, map->data() + map->size()) << info.name;
    }
    EXPECT_EQ(
        (reinterpret_cast<uintptr_t>(file.tensor("d").data_ptr()) - reinterpret_cast<uintptr_t>(map->data())) % 64, 0U);
    a = file.tensor("a");
    twin = file.tensor("a");
    EXPECT_EQ(a.data_ptr(), twin.data_ptr());
  }
  at::Tensor alone = Safetensors::open(path).tensor("a");
  std::filesystem::remove(path);
  EXPECT_TRUE(at::equal(alone, at::arange(1000, at::kFloat)));
  EXPECT_TRUE(at::equal(a, alone));
}

TEST(Safetensors, NeverWritesToTheFileThroughAView) {
  const TemporaryFolder folder;
  save_safetensors(folder.path("f"), {{"a", at::zeros({10})}});
  Safetensors::open(folder.path("f")).tensor("a").fill_(1);
  EXPECT_EQ(Safetensors::open(folder.path("f")).tensor("a").sum().item<float>(), 0);
}

TEST(Safetensors, RefusesToSaveWhatTheFormatCannotHold) {
  const TemporaryFolder folder;
  const std::string path = folder.path("f");
  save_safetensors(path, {{"old", at::ones({1})}});
  const auto message = [&](const std::string& name, const at::Tensor& tensor) {
    return error_of([&] { save_safetensors(path, {{"fine", at::ones({1})}, {name, tensor}}); });
  };
  EXPECT_THAT(message("fine", at::ones({1})), AllOf(HasSubstr("duplicate tensor name"), HasSubstr("tensor \"fine\"")));
  EXPECT_THAT(message("__metadata__", at::ones({1})), HasSubstr("reserved"));
  EXPECT_THAT(message("\xFF", at::ones({1})), HasSubstr("not valid UTF-8"));
  EXPECT_THAT(message("a", at::Tensor()), AllOf(HasSubstr("not defined"), HasSubstr("tensor \"a\"")));
  EXPECT_THAT(message("a", at::ones({1}, at::kComplexDouble)), HasSubstr("no dtype for ComplexDouble"));
  EXPECT_THAT(message("a", at::empty({1}, at::kMeta)), HasSubstr("meta device"));
  EXPECT_THAT(message("a", at::ones({2, 2}).to_sparse()), HasSubstr("only dense tensors"));
  EXPECT_THAT(error_of([&] { save_safetensors(path, {}, {{"k", "\xFF"}}); }),
              HasSubstr("metadata \"k\" is not valid UTF-8"));
  EXPECT_TRUE(Safetensors::open(path).contains("old"));
}

TEST(Safetensors, LeavesTheOldFileWhereSavingFails) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { save_safetensors(folder.path("absent/f"), {}); }),
              AllOf(HasSubstr("cannot create"), HasSubstr(folder.path("absent/f"))));
  save_safetensors(folder.path("f"), {{"old", at::ones({1})}});
  save_safetensors(folder.path("f"), {{"new", at::ones({1})}});
  EXPECT_TRUE(Safetensors::open(folder.path("f")).contains("new"));
  size_t files = 0;
  for (const auto& item : std::filesystem::directory_iterator(folder.path())) files += item.exists() ? 1 : 0;
  EXPECT_EQ(files, 1U) << "a temporary was left";
}

TEST(Safetensors, SaysThatAFileIsMissingOrAFolder) {
  EXPECT_THAT(error_of([] { Safetensors::open("/nowhere/model.safetensors"); }),
              AllOf(HasSubstr("No such file"), HasSubstr("/nowhere/model.safetensors")));
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { Safetensors::open(folder.path()); }), HasSubstr("is a folder"));
}

TEST(TensorSet, OpensAFileOrAFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { TensorSet::open(folder.path()); }),
              AllOf(HasSubstr("neither model.safetensors nor model.safetensors.index.json"), HasSubstr(folder.path())));
  write_file_atomically(folder.path("pytorch_model.bin"), "x");
  EXPECT_THAT(error_of([&] { TensorSet::open(folder.path()); }), HasSubstr("pickle"));
  save_safetensors(folder.path("model.safetensors"), {{"a", at::ones({2})}, {"b", at::ones({3})}}, {{"k", "v"}});
  for (const auto& path : {folder.path(), folder.path("model.safetensors")}) {
    const auto set = TensorSet::open(path);
    EXPECT_THAT(set.names(), ElementsAre("a", "b"));
    EXPECT_EQ(set.bytes(), 20U);
    EXPECT_EQ(set.files().size(), 1U);
    EXPECT_EQ(set.metadata().at("k"), "v");
    EXPECT_EQ(set.tensor("b").numel(), 3);
  }
}

/// A folder with two shards and an index.
class Shards : public ::testing::Test {
 protected:
  void SetUp() override {
    save_safetensors(folder_.path("model-1.safetensors"), {{"a", at::ones({2})}, {"b", at::ones({3})}});
    save_safetensors(folder_.path("model-2.safetensors"), {{"c", at::full({4}, 7.0)}});
    write_index(R"("a":"model-1.safetensors","b":"model-1.safetensors","c":"model-2.safetensors")");
  }
  void write_index(const std::string& entries) {
    write_file_atomically(folder_.path("model.safetensors.index.json"),
                          R"({"metadata":{"total_size":36},"weight_map":{)" + entries + "}}");
  }
  std::string message() {
    return error_of([&] { TensorSet::open(folder_.path()); });
  }
  TemporaryFolder folder_;
};

TEST_F(Shards, AreOneSet) {
  for (const auto& path : {folder_.path(), folder_.path("model.safetensors.index.json")}) {
    const auto set = TensorSet::open(path);
    EXPECT_THAT(set.names(), ElementsAre("a", "b", "c"));
    EXPECT_EQ(set.bytes(), 36U);
    EXPECT_EQ(set.files().size(), 2U);
    EXPECT_EQ(set.info("c").shape, (std::vector<int64_t>{4}));
    EXPECT_EQ(set.tensor("c").sum().item<int64_t>(), 28);
    EXPECT_THAT(error_of([&] { set.tensor("d"); }), HasSubstr("there is no tensor \"d\""));
  }
}

TEST_F(Shards, AreAllNamedWhereTheyAreMissing) {
  write_index(R"("a":"model-1.safetensors","x":"model-3.safetensors","y":"model-4.safetensors")");
  EXPECT_THAT(message(), AllOf(HasSubstr("2 of 3 shards are missing: \"model-3.safetensors\", \"model-4.safetensors\""),
                               HasSubstr("model.safetensors.index.json")));
}

TEST_F(Shards, MustNotHoldOneTensorTwice) {
  save_safetensors(folder_.path("model-2.safetensors"), {{"c", at::ones({4})}, {"b", at::ones({3})}});
  EXPECT_THAT(message(),
              HasSubstr("1 tensors stand in two shards: \"b in model-1.safetensors and model-2.safetensors\""));
}

TEST_F(Shards, MustHoldWhatTheIndexSays) {
  write_index(R"("a":"model-1.safetensors","b":"model-2.safetensors","d":"model-2.safetensors")");
  EXPECT_THAT(message(),
              HasSubstr("2 entries of the index are not in the shard it names: \"b in model-2.safetensors\", "
                        "\"d in model-2.safetensors\""));
}

TEST_F(Shards, AreRefusedWhereOneIsBroken) {
  write_file_atomically(folder_.path("model-2.safetensors"), "short");
  EXPECT_THAT(message(), AllOf(HasSubstr("5 bytes are too few"), HasSubstr("model-2.safetensors")));
}

TEST_F(Shards, MustLieBesideTheIndex) {
  for (const char* name : {"../model-1.safetensors", "/etc/passwd", "..", "", "a\\\\b"}) {
    write_index(std::string(R"("a":")") + name + "\"");
    EXPECT_THAT(message(), HasSubstr("the name of a file beside the index was expected")) << name;
  }
  write_index(R"("a":7)");
  EXPECT_THAT(message(), HasSubstr("the name of a file beside the index was expected"));
}

TEST_F(Shards, NeedAWeightMap) {
  write_file_atomically(folder_.path("model.safetensors.index.json"), "{}");
  EXPECT_THAT(message(), HasSubstr("the index has no object \"weight_map\""));
}

}  // namespace
}  // namespace palimpsest::checkpoint
