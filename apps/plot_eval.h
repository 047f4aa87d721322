// SPDX-License-Identifier: Apache-2.0
// Pictures of what `palimpsest eval --json` printed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::app {

/// Perplexity by the step's place in its document and by session, one curve a file and carry, a picture a task; where
/// files hold comparisons, the gap; where they hold recall, the share given back by distance, one curve a model. An
/// input error where a file is something else.
void plot_evals(const std::vector<std::string>& files, const std::filesystem::path& folder);

}  // namespace palimpsest::app
