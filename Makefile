# SPDX-License-Identifier: Apache-2.0
# Every target first makes the machine ready (tools/bootstrap.sh), then calls a CMake preset.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := program
.PHONY: program demo test asan bench format lint clean help

jobs := $(if $(JOBS),-j $(JOBS))

# $(call build,PRESET,TARGET) configures (at once when nothing changed) and builds.
build = settings=$$(tools/bootstrap.sh); eval "$$settings"; \
  mkdir -p build/$(1); \
  cmake --preset $(1) -DPALIMPSEST_TORCH="$$PALIMPSEST_TORCH" $(if $(PALIMPSEST_CUDA),-DPALIMPSEST_CUDA=$(PALIMPSEST_CUDA)) > build/$(1)/configure.log || { cat build/$(1)/configure.log; exit 1; }; \
  cmake --build --preset $(1) $(jobs) $(if $(2),--target $(2))

program: ## the release build; the program is build/palimpsest
	@$(call build,release,palimpsest_program)
	@ln -sfn release/bin/palimpsest build/palimpsest

demo: program ## trains a small memory on real text and shows what it holds: TEXT=file OTHER=file QUICK=1 SEED=n
	@build/palimpsest demo $${TEXT:+--text "$$TEXT"} $${OTHER:+--other "$$OTHER"} $${SEED:+--seed "$$SEED"} $(if $(filter-out 0,$(QUICK)),--quick)

test: ## builds everything and runs every test: ARGS="-R name" picks some
	@$(call build,release)
	@ln -sfn release/bin/palimpsest build/palimpsest
	@tools/run_tests.sh release $(ARGS)

asan: ## the readers of foreign bytes under the address and undefined-behaviour sanitizers
	@$(call build,asan,sanitized_tests)
	@tools/run_tests.sh asan -L '^(text|checkpoint|data|fuzz)$$' $(ARGS)

bench: program ## builds and runs the benchmarks; results also as JSON in build/release/benchmarks/results, tables and figures in build/benchmarks
	@$(call build,release,benchmarks)
	@python3 benchmarks/attention_lengths.py
	@mkdir -p build/release/benchmarks/results; shopt -s nullglob; \
	for program in build/release/benchmarks/benchmark_*; do echo "== $${program##*/}"; \
	  "$$program" --benchmark_out=build/release/benchmarks/results/$${program##*/}.json $(ARGS); done

format: ## clang-format, in place
	@settings=$$(tools/bootstrap.sh); tools/lint.sh format

lint: ## clang-format, clang-tidy on changed files (ALL=1: on all) and the checks of the source tree
	@$(call build,release,palimpsest_program)
	@tools/lint.sh check $(if $(filter-out 0,$(ALL)),all)

clean: ## removes build/ (LibTorch stays in the user's cache folder)
	@rm -rf build

help: ## this list
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/make \1\t\2/p' Makefile | expand -t 14
