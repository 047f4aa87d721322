// SPDX-License-Identifier: Apache-2.0
// The demo's recipe (recipes/demo.toml, built into the program) and where the shipped model lies.
#pragma once

#include <string>

#include "palimpsest/train/trainer.h"

namespace palimpsest::app {

train::TrainOptions demo_recipe();
/// models/recall-small of the source tree the program was built from.
std::string shipped_model_folder();

}  // namespace palimpsest::app
