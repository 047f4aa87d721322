// SPDX-License-Identifier: Apache-2.0
// Reading JSON of foreign files: what is refused, and how the message names it.
#include "palimpsest/core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
}
std::string refusal(const std::string& text) {
  return error_of([&] { parse_json(text, "some.json"); });
}

TEST(Json, KeepsTheOrderOfKeys) {
  EXPECT_EQ(parse_json(R"({"z":1,"a":{"y":2,"b":[3]}})", "x").dump(), R"({"z":1,"a":{"y":2,"b":[3]}})");
}

TEST(Json, RefusesDuplicateKeys) {
  EXPECT_EQ(refusal(R"({"a":1,"b":{"a":2},"a":3})"),
            "error: duplicate key \"a\"\n  at:  some.json\n  fix: keep one of the two");
  EXPECT_THAT(refusal(R"([{"b":{"c":1,"c":1}}])"), HasSubstr("duplicate key \"c\""));
  EXPECT_EQ(refusal(R"([{"a":1},{"a":1},{"b":{"a":1}}])"), "") << "equal keys of different objects";
}

TEST(Json, RefusesDeepNesting) {
  const auto nested = [](size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_EQ(refusal(nested(128)), "");
  EXPECT_THAT(refusal(nested(130)), HasSubstr("nested deeper than 128 levels"));
  EXPECT_THAT(refusal(nested(1000000)), HasSubstr("nested deeper than 128 levels"));
  EXPECT_THAT(refusal(std::string(1000000, '[')), HasSubstr("nested deeper than 128 levels"));
}

TEST(Json, SaysWhereParsingStopped) {
  EXPECT_THAT(refusal("{\n\"a\": }"),
              AllOf(HasSubstr("not valid JSON: parse error at line 2, column 6"), HasSubstr("at:  some.json")));
  EXPECT_THAT(refusal(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{} x"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("[1e999]"), HasSubstr("not valid JSON: number overflow"));
}

TEST(Json, SeesWhatStandsBehindANulByte) {
  EXPECT_THAT(refusal(std::string("{}\0{", 4)), HasSubstr("a NUL byte at byte 3"));
}

TEST(Json, WritesMessagesThatAreValidText) {
  for (const char* text : {"{\"\xFF\":1}", "[\"\xE2\x82\"]", "\xF0\x9F\xA4\x97", "[\"\x01\"]"}) {
    const std::string message = refusal(text);
    EXPECT_THAT(message, HasSubstr("not valid JSON"));
    EXPECT_FALSE(invalid_utf8(message)) << message;
  }
  EXPECT_LT(refusal("[\"" + std::string(100000, 'x')).size(), 1000U);
}

TEST(Json, LooksUpTypedValues) {
  const Json json = parse_json(R"({"n":-3,"s":"x","r":1.5,"big":18446744073709551615})", "some.json");
  EXPECT_EQ(json_int(json, "n", "some.json"), -3);
  EXPECT_EQ(json_string(json, "s", "some.json"), "x");
  EXPECT_EQ(error_of([&] { json_int(json, "m", "some.json"); }), "error: key \"m\" is missing\n  at:  some.json");
  EXPECT_THAT(error_of([&] { json_int(json, "r", "some.json"); }), HasSubstr("\"r\" must be an integer"));
  EXPECT_THAT(error_of([&] { json_int(json, "big", "some.json"); }), HasSubstr("\"big\" must be an integer"));
  EXPECT_THAT(error_of([&] { json_string(json, "n", "some.json"); }), HasSubstr("\"n\" must be a string"));
  EXPECT_THAT(error_of([&] { json_int(Json::array(), "n", "some.json"); }), HasSubstr("\"n\" is missing"));
}

TEST(Json, IsReadBackAsWritten) {
  const test::TemporaryFolder folder;
  const Json json = parse_json(R"({"b":[1,2.5,"é"],"a":null})", "x");
  write_json(folder.path("f.json"), json);
  EXPECT_EQ(read_json(folder.path("f.json")), json);
  EXPECT_EQ(read_file(folder.path("f.json")).back(), '\n');
  EXPECT_THAT(error_of([&] { read_json(folder.path("absent.json")); }),
              AllOf(HasSubstr("cannot read"), HasSubstr("absent.json")));
}

}  // namespace
}  // namespace palimpsest
