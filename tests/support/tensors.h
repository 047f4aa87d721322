// SPDX-License-Identifier: Apache-2.0
// Comparing tensors in tests: the message names the worst place and both values.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

namespace palimpsest::test {

/// Largest |a - b| / max(1, |b|); infinity where one is not finite and the other is, or shapes differ.
double distance(const at::Tensor& a, const at::Tensor& b);
/// Fails unless distance(actual, expected) <= tolerance.
void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance, const std::string& what = "");
/// Fails unless every bit agrees (NaN equals NaN).
void expect_identical(const at::Tensor& actual, const at::Tensor& expected, const std::string& what = "");
/// Normal numbers of a fixed seed.
at::Tensor randn(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kDouble);

}  // namespace palimpsest::test
