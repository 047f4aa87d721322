// SPDX-License-Identifier: Apache-2.0
// Pictures through gnuplot: a script that draws, written twice, as SVG and as PNG.
#pragma once

#include <filesystem>
#include <string>

namespace palimpsest::app {

/// Text between single quotes of gnuplot.
std::string quoted(const std::string& text);

/// Runs a gnuplot script once a format and prints the path of the SVG; `body` draws.
void draw(const std::filesystem::path& folder, const std::string& name, const std::string& body);

}  // namespace palimpsest::app
