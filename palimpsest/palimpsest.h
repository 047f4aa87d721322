// SPDX-License-Identifier: Apache-2.0
// Everything a program that uses the library needs.
#pragma once

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/core/error.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/core/version.h"
#include "palimpsest/data/token_stream.h"
#include "palimpsest/generate/greedy.h"
#include "palimpsest/generate/prompts.h"
#include "palimpsest/generate/search.h"
#include "palimpsest/models/bart.h"
#include "palimpsest/models/gpt2.h"
#include "palimpsest/serve/chat.h"
#include "palimpsest/text/tokenizer.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/trainer.h"
