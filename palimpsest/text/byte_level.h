// SPDX-License-Identifier: Apache-2.0
// The two halves of "byte-level" that GPT-2 brought: an alphabet that spells any byte as a printable
// character, and the split of a text into words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::text {

/// The character that spells `byte`: itself where printable in Latin-1, else U+0100 and up in order.
char32_t alphabet_character(uint8_t byte);
/// All 256 as UTF-8, in the order of their code points (the order in which trained vocabularies list them).
const std::vector<std::string>& alphabet();
/// Bytes spelt in the alphabet: " a" -> "Ġa".
std::string spell_bytes(std::string_view bytes);
/// The bytes that `token` spells; nothing where it has a character outside the alphabet.
std::optional<std::string> spelt_bytes(std::string_view token);

/// Where the word that starts at `position` ends. Words cover the text; they are the matches of
///     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// `text` must be valid UTF-8 and `position` below its size.
size_t word_end(std::string_view text, size_t position);

}  // namespace palimpsest::text
